"""Environments that break Gymnasium's rules: one line that names them, what was expected and what came. In training and evaluation."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training import PPO
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.run import TrainingFailure
from toys import Counter


class Lying(Counter):
    """A truthful Counter but for what ``changes`` makes of the results of ``reset`` and of ``step``, from its second step on."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, reset=lambda result: result, step=lambda result: result):
        super().__init__(limit=5)
        self.changes = {"reset": reset, "step": step}

    def _obs(self):
        return np.full(3, self.t, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.changes["reset"](super().reset(seed=seed, options=options))

    def step(self, action):
        result = super().step(action)
        return self.changes["step"](result) if self.t >= 2 else result


def with_observation(make):
    return lambda result: (make(result[0]), *result[1:])


def with_part(place, value):
    return lambda result: (*result[:place], value, *result[place + 1 :])


LIES = {
    "reset without info": ({"reset": lambda r: r[0]}, r"reset returned an array of shape \(3,\), not \(observation, info\)"),
    "reset with a step's values": ({"reset": lambda r: (*r, 0)}, r"reset returned a tuple of 3, not \(observation, info\)"),
    "reset whose info is no dict": ({"reset": lambda r: (r[0], r[0])}, r"reset returned info as an array of shape \(3,\)"),
    "reset of another shape": ({"reset": with_observation(lambda o: o[:1])}, r"observation of shape \(1,\).*space says \(3,\)"),
    "reset with a scalar": ({"reset": with_observation(lambda o: 0.0)}, r"observation of shape \(\).*space says \(3,\)"),
    "reset with NaN": ({"reset": with_observation(lambda o: o * np.nan)}, r"observation is not finite.*nan"),
    "reset with words": ({"reset": with_observation(lambda o: np.array(["a", "b", "c"]))}, r"observation of type <U1"),
    "step of another shape": ({"step": with_observation(lambda o: o[:1])}, r"observation of shape \(1,\).*space says \(3,\)"),
    "step with a scalar": ({"step": with_observation(lambda o: 1.0)}, r"observation of shape \(\).*space says \(3,\)"),
    "step with a ragged list": ({"step": with_observation(lambda o: [1.0, [2.0, 3.0]])}, r"observation.*list"),
    "step with words": ({"step": with_observation(lambda o: np.array(["a", "b", "c"]))}, r"observation of type <U1"),
    "step with objects": ({"step": with_observation(lambda o: np.array([None, {}, 1], object))}, r"observation of type object"),
    "step with NaN": ({"step": with_observation(lambda o: o * np.nan)}, r"observation is not finite"),
    "reward None": ({"step": with_part(1, None)}, r"reward.*None, not a number"),
    "reward beyond any float": ({"step": with_part(1, 10**400)}, r"reward int, not a number"),
    "reward array": ({"step": with_part(1, np.ones(2))}, r"reward.*an array of shape \(2,\), not a number"),
    "terminated None": ({"step": with_part(2, None)}, r"terminated.*None, not a bool"),
    "terminated array": ({"step": with_part(2, np.zeros(2, bool))}, r"terminated.*an array of shape \(2,\), not a bool"),
    "truncated words": ({"step": with_part(3, "False")}, r"truncated.*'False', not a bool"),
    "truncated info": ({"step": with_part(3, {})}, r"truncated.*\{\}, not a bool"),
    "four values": ({"step": lambda r: (r[0], r[1], r[2], r[4])}, r"step returned a tuple of 4, not \(observation, reward, terminated, truncated, info\)"),
    "a list": ({"step": list}, r"step returned a list of 5, not \(observation, reward"),
    "no tuple": ({"step": lambda r: None}, r"step returned None, not \(observation, reward"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_in_training(lie):
    def train():
        collector = Collector(EnvFactory(named("Liar", **changes), {}), 2, seed=0)
        for _ in range(3):
            collector.step(np.zeros(2, np.int64))

    changes, message = LIES[lie]
    with pytest.raises(EnvironmentFailure, match=rf"environment 0 \(Liar\).*{message}") as caught:
        train()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


class Zero:
    """Always the first action; learns nothing."""

    training = False

    def set_eval_mode(self):
        pass

    def initial_carry(self, n):
        return None

    def act(self, obs, **_):
        from rl_training.algorithms.base import Acting

        return Acting(np.zeros(len(obs), np.int64))


def named(name, **changes):
    def make():
        return Lying(**changes)

    make.__name__ = name
    return make


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_in_evaluation(lie):
    changes, message = LIES[lie]
    with pytest.raises(EnvironmentFailure, match=rf"Liar.*{message}.*in evaluation") as caught:
        evaluate(Zero(), EnvFactory(named("Liar", **changes), {}), episodes=1, seed=0)
    assert "\n" not in str(caught.value)


HARMLESS = {
    "lists": {"reset": with_observation(list), "step": with_observation(tuple)},
    "doubles": {"reset": with_observation(np.float64), "step": with_observation(np.float64)},
    "integers": {"reset": with_observation(np.int64), "step": with_observation(np.int64)},
    "a reward of one entry": {"step": with_part(1, np.array([1.0]))},
    "an integer reward": {"step": with_part(1, 1)},
    "numbers for booleans": {"step": lambda r: (*r[:2], int(r[2]), np.array([r[3]]), r[4])},
}


@pytest.mark.filterwarnings("ignore:Conversion of an array")
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_has_one_meaning_is_taken(kind):
    honest, other = (Collector(EnvFactory(named("x", **c), {}), 2, seed=0) for c in ({}, HARMLESS[kind]))
    for _ in range(7):
        a, b = (c.step(np.zeros(2, np.int64)) for c in (honest, other))
        assert all(np.array_equal(x, y) for x, y in zip(a, b))
    assert honest.metrics() == other.metrics() == {"episode_return": 5.0, "episode_length": 5.0, "episodes": 2.0}
    score = evaluate(Zero(), EnvFactory(named("x", **HARMLESS[kind]), {}), episodes=1, seed=0)
    assert score["eval_return_mean"] == score["eval_length_mean"] == 5.0


@pytest.mark.parametrize("reward", [np.nan, np.inf, -1e39, np.float64(1e300)])
def test_a_reward_that_32_bits_cannot_hold_is_the_environments_not_the_networks(reward):
    collector = Collector(EnvFactory(named("Rich", step=with_part(1, reward)), {}), 2, seed=0)
    collector.step(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFailure, match=r"environment 0 \(Rich\) gave the reward .* at step 2"):
        collector.step(np.zeros(2, np.int64))


def test_a_lie_in_the_middle_of_a_run_keeps_its_checkpoint_and_one_at_the_start_is_as_clear(tiny):
    class Late(Lying):
        count = 0

        def step(self, action):
            Late.count += 1
            result = super().step(action)
            return result if Late.count < 100 else result[:4]

    spec = get_algorithm_spec("dqn")
    config = tiny("dqn", total_timesteps=400, checkpoint_interval=32, eval_interval=0)
    with pytest.raises(TrainingFailure, match=r"Late.*tuple of 4.*step 99.*last good checkpoint is .*0000000096"):
        spec.train(config, env=Late)
    with pytest.raises(EnvironmentFailure, match="reset returned an array"):
        spec.train(config, env=named("x", reset=lambda result: result[0]))


def test_a_nan_at_reset_is_the_environments_not_the_networks(tiny):
    class Sick(Lying):
        resets = 0

        def _obs(self):
            return super()._obs() * (np.nan if self.t == 0 and Sick.resets >= 4 else 1)

        def reset(self, **kwargs):
            Sick.resets += 1
            return super().reset(**kwargs)

    with pytest.raises(TrainingFailure, match=r"Sick.*observation is not finite.*on reset"):
        get_algorithm_spec("ppo").train(tiny("ppo", eval_interval=0), env=Sick)


def test_a_reset_that_takes_no_seed_is_refused_with_the_right_signature():
    class Seedless(Counter):
        def reset(self):
            return np.zeros(1, np.float32), {}

    for attempt in (
        lambda: Collector(EnvFactory(Seedless, {}), 1, seed=0),
        lambda: evaluate(Zero(), EnvFactory(Seedless, {}), episodes=1, seed=0),
    ):
        with pytest.raises(EnvironmentFailure, match=r"Seedless.*reset\(self, \*, seed=None, options=None\)"):
            attempt()


def image(dtype):
    class Picture(Counter):
        observation_space = gym.spaces.Box(0, 255, (40, 48, 3), np.uint8)

        def _obs(self):
            return np.full((40, 48, 3), self.t, dtype)

    return Picture


def test_images_of_another_type_than_their_space_are_refused():
    Collector(EnvFactory(image(np.uint8), {}), 1, seed=0).step(np.zeros(1, np.int64))
    for attempt in (
        lambda: Collector(EnvFactory(image(np.float32), {}), 1, seed=0),
        lambda: evaluate(Zero(), EnvFactory(image(np.float32), {}), episodes=1, seed=0),
    ):
        with pytest.raises(EnvironmentFailure, match=r"observation of type float32.*its space says uint8"):
            attempt()


BOX = gym.spaces.Box


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (BOX(0, 255, (4, 84, 84, 3), np.uint8), r"4 dimensions"),
        (BOX(0, 255, (90, 84, 27), np.uint8), r"which axis.*channels"),
        (
            gym.spaces.Dict({"a": gym.spaces.Dict({"eye": BOX(0, 1, (2, 3, 4, 5), np.float32)})}),
            r"'a.eye'.*4 dimensions",
        ),
    ],
)
def test_what_needs_convolutions_that_do_not_exist_is_not_flattened(space, message):
    class Odd(Counter):
        observation_space = space

    with pytest.raises(ValueError, match=message) as caught:
        EnvFactory(Odd, {}).make(training=True)
    assert "Odd" in str(caught.value) and "env_kwargs.wrappers.parts" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (BOX(0, 1, (8, 8), np.float32), 64),
        (gym.spaces.Dict({"a": gym.spaces.Dict({"b": BOX(0, 1, (3,)), "c": gym.spaces.Discrete(2)})}), 5),
        (gym.spaces.MultiDiscrete([2, 3], start=[4, 5]), 5),
    ],
)
def test_vectors_in_other_clothes_are_flattened(space, size):
    class Clothed(Counter):
        observation_space = space

        def _obs(self):
            self.observation_space.seed(self.t)
            return self.observation_space.sample()

    collector = Collector(EnvFactory(Clothed, {}), 1, seed=0)
    assert collector.step(np.zeros(1, np.int64)).next_obs.shape == (1, size)


