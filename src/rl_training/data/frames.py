"""Images stored once, however many observations show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.saved import Saved, StateError

__all__ = ["FrameStore", "from_frame_ring"]

# in place of a row's number: the frame is not needed, or transitions that are not rows yet will show it
FREE, RETAINED = -1, np.iinfo(np.int64).max


class FrameStore:
    """Places for single frames (uint8). An observation of ``stack`` frames is the places of that many.

    Consecutive observations share frames: the next observation of one transition is the observation of the following
    one, and a stack repeats all but its newest frame. Sharing is found by content, so it can never be wrong; where
    nothing is shared, every frame is simply stored.

    Rows that show frames are numbered in the order in which they are stored, and leave in that order. The newest row
    that shows a frame is stored with it, and its place is free again once that row has left: however old the frame is,
    and whatever other environments have stored since. A frame that no row shows yet is retained until one does.
    """

    def __init__(self, capacity: int, obs_shape: tuple[int, ...], stack: int = 1, *, reuse: bool = False) -> None:
        if obs_shape[0] % stack:
            raise ValueError(f"{obs_shape[0]} channels are not {stack} frames of equal depth")
        self.capacity, self.stack, self.count = capacity, stack, 0  # places, frames per observation, frames ever stored
        self._obs_shape = tuple(obs_shape)
        self._data = np.zeros((capacity, int(np.prod(obs_shape)) // stack), np.uint8)
        self._newest_row = np.full(capacity, FREE, np.int64)
        self._grown = 0  # places beyond those it was made with
        self._touched = 0  # places that have ever been used: the first ones
        self._free: list[int] = []  # those of them that are free; the last one is used next, while it is in the cache
        self._last: dict[int, np.ndarray] = {}  # per stream, the places of its newest observation's frames
        self._abandoned: list[np.ndarray] = []  # retained frames of observations with which no next transition began
        self._reuse, self._out = reuse, {}  # type: bool, dict[str, np.ndarray]

    @property
    def room(self) -> int:
        """How many frames can be stored before rows have to leave."""
        return len(self._free) + self.capacity - self._touched

    def add_transition(self, stream: int, obs: np.ndarray, next_obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store both observations of a stream's next transition; returns the places of their frames."""
        now, then = self._frames(obs), self._frames(next_obs)
        before = self._shared_or_new(stream, now)
        if (now[1:] == then[:-1]).all():  # as almost always, one frame is new
            after = np.empty_like(before)
            after[:-1] = before[1:]
            after[-1] = before[-1] if (now[-1] == then[-1]).all() else self._new(then[-1])
        else:
            after = self._put(then, [*before[1:].tolist(), None])
        self._newest_row[before] = RETAINED
        self._newest_row[after] = RETAINED
        self._last[stream] = after
        return before, after

    def add_observation(self, stream: int, obs: np.ndarray) -> np.ndarray:
        """Store an observation, which a stream's last transition may have led to; returns the places of its frames."""
        places = self._shared_or_new(stream, self._frames(obs))
        self._newest_row[places] = RETAINED
        return places

    def _shared_or_new(self, stream: int, frames: np.ndarray) -> np.ndarray:
        last = self._last.get(stream)
        if last is not None:
            rows = self._newest_row[last].tolist()
            if FREE not in rows and (self._data[last] == frames).all():
                return last
            if RETAINED in rows:
                self._abandoned.append(last)
        return self._put(frames, [None] * self.stack)

    def assign(self, places: np.ndarray, rows: np.ndarray) -> None:
        """The rows numbered ``rows`` (B,), newer than all before, show the frames at ``places`` (B, k)."""
        self._newest_row[places.reshape(-1)] = rows.repeat(places.shape[1])  # of equal places, the last one counts

    def retain(self, places: list[np.ndarray]) -> None:
        """Keep the frames at ``places``, which rows to come will show, whatever older rows show them."""
        if places:
            self._newest_row[np.concatenate(places)] = RETAINED
        if self._abandoned:
            needed = {place for array in places for place in array.tolist()}
            unused = np.concatenate(self._abandoned)
            unused = unused[self._newest_row[unused] == RETAINED]
            self._free_places([place for place in dict.fromkeys(unused.tolist()) if place not in needed])
            self._abandoned = []

    def release(self, places: np.ndarray, rows: np.ndarray) -> None:
        """The rows numbered ``rows`` (B,), the oldest, have left, which showed the frames at ``places`` (B, k)."""
        flat = places.reshape(-1)
        unused = flat[self._newest_row[flat] == rows.repeat(places.shape[1])]
        self._free_places(list(dict.fromkeys(unused.tolist())))

    def grow(self, frames: int) -> None:
        """Make places for so many more."""
        self._data = np.concatenate([self._data, np.zeros((frames, self._data.shape[1]), np.uint8)])
        self._newest_row = np.concatenate([self._newest_row, np.full(frames, FREE, np.int64)])
        self.capacity += frames
        self._grown += frames

    def take(self, places: np.ndarray, name: str) -> torch.Tensor:
        """Observations (B, C, H, W) from the places of their frames (B, stack)."""
        out = self._out.get(name)
        if out is None or len(out) != places.size:
            out = np.empty((places.size, self._data.shape[1]), np.uint8)
            if self._reuse:
                self._out[name] = out
        np.take(self._data, places.reshape(-1), axis=0, out=out, mode="clip")
        return torch.from_numpy(out.reshape(len(places), *self._obs_shape))

    def _frames(self, obs: np.ndarray) -> np.ndarray:
        return np.asarray(obs, np.uint8).reshape(self.stack, -1)

    def _put(self, frames: np.ndarray, candidates: list[Any]) -> np.ndarray:
        """Places of the frames: a candidate's or the previous frame's where the content is the same, else new ones."""
        places: list[int] = []
        for j, frame in enumerate(frames):
            for known in (candidates[j], places[-1] if j else None):
                if known is not None and (self._data[known] == frame).all():
                    places.append(known)
                    break
            else:
                places.append(self._new(frame))
        return np.array(places)

    def _new(self, frame: np.ndarray) -> int:
        """The place of a frame that is stored now."""
        self.count += 1
        if self._free:
            place = self._free.pop()
        else:
            place = self._touched
            self._touched += 1
        self._data[place] = frame
        return place

    def _free_places(self, places: list[int]) -> None:
        for place in places:
            self._newest_row[place] = FREE
        self._free += places

    def state_dict(self) -> dict[str, Any]:
        return {
            "data": torch.from_numpy(self._data[: self._touched]),
            "count": self.count,
            "free": torch.tensor(self._free, dtype=torch.int64),
            "grown": self._grown,
            "streams": list(self._last),
            "last": torch.from_numpy(np.array(list(self._last.values()), np.int64).reshape(-1, self.stack)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load everything but which rows show which frames, which ``assign`` and ``retain`` must then repeat. Without a
        list of free places, those that neither of them names are free."""
        saved = Saved(state, ("data", "count", "free", "grown", "streams", "last"))
        data = saved.array("data", np.uint8, (None, self._data.shape[1]))
        grown = saved.count("grown", most=len(data) + 2 * self.stack)  # places are added when nearly all are in use
        free = None if saved["free"] is None else saved.indices("free", (None,), len(data)).tolist()
        if free is not None and len(set(free)) < len(free):
            raise StateError("holds a place twice", "free")
        streams = saved.counts("streams")
        last = saved.indices("last", (len(streams), self.stack), len(data))
        count = saved.count("count")

        self.grow(max(grown - self._grown, len(data) - self.capacity, 0))
        self._data[: len(data)] = data
        self.count, self._touched = count, len(data)
        self._free = [] if free is None else free
        self._abandoned = [np.arange(len(data))] if free is None else []
        self._newest_row[:] = FREE
        self._newest_row[: len(data)] = RETAINED
        self._newest_row[self._free] = FREE
        self._last = dict(zip(streams, last.copy()))

    def require_places(self, places: np.ndarray) -> None:
        """Refuse, in a state that is being loaded, numbers that are not places of frames."""
        if places.dtype.kind not in "iu" or (places.size and not 0 <= places.min() <= places.max() < self._touched):
            raise StateError("rows show frames that are not there")


def from_frame_ring(state: dict[str, Any]) -> dict[str, Any]:
    """A replay buffer's state from when frames lay in one ring, in the order of their numbers, in the present form.
    Rows that show frames which had been overwritten are left out."""
    frames, size, written = state["frames"], state["size"], state["written"]
    length = max(1, len(frames["data"]))
    oldest = frames["count"] - length
    rows = np.arange(written - size, written) % max(1, len(state["packed"]))
    gone = np.flatnonzero(state["oldest_frame"].numpy()[rows] < oldest)
    size -= int(gone[-1]) + 1 if len(gone) else 0
    kept = {
        stream: last % length for stream, last in zip(frames["streams"], frames["last"]) if int(last.min()) >= oldest
    }
    last = torch.stack(list(kept.values())) if kept else frames["last"][:0]
    moved = {**frames, "free": None, "grown": 0, "streams": list(kept), "last": last}
    kept_parts = {name: value for name, value in state.items() if name != "oldest_frame"}
    state = {**kept_parts, "frames": moved, "size": size}
    if "obs" in state.get("window", {}):
        state["window"] = {**state["window"], "obs": state["window"]["obs"] % length}
    return state
