"""Environments for agents with a memory."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class Ragged(gym.Env):
    """Episodes of one to five steps, drawn from the seed, of which every other one is truncated and not terminated."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, actions: gym.Space | None = None) -> None:
        self.action_space = actions if actions is not None else gym.spaces.Discrete(3)

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.drift, self.np_random.normal()], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.drift = 0, 0.0
        self.length, self.cut = self.np_random.integers(1, 6), bool(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action):
        self.t, self.drift = self.t + 1, 0.5 * self.drift + float(np.sum(action))
        over = self.t >= self.length
        return self._obs(), 1.0 + self.drift, over and not self.cut, over and self.cut, {}


class Cue(gym.Env):
    """The first observation says which action will be right at the last step, ``delay`` steps later."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay

    def _obs(self) -> np.ndarray:
        return np.array([self.sign if self.t == 0 else 0, self.t == self.delay], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sign = 0, 1 - 2 * int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action):
        over, right = self.t == self.delay, (int(action) == 1) == (self.sign == 1)
        self.t = min(self.t + 1, self.delay)
        return self._obs(), float(over and right), bool(over), False, {}
