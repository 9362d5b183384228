"""Environments: autoreset, truncation, seeds, spaces, wrappers, and what crosses the edge."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import DQN
from rl_training.base.options import ConfigError
from rl_training.base.state import Rng
from rl_training.data import Mixed, ReplayBuffer
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.envs.wrappers import AreaResize, FrameStack, area_weights
from toys import Counter, DictCounter, ImageEnv, OneState


def collect(env, steps, num_envs=1, env_kwargs=None):
    collector = Collector(EnvFactory(env, env_kwargs or {}), num_envs, seed=0)
    rows = []
    for _ in range(steps):
        step = collector.step(np.zeros((num_envs, *collector.spaces.action_shape), collector.spaces.action_dtype))
        rows += list(
            zip(
                step.obs[:, 0].tolist(), step.next_obs[:, 0].tolist(), step.terminated.tolist(), step.truncated.tolist()
            )
        )
    return rows, collector


def test_no_transition_starts_at_an_episodes_end():
    rows, collector = collect(Counter, 9)
    assert [(a, b) for a, b, *_ in rows] == [(0, 1), (1, 2), (2, 3)] * 3
    assert [terminated for *_, terminated, _ in rows] == [0.0] * 9
    assert [truncated for *_, truncated in rows] == [0.0, 0.0, 1.0] * 3
    assert collector.steps == 9


def test_terminations_are_stored_as_terminations():
    rows, _ = collect(lambda: Counter(terminate=True), 3)
    assert rows[-1] == (2.0, 3.0, 1.0, 0.0)


def test_several_environments_reset_on_their_own():
    rows, collector = collect(Counter, 4, num_envs=2)
    assert len(rows) == 8 and collector.episodes == 2
    assert collector.obs[:, 0].tolist() == [1.0, 1.0]


def test_replay_holds_exactly_the_steps_taken(tiny):
    from rl_training.experiment.checkpointing import load_checkpoint
    from rl_training.experiment.registry import get_algorithm_spec

    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=60), env=Counter)
    rows = load_checkpoint(result.checkpoint_path).buffer_state["replay"]["packed"]
    assert len(rows) == 60
    assert sorted({(row[0].item(), row[3].item()) for row in rows}) == [(0, 1), (1, 2), (2, 3)]
    assert rows[:, 4].sum() == 0 and rows[:, 5].sum() == 20  # never terminated, truncated twenty times


def test_a_truncated_state_is_worth_what_follows_it():
    """One state, reward 1, cut every ten steps, γ = 0.99: its value is 1/(1-γ) = 100, and 9.2 if a cut were an end."""
    collector = Collector(EnvFactory(lambda: OneState(limit=10), {}), 1, seed=0)
    replay = ReplayBuffer(1000, (1,), (), action_dtype=np.int64)
    for _ in range(100):
        step = collector.step(np.zeros(1, np.int64))
        replay.add(
            obs=step.obs, actions=np.zeros(1), rewards=step.rewards, next_obs=step.next_obs, dones=step.terminated
        )
    torch.manual_seed(0)
    agent = DQN(q_network=torch.nn.Linear(1, 1, bias=False), learning_rate=0.5, gamma=0.99, target_update_interval=1)
    for _ in range(3000):
        agent.update(replay.sample(32), global_step=0)
    assert agent.q_network(torch.ones(1, 1)).item() == pytest.approx(100, rel=0.03)


def test_ppos_critic_sees_through_truncations_too():
    """A critic that says 100 in the one-state world is right, so its advantages are zero, cuts or not."""
    from rl_training.data import RolloutBuffer

    rollout = RolloutBuffer(30, 1, (1,))
    collector = Collector(EnvFactory(lambda: OneState(limit=10), {}), 1, seed=0)
    for _ in range(30):
        step = collector.step(np.zeros(1, np.int64))
        rollout.add(obs=step.obs, actions=0, logprobs=0, rewards=step.rewards, values=100.0, terminated=step.terminated,
                    truncated=step.truncated, final_values=100.0)  # fmt: skip
    rollout.compute_returns_and_advantages(np.array([100.0]), 0.99, 0.95)
    assert np.abs(rollout.advantages).max() < 1e-3


def test_episode_k_always_starts_from_the_same_state():
    first, _ = collect("CartPole-v1", 60)
    again, _ = collect("CartPole-v1", 60)
    other, _ = collect("CartPole-v1", 60, num_envs=2)
    assert first == again
    assert [row for i, row in enumerate(other) if i % 2 == 0] == first  # the second environment changes nothing


def test_reported_returns_are_the_environments_own():
    env_kwargs = {"wrappers": {"reward": {"scale": 0.1, "clip": 0.05}}}
    collector = Collector(EnvFactory(Counter, env_kwargs), 1, seed=0)
    rewards = [collector.step(np.zeros(1, np.int64)).rewards.item() for _ in range(3)]
    assert rewards == pytest.approx([0.05] * 3)
    assert collector.metrics() == {"episode_return": 3.0, "episode_length": 3.0, "episodes": 1.0}


BOX = gym.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)


def test_boxes_are_mapped_from_minus_one_one_to_the_environments_units_and_clipped():
    spaces = Spaces.of(Counter(actions=BOX))
    actions = np.array([[-1, -1], [1, 1], [0, 0.5], [5, -5]], np.float32)
    assert spaces.to_env(actions).tolist() == [[-2, 0], [2, 10], [0, 7.5], [2, 0]]
    assert spaces.to_env(actions).dtype == np.float64
    assert spaces.from_env(spaces.to_env(actions[:3])) == pytest.approx(actions[:3])


def test_dimensions_without_bounds_keep_their_units():
    space = gym.spaces.Box(np.array([-np.inf, -3.0]), np.array([np.inf, 3.0]), dtype=np.float32)
    spaces = Spaces.of(Counter(actions=space))
    assert spaces.unbounded
    assert spaces.to_env(np.array([[7.0, 7.0]], np.float32)).tolist() == [[7.0, 3.0]]


def test_bounds_too_wide_to_be_a_scale_count_as_none():
    """Half a width of 100,000 is the limit: rotors turn 20,000 times a minute, and 1e6 or a float's largest number mean 'any'."""
    largest = float(np.finfo(np.float32).max)
    low, high = np.array([-largest, -1e6, 0.0, 0.0]), np.array([largest, 1e6, 2e4, 1e6])
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))))
    assert spaces.unbounded
    given = np.array([[0.5, -0.5, 1.0, -1.0], [7.0, 7.0, 0.0, 1.0]], np.float32)
    assert spaces.to_env(given).tolist() == [[0.5, -0.5, 2e4, 0.0], [7.0, 7.0, 1e4, 1.0]]
    assert spaces.from_env(spaces.to_env(given))[:, :3] == pytest.approx(given[:, :3])
    assert not Spaces.of(Counter(actions=gym.spaces.Box(-2e4, 2e4, (1,)))).unbounded


