"""Environments in which some actions are forbidden, and what they saw."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

ACTIONS = 5


class Restricted(gym.Env):
    """Random observations and masks, by an info, a method or a Dict; a forbidden action raises. Pays the action that
    was taken, and a bad state for the masks pays more for what they forbid."""

    def __init__(self, where: str = "info", limit: int = 7, several: bool = False, picture: bool = False) -> None:
        self.where, self.limit, self.t = where, limit, 0
        self.sizes = (2, 3) if several else (ACTIONS,)
        self.action_space = gym.spaces.MultiDiscrete(self.sizes) if several else gym.spaces.Discrete(ACTIONS, start=2)
        vector, image = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(0, 255, (6, 6, 1), np.uint8)
        self.seen = image if picture else vector
        self.observation_space = self.seen
        if where == "dict":
            mask = gym.spaces.Box(0, 1, (ACTIONS,), np.int8)
            self.observation_space = gym.spaces.Dict({"observation": self.seen, "action_mask": mask})
        if where == "method":
            self.action_masks = lambda: self.mask

    def _answer(self) -> tuple[Any, dict[str, Any]]:
        pieces = []
        for n in self.sizes:
            piece = self.np_random.random(n) < 0.3
            piece[self.np_random.integers(n)] = True
            pieces.append(piece)
        self.mask = np.concatenate(pieces)
        space = self.seen
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32) if space.shape == (3,) else None
        obs = obs if obs is not None else self.np_random.integers(256, size=space.shape).astype(np.uint8)
        if self.where == "dict":
            return {"observation": obs, "action_mask": self.mask.astype(np.int8)}, {}
        return obs, {"action_mask": self.mask} if self.where == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._answer()

    def step(self, action):
        chosen = np.atleast_1d(action) - np.atleast_1d(getattr(self.action_space, "start", 0))
        places = chosen + np.cumsum([0, *self.sizes[:-1]])
        if not self.mask[places].all():
            raise AssertionError(f"{action} is forbidden by {self.mask}")
        self.t += 1
        obs, info = self._answer()
        over = self.t >= self.limit
        return obs, float(chosen[0]), over, False, {} if over else info  # no mask where there is no next action


class Locks(gym.Env):
    """A row of doors, each of which one key of many opens; a wrong key ends the episode, and the mask names the three
    keys at hand, of which one fits. Only with masks does an untrained agent ever see the second door."""

    KEYS, DOORS = 200, 6

    def __init__(self, masks: bool = True) -> None:
        self.masks = masks
        self.observation_space = gym.spaces.Box(0, 1, (self.DOORS,), np.float32)
        self.action_space = gym.spaces.Discrete(self.KEYS)
        self.door = 0

    def _info(self) -> dict[str, Any]:
        mask = np.zeros(self.KEYS, bool)
        mask[[(7 * self.door + k * 11) % self.KEYS for k in (1, 2, 3)]] = True
        return {"action_mask": mask} if self.masks else {}

    def _obs(self) -> np.ndarray:
        return np.eye(self.DOORS + 1, dtype=np.float32)[self.door][: self.DOORS]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.door = 0
        return self._obs(), self._info()

    def step(self, action):
        opened = action == (7 * self.door + 22) % self.KEYS
        self.door += int(opened)
        return self._obs(), float(opened), not opened or self.door == self.DOORS, False, self._info()


def rows_with_masks(parts: Any, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random rows (n, width) of vectors with masks, each of which allows something."""
    size = parts.mask.size
    allowed = rng.random((n, size)) < 0.5
    allowed[np.arange(n), rng.integers(size, size=n)] = True
    return parts.masked(rng.uniform(-1, 1, (n, parts.vector_size)).astype(np.float32), allowed)
