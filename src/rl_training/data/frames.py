"""Images stored once, however many observations show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class FrameStore:
    """A ring of single frames (uint8). An observation of ``stack`` frames is that many frame numbers.

    Consecutive observations share frames: the next observation of one transition is the observation of the following one,
    and a stack repeats all but its newest frame. Sharing is found by content, so it can never be wrong; where nothing is
    shared, every frame is simply stored.
    """

    def __init__(self, capacity: int, obs_shape: tuple[int, ...], stack: int = 1, *, reuse: bool = False) -> None:
        if obs_shape[0] % stack:
            raise ValueError(f"{obs_shape[0]} channels are not {stack} frames of equal depth")
        self.capacity, self.stack, self.count = capacity, stack, 0
        self._obs_shape = tuple(obs_shape)
        self._data = np.zeros((capacity, int(np.prod(obs_shape)) // stack), np.uint8)
        self._last: dict[int, np.ndarray] = {}  # per stream, the frames of its newest observation
        self._reuse, self._out = reuse, {}  # type: bool, dict[str, np.ndarray]

    def transition(self, stream: int, obs: np.ndarray, next_obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store one transition of a stream of them: the frame numbers of both observations."""
        now, then = self._frames(obs), self._frames(next_obs)
        before = self._last.get(stream)
        if before is None or not self._holds(before) or not np.array_equal(self._data[before % self.capacity], now):
            before = self._put(now, [None] * self.stack)
        after = self._put(then, [*before[1:], None])
        self._last[stream] = after
        return before, after

    def take(self, slots: np.ndarray, name: str) -> torch.Tensor:
        """Observations (B, C, H, W) from their frames' places in the ring (B, stack)."""
        out = self._out.get(name)
        if out is None or len(out) != slots.size:
            out = np.empty((slots.size, self._data.shape[1]), np.uint8)
            if self._reuse:
                self._out[name] = out
        np.take(self._data, slots.reshape(-1), axis=0, out=out, mode="clip")
        return torch.from_numpy(out.reshape(len(slots), *self._obs_shape))

    @property
    def oldest(self) -> int:
        """The lowest frame number that is still stored."""
        return max(0, self.count - self.capacity)

    def _frames(self, obs: np.ndarray) -> np.ndarray:
        return np.asarray(obs, np.uint8).reshape(self.stack, -1)

    def _holds(self, numbers: np.ndarray) -> bool:
        return int(numbers.min()) >= self.oldest

    def _put(self, frames: np.ndarray, candidates: list[Any]) -> np.ndarray:
        """Numbers of the frames: a candidate's or the previous frame's where the content is the same, else new ones."""
        numbers = np.empty(self.stack, np.int64)
        for j, frame in enumerate(frames):
            for known in (candidates[j], numbers[j - 1] if j else None):
                if known is not None and np.array_equal(self._data[known % self.capacity], frame):
                    numbers[j] = known
                    break
            else:
                self._data[self.count % self.capacity] = frame
                numbers[j] = self.count
                self.count += 1
        return numbers

    def state_dict(self) -> dict[str, Any]:
        return {
            "data": torch.from_numpy(self._data[: min(self.count, self.capacity)]),
            "count": self.count,
            "streams": list(self._last),
            "last": torch.from_numpy(np.array(list(self._last.values()), np.int64).reshape(-1, self.stack)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        data = state["data"].numpy()
        if len(data) > self.capacity or data.shape[1:] != self._data.shape[1:]:
            raise ValueError("stored frames do not fit: capacity and spaces must be those of the saved run")
        self._data[: len(data)] = data
        self.count = state["count"]
        self._last = dict(zip(state["streams"], state["last"].numpy().copy()))
