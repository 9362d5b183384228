"""Goal environments with known answers."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class GoalToy(gym.Env):
    """The parts that goal environments have in common; a subclass says where it is and how it moves."""

    terminates = False  # at the goal
    limit = 10

    def __init__(self, obs: gym.Space, goal: gym.Space, actions: gym.Space) -> None:
        self.observation_space = gym.spaces.Dict({"observation": obs, "achieved_goal": goal, "desired_goal": goal})
        self.action_space = actions

    def _result(self):
        return {"observation": self.here.copy(), "achieved_goal": self.here.copy(), "desired_goal": self.goal.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.here, self.goal = self.drawn()
        return self._result(), {}

    def step(self, action):
        self.t += 1
        self.move(action)
        there = bool(self.near(self.here, self.goal))
        reward = float(self.compute_reward(self.here, self.goal, {}))
        over = self.terminates and there
        return self._result(), reward, over, self.t >= self.limit and not over, {"is_success": there}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self.near(achieved_goal, desired_goal).astype(np.float32) - 1


class BitFlips(GoalToy):
    """Every action flips one of n bits; a step costs 1 until all bits are those of the goal (Andrychowicz et al., 2017)."""

    def __init__(self, n: int = 8) -> None:
        bits = gym.spaces.MultiBinary(n)
        super().__init__(bits, bits, gym.spaces.Discrete(n))
        self.n, self.limit = n, n

    def drawn(self):
        return self.np_random.integers(2, size=(2, self.n)).astype(np.int8)

    def move(self, action):
        self.here[action] ^= 1

    def near(self, achieved, desired):
        return (np.asarray(achieved) == desired).all(-1)


class EndingBitFlips(BitFlips):
    """The same, which terminates at the goal and says so of any goal."""

    terminates = True

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.near(achieved_goal, desired_goal)


class Point(GoalToy):
    """A point in a square that moves by at most 0.2 along each side; a step costs 1 unless the goal is within 0.15."""

    def __init__(self, limit: int = 20) -> None:
        square = gym.spaces.Box(-1, 1, (2,), np.float64)
        super().__init__(square, square, gym.spaces.Box(-0.2, 0.2, (2,), np.float32))
        self.limit = limit

    def drawn(self):
        return self.np_random.uniform(-1, 1, (2, 2))

    def move(self, action):
        self.here = np.clip(self.here + action, -1, 1)

    def near(self, achieved, desired):
        return np.linalg.norm(np.asarray(achieved) - desired, axis=-1) <= 0.15


class SinglePoint(Point):
    """A point whose ``compute_reward`` takes one goal at a time."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(achieved_goal - desired_goal)  # of arrays, over all of their numbers
        return 0.0 if distance <= 0.15 else -1.0


for kind in (BitFlips, EndingBitFlips, Point, SinglePoint):
    gym.register(f"Goal{kind.__name__}-v0", entry_point=kind, max_episode_steps=100)