@pytest.mark.parametrize(
    ("space", "wrong", "said"),
    [
        (gym.spaces.Discrete(5), -1, r"is -1, its space says Discrete\(5\)"),
        (gym.spaces.Discrete(5), 5, r"is 5, its space says Discrete\(5\)"),
        (gym.spaces.Discrete(5, start=1), 0, r"is 0, its space says Discrete\(5, start=1\)"),
        (gym.spaces.Discrete(5), 1.5, r"is 1.5, its space says Discrete\(5\)"),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([2, 0]), r"is \[2, 0\], its space says MultiDiscrete"),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([0, -1]), r"is \[0, -1\], its space says MultiDiscrete"),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([0, 1, 1]), r"is \[0, 1, 1\], its space says MultiDiscrete"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_choice_that_is_none_is_not_taken_for_another_one(space, wrong, said, at):
    class Chosen(Counter):
        observation_space = space

        def _obs(self):
            return wrong if self.t == at else self.observation_space.sample()

    def train():
        collector = Collector(EnvFactory(Chosen, {}), 1, seed=0)
        for _ in range(3):
            collector.step(np.zeros(1, np.int64))

    with pytest.raises(EnvironmentFailure, match=rf"environment 0 \(Chosen\).*the observation {said}"):
        train()
    with pytest.raises(EnvironmentFailure, match=rf"Chosen.*the observation {said}.*in evaluation"):
        evaluate(Zero(), EnvFactory(Chosen, {}), episodes=1, seed=0)