def test_actions_are_not_all_clipped_to_the_one_bound_that_there_is():
    space = gym.spaces.Box(np.array([5.0, -np.inf]), np.array([np.inf, -3.0]), dtype=np.float64)
    spaces = Spaces.of(Counter(actions=space))
    assert spaces.unbounded
    assert spaces.to_env(np.array([[-1.0, 1.0], [1.0, -1.0]])).tolist() == [[5.0, -3.0], [7.0, -5.0]]


def test_actions_keep_their_units_where_the_one_bound_lies_within_them():
    space = gym.spaces.Box(np.array([-np.inf, -0.5]), np.array([0.5, np.inf]), dtype=np.float64)
    spaces = Spaces.of(Counter(actions=space))
    assert spaces.to_env(np.array([[-1.0, 1.0], [0.25, -0.25]])).tolist() == [[-1.0, 1.0], [0.25, -0.25]]


def test_an_action_that_is_not_finite_is_the_agents_fault_and_reaches_no_environment():
    class Taken(Counter):
        actions: list = []

        def step(self, action):
            Taken.actions.append(action)
            return super().step(action)

    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    collector = Collector(EnvFactory(lambda: Taken(actions=box), {}), 1, seed=0)
    with pytest.raises(EnvironmentFailure, match="the agent's action is not finite at step 0"):
        collector.step(np.array([[np.nan]], np.float32))
    assert not Taken.actions


def test_a_dimension_of_no_width_is_constant():
    space = gym.spaces.Box(np.array([2.0, -1.0]), np.array([2.0, 1.0]), dtype=np.float32)
    spaces = Spaces.of(Counter(actions=space))
    given = np.array([[0.7, 0.5]], np.float32)
    assert spaces.to_env(given).tolist() == [[2.0, 0.5]] and not spaces.unbounded
    assert spaces.from_env(spaces.to_env(given)).tolist() == [[0.0, 0.5]]


def test_a_multi_discrete_space_may_start_anywhere():
    space = gym.spaces.MultiDiscrete([2, 3], start=[5, -1])
    spaces = Spaces.of(Counter(actions=space))
    assert spaces.to_env(np.array([[0, 0], [1, 2]])).tolist() == [[5, -1], [6, 1]]
    assert spaces.from_env(np.array([[5, -1], [6, 1]])).tolist() == [[0, 0], [1, 2]]
    rng = np.random.default_rng(0)
    assert all(space.contains(action) for action in spaces.to_env(spaces.random_actions(rng, 50)))


