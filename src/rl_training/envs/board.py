"""Memory that a run shares with a worker process: actions one way; observations, rewards and ends the other."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np

from rl_training.envs.checks import BOOLEANS
from rl_training.envs.hosted import Reply
from rl_training.envs.spaces import Spaces
from rl_training.envs.watchdog import Watchdog

__all__ = ["Board", "Layout", "SharedWatchdog", "layout_of"]

Layout = tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape and type of each array
LINE = 64  # bytes of a cache line, at which each array begins


def layout_of(spaces: Spaces, num: int) -> Layout:
    """The arrays for ``num`` environments. Two rows of observations each: the newest one and the one before."""
    numbers, wide = spaces.action_kind in ("box", "joint"), np.dtype(np.int64)
    shape, dtype = (spaces.env_shape, np.dtype(spaces.env_dtype)) if numbers else (spaces.action_shape, wide)
    return (
        ("obs", (num, 2, *spaces.given_shape), spaces.obs_dtype.str),
        ("newest", (num,), "i1"),
        ("actions", (num, *shape), dtype.str),
        ("rewards", (num,), "f8"),
        ("ends", (num, 2), "i1"),  # terminated, truncated
        ("plain", (num,), "i1"),  # whether the reply lies here, and not in a message
        ("chosen", (num,), "i1"),  # whose episode is to begin
        ("began", (num,), "f8"),  # time.monotonic() of the call under way; inf: there is none
        ("at", (1,), "i8"),  # the place that is being served
    )


class Board:
    """The arrays of a layout in shared memory without a name, which is gone when the last process that has it is."""

    obs: np.ndarray
    newest: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    ends: np.ndarray
    plain: np.ndarray
    chosen: np.ndarray
    began: np.ndarray
    at: np.ndarray

    def __init__(self, layout: Layout, descriptor: int | None = None) -> None:
        """``descriptor``: of a board that another process has made; it is closed."""
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in layout]
        starts = np.cumsum([0, *(-(-size // LINE) * LINE for size in sizes)]).tolist()
        self.descriptor = _unnamed() if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, max(1, starts[-1]))
        memory = mmap.mmap(self.descriptor, max(1, starts[-1]))
        for (name, shape, dtype), start in zip(layout, starts):
            setattr(self, name, np.ndarray(shape, dtype, memory, start))
        if descriptor is None:
            self.began[:] = math.inf
        else:
            os.close(descriptor)
        self._shape, self._pictures = self.obs.shape[2:], self.obs.dtype == np.uint8

    def put_obs(self, place: int, obs: Any) -> bool:
        """Write an observation beside the one before, if it is of the kind that most are."""
        usual = isinstance(obs, np.ndarray) and obs.shape == self._shape
        if not usual or (obs.dtype != np.uint8 if self._pictures else obs.dtype.kind not in "fiub"):
            return False
        row = 1 - self.newest[place]
        self.obs[place, row] = obs
        self.newest[place] = row
        return True

    def put_step(self, place: int, reply: Reply) -> bool:
        """Write a reply of a step, if it is of the kind that most are."""
        if not (reply.ok and isinstance(reply.value, tuple) and len(reply.value) == 5):
            return False
        obs, reward, terminated, truncated, _ = reply.value
        try:
            reward = float(reward)
        except (TypeError, ValueError, OverflowError):
            return False
        if terminated.__class__ not in BOOLEANS or truncated.__class__ not in BOOLEANS or not self.put_obs(place, obs):
            return False
        self.rewards[place] = reward
        self.ends[place] = terminated, truncated
        return True

    def seen(self, place: int) -> np.ndarray:
        """The newest observation of an environment; it stays until the one after the next."""
        row: np.ndarray = self.obs[place, self.newest[place]]
        return row

    def steps(self) -> list[tuple[Any, ...]]:
        """What every environment's last step gave, but for its info."""
        rewards, ends = self.rewards.tolist(), self.ends.tolist()
        return [
            (self.obs[place, row], rewards[place], ends[place][0] != 0, ends[place][1] != 0)
            for place, row in enumerate(self.newest.tolist())
        ]


class SharedWatchdog(Watchdog):
    """Notes on a board when a call of one environment began, for the process that waits for it."""

    def __init__(self, board: Board, place: int, seconds: float) -> None:
        self._cell = board.began[place : place + 1]
        super().__init__(seconds)

    @property
    def began(self) -> float:
        return float(self._cell[0])

    @began.setter
    def began(self, time: float) -> None:
        self._cell[0] = time


def _unnamed() -> int:
    """A descriptor of memory, or where that cannot be had of a file, without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rl_training")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