def test_flattening_on_purpose_is_the_users_to_choose():
    class Image(Counter):
        observation_space = BOX(0, 1, (84, 84, 3), np.float32)

        def _obs(self):
            return np.zeros((84, 84, 3), np.float32)

    factory = EnvFactory(lambda: gym.wrappers.FlattenObservation(Image()), {})
    assert Collector(factory, 1, seed=0).obs.shape == (1, 84 * 84 * 3)


def test_a_failure_without_text_is_called_by_its_type():
    class Mute(Counter):
        def __init__(self, **_):
            raise NotImplementedError

    gym.register("Mute-v0", entry_point=Mute)
    try:
        with pytest.raises(ValueError, match="cannot make the environment 'Mute-v0': NotImplementedError"):
            EnvFactory("Mute-v0", {}).make(training=True)
    finally:
        gym.registry.pop("Mute-v0")


def test_what_others_raise_is_named_by_its_text_or_its_type():
    from rl_training.base.errors import raised, reason

    assert [reason(error) for error in (MemoryError(), KeyError("x"), ValueError("two\n lines"))] == [
        "MemoryError",
        "KeyError: 'x'",
        "two lines",
    ]
    assert [raised(error) for error in (MemoryError(), ValueError("two\n lines"))] == [
        "MemoryError",
        "ValueError: two lines",
    ]


