"""The collector against a plain loop: environments whose every observation, reward, end, cut and seed is known."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import episode_seed
from rl_training.envs.spaces import Spaces
from rl_training.envs.wrappers import FrameStack
from toys import Counter, ImageEnv

END, CUT, BOTH = (True, False), (False, True), (True, True)
SCRIPT = [(3, CUT), (1, END), (2, BOTH), (4, END), (1, CUT)]  # lengths and ends of episodes, over and over
RUN_SEED = 7


class Scripted(gym.Env):
    """Observes (its number, episode, step, the last action); pays 10 x episode + step + half the action."""

    observation_space, action_space = gym.spaces.Box(-1e3, 1e3, (4,), np.float32), gym.spaces.Box(-2.0, 4.0, (1,))

    def __init__(self, number=0, script=SCRIPT):
        self.number, self.script, self.episode, self.seeds = number, script, -1, []

    def _obs(self, action=0.0):
        return np.array([self.number, self.episode, self.t, action], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        length, end = self.script[(self.episode + self.number) % len(self.script)]
        terminated, truncated = end if self.t >= length else (False, False)
        return self._obs(action[0]), 10 * self.episode + self.t + action[0] / 2, terminated, truncated, {}


def made(n=3, **env_kwargs):
    """A collector of scripted environments, and these."""
    envs = []

    def make():
        envs.append(Scripted(len(envs)))
        return envs[-1]

    return Collector(EnvFactory(make, env_kwargs), n, seed=RUN_SEED), envs


class Loop:
    """One environment stepped by hand: what its transitions and finished episodes should be."""

    def __init__(self, number):
        self.env = Scripted(number)
        self.obs, _ = self.env.reset()
        self.total, self.length = 0.0, 0

    def step(self, action):
        """(obs, next_obs, reward, terminated, truncated), and (return, length) if an episode ended, else None."""
        before = self.obs
        after, reward, terminated, truncated, _ = self.env.step(action)
        self.obs, self.total, self.length = after, self.total + reward, self.length + 1
        finished = None
        if terminated or truncated:
            finished = (self.total, self.length)
            self.obs, self.total, self.length = self.env.reset()[0], 0.0, 0
        return (before, after, reward, terminated, truncated and not terminated), finished


def in_units(actions):
    """[-1, 1] to [-2, 4], clipped, by hand."""
    return np.clip(1.0 + 3.0 * actions, -2.0, 4.0).astype(np.float32)


def assert_same_step(step, expected, number):
    before, after, reward, terminated, truncated = expected
    assert step.obs[number].tolist() == before.tolist() and step.next_obs[number].tolist() == after.tolist()
    assert step.rewards[number] == pytest.approx(reward, rel=1e-6)
    assert (step.terminated[number], step.truncated[number]) == (terminated, truncated)


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_every_transition_end_and_statistic_is_that_of_a_plain_loop():
    collector, _ = made()
    loops, finished, rng = [Loop(i) for i in range(3)], [], np.random.default_rng(0)
    for t in range(40):
        actions = rng.uniform(-1.2, 1.2, (3, 1)).astype(np.float32)
        step = collector.step(actions)
        for i, (loop, action) in enumerate(zip(loops, in_units(actions))):
            expected, ended = loop.step(action)
            assert_same_step(step, expected, i)
            assert collector.obs[i].tolist() == loop.obs.tolist()  # what is acted on next: the reset's, after an end
            finished += [ended] if ended else []
        assert collector.steps == 3 * (t + 1) and collector.episodes == len(finished)
    np.testing.assert_allclose([episode[:2] for episode in collector.recent], finished, rtol=1e-5)
    means = np.mean(finished, 0)
    assert collector.metrics() == pytest.approx(
        {"episode_return": means[0], "episode_length": means[1], "episodes": len(finished)}
    )


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_means_are_over_the_last_hundred_episodes():
    collector = Collector(EnvFactory(lambda: Scripted(script=[(1, END)]), {}), 1, seed=0)
    for _ in range(130):
        collector.step(np.zeros((1, 1), np.float32))
    assert collector.episodes == 130
    assert collector.metrics()["episode_return"] == pytest.approx(np.mean([10 * k + 1.5 for k in range(30, 130)]))


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_episode_k_of_environment_i_starts_from_a_seed_of_its_own():
    collector, envs = made()
    for _ in range(15):
        collector.step(np.zeros((3, 1), np.float32))
    for i, env in enumerate(envs):
        assert env.seeds == [episode_seed(RUN_SEED, i, k) for k in range(len(env.seeds))]
    every = [seed for env in envs for seed in env.seeds]
    assert len({*every}) == len(every) and not {*every} & {episode_seed(RUN_SEED + 1, 0, k) for k in range(9)}


class Walk(Counter):
    """Adds up its actions and what its seed drew: a state that only seed and actions can restore."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)

    def _obs(self):
        return np.array([self.t, self.position], np.float32)

    def reset(self, *, seed=None, options=None):
        self.position = 0.0
        super().reset(seed=seed)
        self.position = float(self.np_random.normal())
        return self._obs(), {}

    def step(self, action):
        self.position += float(action) * (self.t + 1) + float(self.np_random.normal())
        _, _, terminated, truncated, info = super().step(action)
        return self._obs(), self.position, terminated, truncated, info