@pytest.mark.parametrize("algo", ["ppo", "ppg", "bc"])
def test_actions_that_start_elsewhere_and_constant_ones_are_learned(tiny, algo):
    from rl_training.api import algorithms

    narrow = gym.spaces.Box(np.array([2.0, -1.0]), np.array([2.0, 1.0]), dtype=np.float32)
    for actions in (gym.spaces.MultiDiscrete([2, 3], start=[5, -1]), narrow):
        gym.register("Own-v0", entry_point=lambda actions=actions: Counter(limit=9, actions=actions))
        try:
            agent = getattr(algorithms, algo.upper())(tiny(algo, env_id="Own-v0", total_timesteps=64))
            assert agent.learn().metrics["eval_length_mean"] == 9  # the environment itself checks every action
            assert actions.contains(np.asarray(agent.predict([0.0]), actions.dtype))
        finally:
            gym.registry.pop("Own-v0")


def test_a_discrete_space_may_start_anywhere():
    spaces = Spaces.of(Counter(actions=gym.spaces.Discrete(3, start=-1)))
    assert spaces.to_env(np.array([0, 2])) == [-1, 1]
    assert spaces.from_env(np.array([-1, 1])).tolist() == [0, 2]


@pytest.mark.parametrize(
    "actions",
    [gym.spaces.Discrete(3, start=2), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(3), BOX,
     gym.spaces.Box(-1, 1, (2, 2), np.float32)],
)  # fmt: skip
def test_ppo_acts_in_every_action_space(tiny, actions):
    from rl_training import PPO

    agent = PPO(tiny("ppo", total_timesteps=64), env=lambda: Counter(actions=actions))
    agent.learn()  # the environment itself checks every action
    action = agent.predict([0.0])
    assert actions.contains(action if isinstance(action, int) else np.asarray(action, actions.dtype))


def test_dict_observations_are_flattened():
    env = EnvFactory(DictCounter, {}).make(training=True)
    assert Spaces.of(env).obs_shape == (4,)
    assert env.reset(seed=0)[0].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("shape", [(48, 48, 3), (3, 48, 48)])
def test_images_reach_the_networks_channel_first(shape):
    collector = Collector(EnvFactory(lambda: ImageEnv(shape), {}), 1, seed=0)
    assert collector.obs.shape == (1, 3, 48, 48) and collector.obs.dtype == np.uint8


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_learning_from_images(tiny, algo):
    from rl_training.api import algorithms

    agent = getattr(algorithms, algo.upper())(tiny(algo, total_timesteps=64, hidden_sizes=[16]), env=ImageEnv)
    agent.learn()
    assert agent.predict(np.zeros((48, 48, 3), np.uint8)) in (0, 1)


def test_frames_are_stacked_oldest_first():
    env = FrameStack(Counter(), 3)
    assert env.reset(seed=0)[0].tolist() == [0, 0, 0]
    env.step(0)
    assert env.step(0)[0].tolist() == [0, 1, 2]
    images = FrameStack(ImageEnv((3, 48, 48)), 2)
    assert images.observation_space.shape == (6, 48, 48)


def test_frames_that_would_be_read_another_way_side_by_side_are_refused():
    assert FrameStack(ImageEnv((8, 8, 4)), 2).observation_space.shape == (8, 8, 8)
    with pytest.raises(
        ValueError, match=r"2 images of \(8, 6, 4\) side by side cannot be told from others of \(8, 6, 8\)"
    ):
        FrameStack(ImageEnv((8, 6, 4)), 2)


def test_area_resize_averages():
    assert area_weights(4, 2).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    assert area_weights(3, 2).sum(1) == pytest.approx([1, 1])
    image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    assert AreaResize((4, 4), (2, 2))(image).tolist() == [[[3, 5], [11, 13]]]  # 2.5, 4.5, 10.5, 12.5 rounded


def test_pixels_replace_observations():
    factory = EnvFactory("CartPole-v1", {"wrappers": {"pixels": {"resize_shape": [40, 60], "frame_stack": 2}}})
    env = factory.make(training=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 40, 60) and obs.dtype == np.uint8 and obs.min() < 100 < obs.max()
    env.close()


def test_atari_observations_are_four_grey_squares():
    pytest.importorskip("ale_py")
    env = EnvFactory("ALE/Breakout-v5", {"wrappers": {"atari": {"noop_max": 5}}}).make(training=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4, 84, 84) and obs.dtype == np.uint8
    env.close()


def test_atari_observations_in_colour_are_the_screen_made_smaller():
    pytest.importorskip("ale_py")
    atari = {"noop_max": 0, "frame_skip": 1, "frame_stack": 1, "screen_size": 64, "grayscale": False}
    env = EnvFactory("ALE/Boxing-v5", {"wrappers": {"atari": atari}}).make(training=True)
    obs, _ = env.reset(seed=0)
    screen = np.moveaxis(env.unwrapped.ale.getScreenRGB().astype(float), -1, 0)
    assert obs.shape == (3, 64, 64) and env.observation_space.contains(obs)
    assert np.allclose(obs.mean((1, 2)), screen.mean((1, 2)), atol=1.0)  # channel by channel
    assert np.ptp(obs.mean((1, 2))) > 5  # which differ: Boxing's ring is green
    env.close()