class Endless(Counter):
    def __init__(self):
        super().__init__(limit=10**9)


def test_environments_without_a_time_limit_are_mentioned_at_the_start():
    with pytest.warns(UserWarning, match=r"Endless has no time limit.*env_kwargs\.max_episode_steps"):
        Collector(EnvFactory(Endless, {}), 1, seed=0)


@pytest.mark.parametrize(
    ("source", "kwargs"),
    [
        ("CartPole-v1", {}),
        (Endless, {"max_episode_steps": 7}),
        (lambda: gym.wrappers.TimeLimit(Endless(), 5), {}),
        ("rl_training.envs.catch:Catch-v0", {}),
    ],
)
def test_environments_with_a_time_limit_are_not(source, kwargs, recwarn):
    Collector(EnvFactory(source, kwargs), 1, seed=0)
    assert not [w for w in recwarn if "time limit" in str(w.message)]


def test_a_time_limit_is_read_off_the_wrappers_not_off_the_spec():
    cartpole = gym.make("CartPole-v1")
    assert EnvFactory("CartPole-v1", {}).time_limit() == 500
    assert EnvFactory("CartPole-v1", {"max_episode_steps": 7}).time_limit() == 7
    assert EnvFactory(cartpole, {}).time_limit() == 500
    assert EnvFactory(cartpole.unwrapped, {}).time_limit() is None  # its spec says 500, but nobody counts
    assert EnvFactory(lambda: gym.wrappers.TimeLimit(Endless(), 5), {}).time_limit() == 5


def test_episodes_without_an_end_are_cut_in_evaluation_and_counted(monkeypatch):
    monkeypatch.setattr("rl_training.runtime.evaluation.UNLIMITED", 50)
    with pytest.warns(UserWarning, match=r"2 of 2 episodes of Endless were cut after 50 steps"):
        score = evaluate(Zero(), EnvFactory(Endless, {}), episodes=2, seed=0)
    assert score["eval_length_mean"] == score["eval_return_mean"] == 50
    assert score["eval_episodes_cut"] == 2
    score = evaluate(Zero(), EnvFactory(Endless, {"max_episode_steps": 60}), episodes=2, seed=0)
    assert score["eval_length_mean"] == 60 and score["eval_episodes_cut"] == 0


def test_a_shorter_time_limit_within_is_not_overruled_in_silence():
    given = lambda: gym.wrappers.TimeLimit(Endless(), 5)  # noqa: E731
    with pytest.raises(ValueError, match=r"env_kwargs.max_episode_steps.*time limit of 5 of its own"):
        EnvFactory(given, {"max_episode_steps": 9}).make(training=True)
    assert EnvFactory(given, {"max_episode_steps": 4}).time_limit() == 4


def test_training_says_all_this_in_one_line(tmp_path):
    agent = PPO(named("Liar", step=with_part(1, None)), output_dir=tmp_path, total_timesteps=64, progress="off")
    with pytest.raises(TrainingFailure, match=r"environment 0 \(Liar\): step returned the reward None, not a number"):
        agent.learn()