@pytest.mark.filterwarnings("ignore:.*no time limit")
@pytest.mark.parametrize("stop", [0, 1, 6, 7, 10])
def test_a_rebuilt_collector_goes_on_as_the_one_that_never_stopped(stop):
    """Episodes of seven steps, stopped in the middle of one, at an end, and before the first step."""
    rng = np.random.default_rng(1)
    actions = rng.integers(3, size=(16, 2))
    factory = EnvFactory(lambda: Walk(limit=7, actions=gym.spaces.Discrete(3)), {})
    whole, first, second = (Collector(factory, 2, seed=RUN_SEED) for _ in range(3))
    for row in actions[:stop]:
        whole.step(row), first.step(row)
    second.load_state_dict(first.state_dict())
    assert not second.lost.any()
    for row in actions[stop:]:
        one, other = whole.step(row), second.step(row)
        assert all(np.array_equal(a, b) for a, b in zip(one, other))
    assert list(whole.recent) == list(second.recent) and whole.metrics() == second.metrics()
    assert (whole.steps, whole.episodes) == (second.steps, second.episodes)


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_a_state_is_of_its_moment_and_a_rebuilt_collector_counts_a_hundred_episodes_too():
    factory = EnvFactory(lambda: Walk(limit=1), {})
    first, second = (Collector(factory, 1, seed=0) for _ in range(2))
    for _ in range(99):
        first.step(np.zeros(1, np.int64))
    state, obs = first.state_dict(), first.obs.copy()
    for collector in (first, second):
        if collector is second:
            collector.load_state_dict(state)
            assert np.array_equal(collector.obs, obs) and not collector.lost.any()
        for _ in range(3):
            collector.step(np.zeros(1, np.int64))
    assert len(second.recent) == 100 and list(second.recent) == list(first.recent)


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_images_with_their_channels_last_are_turned_on_reset_in_steps_and_when_rebuilt():
    factory = EnvFactory(lambda: ImageEnv((30, 20, 3), limit=4), {})
    first, second = (Collector(factory, 2, seed=0) for _ in range(2))
    assert first.obs.shape == (2, 3, 30, 20)
    for t in range(2):
        step = first.step(np.zeros(2, np.int64))
        assert (step.obs == t).all() and (step.next_obs == t + 1).all() and step.next_obs.shape == (2, 3, 30, 20)
    second.load_state_dict(first.state_dict())
    assert not second.lost.any() and np.array_equal(second.obs, first.obs)


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_another_number_of_environments_is_refused():
    with pytest.raises(ValueError, match="the run has 2 environments, not 3: num_envs cannot change"):
        made(3)[0].load_state_dict(made(2)[0].state_dict())


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_rewards_are_scaled_then_clipped_for_learning_and_reported_as_they_are():
    collector, _ = made(1, wrappers={"reward": {"scale": 0.5, "clip": 1.2}})
    steps = [collector.step(np.full((1, 1), -1, np.float32)).rewards.item() for _ in range(3)]  # pays 0, 1, 2
    assert steps == pytest.approx([0.0, 0.5, 1.0])
    collector, _ = made(1, wrappers={"reward": {"scale": -2.0, "clip": 1.2}})
    steps = [collector.step(np.full((1, 1), -1, np.float32)).rewards.item() for _ in range(3)]
    assert steps == pytest.approx([0.0, -1.2, -1.2]) and [episode[:2] for episode in collector.recent] == [(3.0, 3)]


