"""How masks of actions are found, checked, and packed into rows."""

import gymnasium as gym
import numpy as np
import pytest

from masked_toys import ACTIONS, Locks, Restricted
from rl_training.base.options import ConfigError
from rl_training.base.saved import StateError
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.masks import read_mask
from rl_training.envs.spaces import Spaces
from toys import Counter


def spaces_of(make, **env_kwargs):
    return EnvFactory(make, env_kwargs).spaces()


@pytest.mark.parametrize("where", ["info", "method", "dict"])
@pytest.mark.parametrize("picture", [False, True])
def test_a_row_ends_with_the_mask_wherever_the_environment_has_it(where, picture):
    def make():
        return Restricted(where, picture=picture)

    env, own = EnvFactory(make, {}).make(training=True), make()
    spaces = Spaces.of(env)
    assert spaces.parts.mask.shape == (ACTIONS,) and spaces.bare is not None
    assert spaces.obs_dtype == (np.uint8 if picture else np.float32)
    row, raw = env.reset(seed=3)[0], own.reset(seed=3)[0]
    for _ in range(4):
        seen = raw["observation"] if where == "dict" else raw
        assert env.observation_space.contains(row)
        assert np.array_equal(spaces.parts.allowed(row), own.mask)
        back = dict(zip((part.kind for part in spaces.parts.all), spaces.parts.unpack(row[None])))
        assert np.array_equal(back["image" if picture else "vector"].reshape(seen.shape), seen)
        assert np.array_equal(back["mask"][0] > 0, own.mask)
        action = int(np.flatnonzero(own.mask)[0]) + 2
        row, raw = env.step(action)[0], own.step(action)[0]


def test_environments_without_masks_and_masks_left_out_are_seen_as_before():
    assert spaces_of(Counter).bare is None
    for where, shape in (("info", (3,)), ("method", (3,)), ("dict", (8,))):
        spaces = spaces_of(lambda where=where: Restricted(where), action_masks=False)
        assert spaces.bare is None and spaces.obs_shape == shape


def test_a_box_of_actions_has_no_mask():
    def make():
        return Counter(actions=gym.spaces.Box(-1, 1, (2,)))

    assert spaces_of(make).bare is None
    with pytest.raises(ConfigError, match=r"env_kwargs.action_masks: masks are of Discrete or MultiDiscrete actions"):
        spaces_of(make, action_masks=True)


def test_masks_that_have_no_use_are_mentioned_once(recwarn):
    class Mixed(Restricted):
        def __init__(self, space):
            super().__init__("method")
            self.action_space, self.mask = space, np.ones(1, bool)

    mix = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (1,), np.float32)))
    for space in (mix, gym.spaces.MultiBinary(3)):
        factory = EnvFactory(lambda space=space: Mixed(space), {})
        with pytest.warns(UserWarning, match="gives masks of its actions, which are .*: these masks are not used"):
            assert factory.spaces().bare is None
        recwarn.clear()
        factory.spaces()
        EnvFactory(lambda space=space: Mixed(space), {"action_masks": False}).spaces()
        EnvFactory(lambda space=space: Counter(actions=space), {}).spaces()
        assert not [str(one.message) for one in recwarn if "masks" in str(one.message)]


def test_masks_and_integers_are_those_of_training_and_evaluation_alike():
    for who in ("training", "evaluation"):
        for option, value in (("action_masks", False), ("integer_actions", "rounded")):
            with pytest.raises(ConfigError, match=f"env_kwargs.{who}.*{option} is for training and evaluation alike"):
                spaces_of(Restricted, **{who: {option: value}})


@pytest.mark.parametrize("parts", [{"drop": ["action_mask"]}, {"keep": ["observation"]}])
def test_a_mask_that_parts_leave_out_is_no_mask(parts):
    spaces = spaces_of(lambda: Restricted("dict"), wrappers={"parts": parts})
    assert spaces.bare is None and spaces.obs_shape == (3,)
    both = {"wrappers": {"parts": parts}, "action_masks": True}
    with pytest.raises(EnvironmentFailure, match="there is no mask of the actions"):
        Collector(EnvFactory(lambda: Restricted("dict"), both), 1, seed=0)
    kept = spaces_of(lambda: Restricted("dict"), wrappers={"parts": {"keep": ["observation", "action_mask"]}})
    assert kept.bare.obs_shape == (3,)


