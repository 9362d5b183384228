"""Where goals lie in a row, and rewards under other goals by the environment's own functions."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from goal_toys import BitFlips, EndingBitFlips, Point, SinglePoint
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.factory import EnvFactory
from rl_training.envs.goals import GoalRewards, goals_in
from rl_training.envs.spaces import Spaces


def rewards_of(make, **env_kwargs):
    factory = EnvFactory(make, env_kwargs)
    return GoalRewards(factory, factory.spaces())


class Parts(Point):
    """Goals of two by one numbers, between other parts of an observation."""

    def __init__(self):
        super().__init__()
        goal, other = gym.spaces.Box(-1, 1, (2, 1), np.float64), gym.spaces.Discrete(4)
        parts = {"zeal": other, "observation": gym.spaces.Box(-1, 1, (2,)), "achieved_goal": goal, "desired_goal": goal}
        self.observation_space = gym.spaces.Dict({**parts, "bits": gym.spaces.MultiBinary(3)})

    def _result(self):
        goals = {"achieved_goal": self.here.reshape(2, 1), "desired_goal": self.goal.reshape(2, 1)}
        return {**goals, "observation": self.here + 10, "zeal": 2, "bits": np.ones(3, np.int8)}

    def near(self, achieved, desired):
        return np.linalg.norm(np.asarray(achieved) - desired, axis=(-2, -1) if np.ndim(achieved) > 1 else -1) <= 0.15


def test_the_place_of_goals_follows_from_the_space():
    """Whatever the order of the parts in the space: the row has the goals where they are said to be."""
    factory = EnvFactory(Parts, {})
    env, goals = factory.make(training=True), goals_in(factory.spaces())
    row, _ = env.reset(seed=3)
    inner = env.unwrapped
    assert np.array_equal(row[goals.achieved], np.float32(inner.here)) and np.array_equal(
        row[goals.desired], np.float32(inner.goal)
    )
    assert (goals.shape, goals.dtype) == ((2, 1), np.float64)
    assert goals.as_given(row[None, goals.desired].astype(np.float32)).shape == (1, 2, 1)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_other_environments_have_no_goals(env_id):
    factory = EnvFactory(env_id, {})
    assert goals_in(factory.spaces()) is None
    with pytest.raises(ValueError, match=f"^{env_id} is no goal environment: its observations must be a Dict with"):
        GoalRewards(factory, factory.spaces())


@pytest.mark.parametrize("wrappers", [{"keep": [0, 1, 2]}, {"frame_stack": 2}])
def test_goals_that_a_wrapper_moves_are_not_found(wrappers):
    factory = EnvFactory(Point, {"wrappers": wrappers})
    assert goals_in(factory.spaces()) is None


class Labels(Point):
    """Goals that are labels."""

    def __init__(self):
        super().__init__()
        goal = gym.spaces.Discrete(4)
        box = gym.spaces.Box(-1, 1, (2,))
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": goal, "desired_goal": goal})


class Unlike(Point):
    """Goals of two shapes."""

    def __init__(self):
        super().__init__()
        one, two = (gym.spaces.Box(-1, 1, (n,)) for n in (1, 2))
        self.observation_space = gym.spaces.Dict({"observation": two, "achieved_goal": two, "desired_goal": one})


@pytest.mark.parametrize("make", [Labels, Unlike])
def test_goals_that_are_not_two_boxes_of_one_shape_are_refused(make):
    with pytest.raises(ValueError, match="the goals two boxes of one shape"):
        rewards_of(make)


@pytest.mark.parametrize("make", [BitFlips, EndingBitFlips, Point, SinglePoint, Parts])
def test_rewards_and_terminations_are_the_environments_own_on_every_row(make):
    """Hundreds of pairs of goals at once, against the environment asked for one pair after the other."""
    judge, env, rng = rewards_of(make), make(), np.random.default_rng(0)
    dim = judge.goals.achieved.stop - judge.goals.achieved.start
    bits = isinstance(env, BitFlips)
    achieved, desired = rng.integers(2, size=(2, 400, dim)) if bits else rng.uniform(-0.3, 0.3, (2, 400, dim))
    desired[::3] = achieved[::3]
    rewards, terminated = judge(achieved.astype(np.float32), desired.astype(np.float32))
    pairs = list(zip(*(judge.goals.as_given(rows.astype(np.float32)) for rows in (achieved, desired))))
    assert rewards.tolist() == [env.compute_reward(*pair, {}) for pair in pairs] and rewards.dtype == np.float32
    assert 0 < (rewards == 0).sum() < 400
    if make is EndingBitFlips:
        assert terminated.tolist() == [bool(env.compute_terminated(*pair, {})) for pair in pairs]
    else:
        assert terminated is None
    judge.close()


def test_functions_that_take_one_goal_at_a_time_are_found_out_once():
    calls = []

    class Counting(SinglePoint):
        def compute_reward(self, achieved_goal, desired_goal, info):
            calls.append(np.shape(achieved_goal))
            assert info == {}
            return super().compute_reward(achieved_goal, desired_goal, info)

        def compute_terminated(self, achieved_goal, desired_goal, info):
            return False  # as the robots of gymnasium-robotics do, of arrays too

    judge = rewards_of(Counting)
    assert judge.by_row == ("compute_reward", "compute_terminated")
    assert calls.count((12, 2)) == 1  # three pairings of four steps
    calls.clear()
    rewards, terminated = judge(np.zeros((5, 2), np.float32), np.full((5, 2), [0.2, 0.0], np.float32))
    assert calls == [(2,)] * 5 and rewards.tolist() == [-1.0] * 5 and terminated.tolist() == [False] * 5
    assert rewards_of(Point).by_row == rewards_of(EndingBitFlips).by_row == ()


def test_an_answer_of_the_right_length_that_is_not_each_rows_own_is_found_out():
    class First(Point):
        def compute_reward(self, achieved_goal, desired_goal, info):
            if np.ndim(achieved_goal) > 1:  # all are paid as the first one is
                return np.full(len(achieved_goal), self.compute_reward(achieved_goal[0], desired_goal[0], info))
            return super().compute_reward(achieved_goal, desired_goal, info)

    assert rewards_of(First).by_row == ("compute_reward",)


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("FetchFlight-v9", r"doesn't exist\.; gymnasium-robotics has it as gymnasium_robotics:FetchFlight-v9$"),
        (
            "gymnasium_robotics:CartPole-v1",
            r"; pip install 'rl_training\[robotics\]' brings these robots, and a MuJoCo",
        ),
        ("Fetched:CartPole-v1", r"there is no module 'Fetched'; looked in [^;]*$"),
        ("Walking-v9", r"Environment `Walking` doesn't exist[^;]*$"),
    ],
)
def test_robots_that_cannot_be_made_are_told_where_they_are(env_id, hint, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)  # as if it were not installed
    with pytest.raises(ValueError, match=f"^cannot make the environment '{env_id}': .*{hint}"):
        EnvFactory(env_id, {}).make(training=True)


def test_functions_of_wrappers_count():
    class Doubled(gym.Wrapper):
        def step(self, action):
            obs, reward, *rest = self.env.step(action)
            return obs, 2 * reward, *rest

        def compute_reward(self, *arguments):
            return 2 * self.env.unwrapped.compute_reward(*arguments)

    rewards, _ = rewards_of(lambda: Doubled(Point()))(np.zeros((1, 2)), np.ones((1, 2)))
    assert rewards.tolist() == [-2.0]


def test_steps_that_are_paid_otherwise_are_mentioned():
    make = lambda: gym.wrappers.TransformReward(Point(), lambda reward: reward - 5)  # noqa: E731
    with pytest.warns(UserWarning, match="was paid -6, and its compute_reward gives -1 for the same goals"):
        rewards_of(make)


class Needs(Point):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return 0.0 if self.t == 0 else info["fuel"]

    def step(self, action):
        self.t, self.here = self.t + 1, self.here + action
        return self._result(), 0.0, False, self.t >= 9, {}


class Nameless(Needs):
    compute_reward = property()  # as if there were none


class Endless(Point):
    def compute_reward(self, achieved_goal, desired_goal, info):
        near = self.near(achieved_goal, desired_goal)
        return np.where(near, np.inf, -1.0) if np.ndim(achieved_goal) > 1 else float(np.inf if near else -1)


class Wordy(Point):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return "good"

    def step(self, action):
        return self._result(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Needs, r"Needs raised KeyError: 'fuel' in compute_reward, given goals and an empty info"),
        (Nameless, r"Nameless has no compute_reward\(achieved_goal, desired_goal, info\), which hindsight needs"),
        (Endless, r"Endless: compute_reward gave a number that is not finite"),
        (Wordy, r"Wordy: compute_reward gave a list of 12, not a number a row"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(make, words):
    with pytest.raises((ValueError, EnvironmentFailure), match=f"^{words}$"):
        rewards_of(make)


def test_goals_are_tried_out_alike_each_time_and_training_is_left_alone():
    """An environment of its own, with a seed of its own."""
    made = []

    def make():
        made.append(Point())
        return made[-1]

    spaces = Spaces.of(EnvFactory(make, {}).make(training=True))
    first, second = (GoalRewards(EnvFactory(make, {}), spaces) for _ in range(2))
    assert len(made) == 3
    assert made[1].here.tolist() == made[2].here.tolist() and first.by_row == second.by_row


@pytest.mark.parametrize("name", ["FetchReach-v4", "FetchPush-v4", "PointMaze_UMaze-v3"])
def test_robots_have_goals_and_pay_for_them(name):
    """Where gymnasium-robotics is installed: every step of an episode is paid as its goals are."""
    pytest.importorskip("gymnasium_robotics")
    factory = EnvFactory(f"gymnasium_robotics:{name}", {"max_episode_steps": 30})
    judge, env, rng = GoalRewards(factory, factory.spaces()), factory.make(training=True), np.random.default_rng(0)
    env.reset(seed=1)
    rows, paid = [], []
    for _ in range(30):
        obs, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        rows.append(obs.astype(np.float32))
        paid.append(reward)
    table, inner = np.stack(rows), env.unwrapped
    rewards, terminated = judge(table[:, judge.goals.achieved], table[:, judge.goals.desired])
    assert rewards.tolist() == paid and not terminated.any()
    rewards, _ = judge(table[:, judge.goals.achieved], table[:, judge.goals.achieved])
    assert rewards.tolist() == [inner.compute_reward(goal, goal, {}) for goal in table[:, judge.goals.achieved]]