# ---- time limits


@pytest.mark.parametrize("terminate", [True, False])
def test_a_limit_at_the_moment_of_an_end_is_a_truncation_only_if_nothing_terminated(terminate):
    """The environment ends at its fifth step, and the limit is five too: it terminates, or was cut."""
    collector = Collector(
        EnvFactory(lambda: Counter(limit=5, terminate=terminate), {"max_episode_steps": 5}), 1, seed=0
    )
    flags = [
        (s.terminated.item(), s.truncated.item()) for s in (collector.step(np.zeros(1, np.int64)) for _ in range(5))
    ]
    assert flags == [(0, 0)] * 4 + [(1, 0) if terminate else (0, 1)]


def test_the_shorter_of_an_inner_and_an_outer_limit_cuts():
    inner = lambda: gym.wrappers.TimeLimit(Counter(limit=99), 8)  # noqa: E731
    for outer, expected in ((None, 8), (3, 3)):
        factory = EnvFactory(inner, {} if outer is None else {"max_episode_steps": outer})
        assert factory.time_limit() == expected
        env = factory.make(training=True)
        env.reset(seed=0)
        lengths = 0
        while True:
            lengths += 1
            *_, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                break
        assert (lengths, terminated, truncated) == (expected, False, True)


def test_limits_of_training_and_evaluation_are_their_own():
    factory = EnvFactory(lambda: Counter(limit=99), {"max_episode_steps": 4, "evaluation": {"max_episode_steps": 6}})
    assert factory.time_limit() == 4
    lengths = []
    for training in (True, False):
        env = factory.make(training=training)
        env.reset(seed=0)
        lengths.append(next(t for t in range(1, 99) if env.step(0)[3]))
    assert lengths == [4, 6]


# ---- observations


class Room(Counter):
    """A dict of a vector, a choice and flags."""

    observation_space = gym.spaces.Dict(
        {
            "speed": gym.spaces.Box(-5, 5, (2,), np.float32),
            "door": gym.spaces.Discrete(3, start=1),
            "lamps": gym.spaces.MultiBinary(2),
        }
    )

    def _obs(self):
        return {
            "speed": np.array([self.t, -self.t], np.float32),
            "door": 1 + self.t % 3,
            "lamps": np.array([1, 0], np.int8),
        }


def test_dicts_are_vectors_in_the_order_of_their_names():
    """door as one of three, lamps as they are, speed as it is."""
    collector = Collector(EnvFactory(lambda: Room(limit=9), {"max_episode_steps": 9}), 2, seed=0)
    assert collector.obs.tolist() == [[1, 0, 0, 1, 0, 0, 0]] * 2
    step = collector.step(np.zeros(2, np.int64))
    assert step.next_obs.tolist() == [[0, 1, 0, 1, 0, 1, -1]] * 2 and step.next_obs.dtype == np.float32


def test_hidden_entries_and_stacks_come_in_this_order():
    """Entries 2 and 0 of (number, episode, step, action), then the last two such observations, older first."""
    factory = EnvFactory(Scripted, {"wrappers": {"keep": [2, 0], "frame_stack": 2}, "max_episode_steps": 9})
    env = factory.make(training=True)
    assert env.reset(seed=0)[0].tolist() == [0, 0, 0, 0]
    assert env.step(np.zeros(1))[0].tolist() == [0, 0, 1, 0]
    assert env.step(np.zeros(1))[0].tolist() == [1, 0, 2, 0]
    assert Spaces.of(env).obs_shape == (4,) and env.observation_space.contains(env.step(np.zeros(1))[0])