def test_training_and_evaluation_have_settings_of_their_own():
    factory = EnvFactory("CartPole-v1", {"max_episode_steps": 7, "evaluation": {"max_episode_steps": 9}})
    assert factory.make(training=True).spec.max_episode_steps == 7
    assert factory.make(training=False).spec.max_episode_steps == 9


@pytest.mark.parametrize(
    ("env_kwargs", "message"),
    [
        ({"wrappers": {"pixel": {}}}, "env_kwargs.wrappers.pixel: unknown option of wrappers; did you mean 'pixels'"),
        (
            {"wrappers": {"atari": {"frameskip": 3}}},
            "env_kwargs.wrappers.atari.frameskip: unknown option.*'frame_skip'",
        ),
        ({"max_episode_steps": 0}, "env_kwargs.max_episode_steps: should be greater than or equal to 1"),
        (
            {"training": {"wrappers": {"reward": {"clip": -1}}}},
            "env_kwargs.wrappers.reward.clip: should be greater than 0",
        ),
    ],
)
def test_mistakes_in_env_kwargs_are_named(env_kwargs, message):
    with pytest.raises(ConfigError, match=message):
        EnvFactory("CartPole-v1", env_kwargs).make(training=True)


def test_an_unknown_environment_is_one_clear_line():
    with pytest.raises(ValueError, match="cannot make the environment 'CartPol-v1'"):
        EnvFactory("CartPol-v1", {}).make(training=True)


def test_mixed_sources_give_exact_counts_in_every_slice():
    sources = [ReplayBuffer(10, (1,), rng=Rng(0, str(i))) for i in range(2)]
    for value, source in enumerate(sources):
        for _ in range(5):
            source.add(obs=[float(value)], actions=0, rewards=0, next_obs=[0.0], dones=0)
    rows = Mixed((sources[0], 0.5), (sources[1], 0.5)).sample(64)["obs"][:, 0]
    assert [part.sum().item() for part in rows.split(16)] == [8.0] * 4
    assert Mixed((sources[0], 0.05), (sources[1], 0.95)).counts(256) == [12, 244]


def test_the_ring_keeps_the_newest_and_survives_a_round_trip():
    replay = ReplayBuffer(4, (1,), (2,))
    for value in range(6):
        replay.add(obs=np.array([[value]]), actions=np.array([[value, -value]]), rewards=np.array([value]),
                   next_obs=np.array([[value + 1]]), dones=np.array([value % 2]))  # fmt: skip
    assert sorted(replay.rows(np.arange(4))["obs"][:, 0].tolist()) == [2, 3, 4, 5]
    copy = ReplayBuffer(4, (1,), (2,))
    copy.load_state_dict(replay.state_dict())
    a, b = replay.sample(32), copy.sample(32)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (a["next_obs"] - a["obs"] == 1).all() and (a["actions"][:, 0] == a["rewards"]).all()


def test_many_rows_wrap_around():
    replay = ReplayBuffer(5, (1,))
    column = np.arange(12.0)
    for part in np.split(column, 3):
        replay.add(obs=part[:, None], actions=part, rewards=part, next_obs=part[:, None], dones=np.zeros(4))
    assert sorted(replay.rows(np.arange(5))["rewards"].tolist()) == [7, 8, 9, 10, 11]


def test_two_samples_do_not_share_memory_unless_requested():
    for reuse in (False, True):
        replay = ReplayBuffer(50, (1,), reuse=reuse)
        replay.add(
            obs=np.arange(50.0)[:, None],
            actions=np.zeros(50),
            rewards=np.zeros(50),
            next_obs=np.zeros((50, 1)),
            dones=np.zeros(50),
        )
        first = replay.sample(8)["obs"]
        kept = first.clone()
        replay.sample(8)
        assert torch.equal(first, kept) == (not reuse)


def test_an_empty_buffer_says_so():
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(5, (1,)).sample(1)


def test_actions_of_double_precision_stay_within_their_bounds():
    box = gym.spaces.Box(-0.1, 0.1, (1,), np.float64)  # 0.1 in single precision is more than 0.1
    spaces = Spaces.of(Counter(actions=box))
    for action in (-1.0, 1.0):
        assert box.contains(spaces.to_env(np.array([[action]], np.float32))[0])


def test_boxes_open_on_one_side_keep_their_bound():
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(np.array([0.0]), np.array([np.inf]), dtype=np.float64)))
    assert spaces.to_env(np.array([[-0.7], [3.0]], np.float32)).tolist() == [[0.0], [3.0]]