def test_a_reset_that_fails_is_not_taken_for_one_without_masks():
    class Late(Restricted):
        resets = 0

        def reset(self, **kwargs):
            Late.resets += 1
            if Late.resets == 1:
                raise RuntimeError("not up yet")
            return super().reset(**kwargs)

    factory = EnvFactory(Late, {})
    factory.spaces()
    assert "info" not in factory.known
    with pytest.raises(EnvironmentFailure, match=r"Late gives masks of actions, which was not seen at first.*: true"):
        factory.make(training=True)


def test_a_property_gives_masks_as_a_method_does():
    class Property(Restricted):
        def __init__(self):
            super().__init__("nowhere")

        @property
        def action_masks(self):
            return self.mask  # there is none before the first reset

    env = EnvFactory(Property, {}).make(training=True)
    row, _ = env.reset(seed=1)
    assert np.array_equal(env.observation_space.parts.allowed(row), env.unwrapped.mask)


def test_masks_that_must_be_there_and_are_not():
    with pytest.raises(
        EnvironmentFailure, match=r"environment 0 .*: there is no mask of the actions, 'action_mask'.*on"
    ):
        Collector(EnvFactory(Counter, {"action_masks": True}), 1, seed=0)
    with pytest.raises(ConfigError, match="action_masks: should be a valid boolean or should be 'auto', got 'yes'"):
        spaces_of(Counter, action_masks="yes")


def test_whether_infos_have_masks_is_asked_once():
    resets = []

    class Counted(Restricted):
        def reset(self, **kwargs):
            resets.append(kwargs)
            return super().reset(**kwargs)

    factory = EnvFactory(Counted, {})
    factory.spaces()
    assert len(resets) == 1 and factory.known == {"info": True}
    factory.make(training=True)
    factory.make(training=False)
    assert len(resets) == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "there is no mask"),
        ([True] * 3, r"has shape \(3,\), and there are 5 choices"),
        ([[True] * 5], r"has shape \(1, 5\), and there are 5 choices"),
        ([0, 1, 2, 0, 0], "is a list of 5, expected truth values or zeros and ones"),
        ("all", "is 'all', expected truth values"),
        ([[1], [1, 2]], "expected truth values"),
        (np.zeros(5), "allows none"),
        (np.array([1, 1, 0, 0, 0], bool), "allows none"),  # of the second choice
    ],
)
def test_a_mask_that_is_none_is_one_line(given, problem):
    sizes = (2, 3) if isinstance(given, np.ndarray) and given.any() else (5,)
    with pytest.raises(ValueError, match=problem) as refused:
        read_mask(given, sizes)
    assert "\n" not in str(refused.value)


def test_masks_of_several_choices_may_come_as_a_tuple():
    both = (np.array([1, 0], np.int8), [False, True, True])
    assert read_mask(both, (2, 3)).tolist() == [True, False, False, True, True]


class Forgets(Restricted):
    def __init__(self, given, terminates):
        super().__init__()
        self.given, self.terminates = given, terminates

    def step(self, action):
        obs, _, _, _, _ = super().step(action)
        return obs, 0.0, self.terminates, not self.terminates, self.given


@pytest.mark.parametrize("given", [{}, {"action_mask": np.zeros(ACTIONS, np.int8)}])
def test_only_a_terminated_episode_needs_no_mask(given):
    collector = Collector(EnvFactory(lambda: Forgets(given, True), {}), 1, seed=0)
    step = collector.step(collector.spaces.random_actions(np.random.default_rng(0), 1, collector.obs))
    assert collector.spaces.parts.allowed(step.next_obs).all()
    collector = Collector(EnvFactory(lambda: Forgets(given, False), {}), 1, seed=0)
    with pytest.raises(EnvironmentFailure, match=r"of the actions.*action_masks: false leaves masks out.* at step 0"):
        collector.step(collector.spaces.random_actions(np.random.default_rng(0), 1, collector.obs))


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ((np.ones(2, np.int8), np.array([0, 1, 1])), [1, 1, 0, 1, 1]),
        ((np.zeros(2), np.zeros(3)), [1, 1, 1, 1, 1]),
        (np.array([0, 0, 1, 0, 1]), [1, 1, 1, 0, 1]),
        ((np.array([0, 1]), np.zeros(3)), [0, 1, 1, 1, 1]),
        (None, [1, 1, 1, 1, 1]),
        ([], [1, 1, 1, 1, 1]),
    ],
)
def test_after_a_terminated_episode_each_choice_without_a_mask_is_open(given, allowed):
    def make():
        env = Forgets({"action_mask": given}, True)
        env.sizes, env.action_space = (2, 3), gym.spaces.MultiDiscrete([2, 3])
        return env

    collector = Collector(EnvFactory(make, {}), 1, seed=0)
    step = collector.step(collector.spaces.random_actions(np.random.default_rng(0), 1, collector.obs))
    assert collector.spaces.parts.allowed(step.next_obs)[0].tolist() == [bool(one) for one in allowed]
    with pytest.raises(ValueError, match="expected truth values"):
        read_mask("none", (2, 3), over=True)