class Painted(Counter):
    """Renders red, green and blue thirds, the brighter the later."""

    render_mode, metadata = "rgb_array", {"render_modes": ["rgb_array"]}

    def render(self):
        image = np.zeros((40, 60, 3), np.uint8)
        for third in range(3):
            image[:, 20 * third : 20 * third + 20, third] = 40 * (self.t + 1)
        return image


@pytest.mark.parametrize("channel_first", [True, False])
def test_pixels_are_the_rendered_image_made_smaller(channel_first):
    pixels = {"resize_shape": [20, 30], "grayscale": False, "frame_stack": 2, "channel_first": channel_first}
    env = EnvFactory(Painted, {"wrappers": {"pixels": pixels}, "max_episode_steps": 5}).make(training=True)
    env.reset(seed=0)
    obs = Spaces.of(env).encode(env.step(0)[0])
    assert obs.shape == (6, 20, 30)  # two images of three colours
    for frame, brightness in enumerate((40, 80)):
        for colour in range(3):
            row = [brightness if column // 10 == colour else 0 for column in range(30)]
            assert obs[3 * frame + colour].tolist() == [row] * 20


def test_gray_is_the_luminance_of_a_pixel():
    pixels = {"resize_shape": None, "grayscale": True}
    env = EnvFactory(Painted, {"wrappers": {"pixels": pixels}, "max_episode_steps": 5}).make(training=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (1, 40, 60) and obs[0, 0, ::20].tolist() == [12, 23, 5]  # 0.299, 0.587 and 0.114 of 40, rounded
    assert (env.observation_space.low == 0).all() and (env.observation_space.high == 255).all()


@pytest.mark.parametrize("terminate", [True, False])
def test_pixels_end_as_the_task_does(terminate):
    pixels = {"wrappers": {"pixels": {"resize_shape": [36, 36]}}}
    env = EnvFactory(lambda: Painted(limit=2, terminate=terminate), pixels).make(training=True)
    env.reset(seed=0)
    assert [env.step(0)[1:4] for _ in range(2)] == [(1.0, False, False), (1.0, terminate, not terminate)]


def test_parts_of_an_observation_keep_their_type_and_bounds():
    class Fine(Counter):
        observation_space = gym.spaces.Box(np.array([-1.0, -2.0, -3.0]), np.array([1.0, 2.0, 3.0]), dtype=np.float64)

    space = EnvFactory(Fine, {"wrappers": {"keep": [2, 1]}}).make(training=True).observation_space
    assert space == gym.spaces.Box(np.array([-3.0, -2.0]), np.array([3.0, 2.0]), dtype=np.float64)


@pytest.mark.parametrize("keep", [[3], []])
def test_entries_that_are_not_there_cannot_be_kept(keep):
    with pytest.raises(ValueError, match=r"wrappers.keep names entries of 1, from 0"):
        EnvFactory(Counter, {"wrappers": {"keep": keep}}).make(training=True)


@pytest.mark.parametrize(("half", "free"), [(0.999e5, ()), (1.001e5, (0,))])
def test_a_box_is_too_wide_from_a_half_width_of_a_hundred_thousand_on(half, free):
    box = gym.spaces.Box(np.array([-half, -1.0]), np.array([half, 1.0]), dtype=np.float64)
    assert Spaces.of(Counter(actions=box)).unbounded == free


def test_sixteen_channels_may_stand_last_and_are_stacked_there():
    env = EnvFactory(lambda: ImageEnv((30, 30, 16)), {"wrappers": {"frame_stack": 2}}).make(training=True)
    assert env.observation_space.shape == (30, 30, 32)
    assert Spaces.of(ImageEnv((30, 30, 16))).obs_shape == (16, 30, 30)


def test_only_vectors_and_images_are_stacked():
    with pytest.raises(ValueError, match="frame_stack needs vectors or images"):
        FrameStack(gym.wrappers.TransformObservation(Counter(), None, gym.spaces.Discrete(3)), 2)