@pytest.mark.parametrize(("where", "picture"), [("info", False), ("dict", True), ("parts", True)])
def test_rows_without_their_masks_are_the_observations(where, picture):
    class Parted(Restricted):
        def __init__(self):
            super().__init__("info", picture=True)
            number = gym.spaces.Box(-1, 1, (2,), np.float32)
            self.observation_space = gym.spaces.Dict({"image": self.seen, "number": number})

        def _answer(self):
            obs, info = super()._answer()
            return {"image": obs, "number": self.np_random.uniform(-1, 1, 2).astype(np.float32)}, info

    make = Parted if where == "parts" else lambda: Restricted(where, picture=picture)
    spaces = spaces_of(make)
    bare = EnvFactory(make, {"wrappers": {"parts": {"drop": ["action_mask"]}}} if where == "dict" else {})
    bare = EnvFactory(bare.source, {**bare.env_kwargs, "action_masks": False})
    rows, expected = [], []
    for factory, kept in ((EnvFactory(make, {}), rows), (bare, expected)):
        env = factory.make(training=True)
        kept.extend(env.reset(seed=seed)[0] for seed in range(4))
    wanted = bare.spaces().encode(np.stack(expected))
    back = spaces.unmasked(np.stack(rows))
    assert back.shape == (4, *spaces.bare.obs_shape) and back.dtype == wanted.dtype
    assert np.array_equal(back, wanted) and spaces.recorded() == bare.spaces().recorded()


def test_random_actions_are_uniform_over_what_is_allowed():
    spaces = spaces_of(Restricted)
    allowed = np.array([False, True, False, True, True])
    rows = spaces.parts.masked(np.zeros((6000, 3), np.float32), np.tile(allowed, (6000, 1)))
    drawn = np.bincount(spaces.random_actions(np.random.default_rng(0), 6000, rows), minlength=ACTIONS)
    assert drawn[~allowed].sum() == 0 and np.abs(drawn[allowed] - 2000).max() < 150


def test_stacked_and_partial_observations_keep_one_mask():
    spaces = spaces_of(Restricted, wrappers={"keep": [0, 2], "frame_stack": 3})
    assert spaces.obs_shape == (6 + ACTIONS,) and spaces.bare.obs_shape == (6,)


def test_spaces_with_masks_come_back_from_a_file():
    for make in (Restricted, lambda: Restricted("dict", picture=True), lambda: Restricted(several=True)):
        spaces = spaces_of(make)
        back = Spaces.of_facts(spaces.facts())
        assert back.parts == spaces.parts and back.matches(spaces) and back.bare.obs_shape == spaces.bare.obs_shape
    facts = {**spaces_of(lambda: Counter(actions=gym.spaces.MultiBinary(3))).facts(), "masked": True}
    with pytest.raises(StateError, match="masks of actions that are no choices"):
        Spaces.of_facts(facts)


def test_a_mask_of_a_file_has_no_more_choices_than_a_row_may_have():
    facts = {**spaces_of(lambda: Counter(actions=gym.spaces.Discrete(2**24))).facts(), "masked": True}
    assert Spaces.of_facts(facts).bare is not None
    with pytest.raises(StateError, match=r"^choices: has more choices than a mask may have"):
        Spaces.of_facts({**facts, "choices": [2**24 + 1]})


@pytest.mark.parametrize("where", ["info", "method", "dict"])
def test_an_environment_that_is_made_anew_is_asked_itself(where):
    made = []

    def make():
        made.append(Restricted(where))
        return made[-1]

    env = EnvFactory(make, {"remake": True}).make(training=True)
    for seed in range(3):
        row, _ = env.reset(seed=seed)
        assert np.array_equal(env.observation_space.parts.allowed(row), made[-1].mask)


def test_a_vector_env_has_no_masks():
    assert spaces_of(lambda: gym.vector.SyncVectorEnv([Locks], autoreset_mode="Disabled")).bare is None
