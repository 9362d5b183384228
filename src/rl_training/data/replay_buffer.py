"""A ring of transitions, drawn uniformly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.base.errors import enough_memory
from rl_training.base.saved import Saved, StateError, within
from rl_training.base.state import Rng
from rl_training.data.frames import from_frame_ring
from rl_training.data.layouts import Field, FrameLayout, PackedLayout, numpy_dtype, transition_fields
from rl_training.data.n_step import NStepWindow, Rows

__all__ = ["ReplayBuffer"]


class ReplayBuffer:
    """The last ``capacity`` transitions, drawn uniformly.

    ``dones`` means terminated (do not bootstrap); ``truncations`` are kept beside it. How rows lie in memory is up to a
    layout: vectors are packed into one matrix, and images (uint8) share their frames, of which an observation stacks
    ``frames``; with ``share_frames=False``, for rows that are not in time order, images are stored as they come. With
    ``n_step`` > 1, rows span up to that many steps and carry ``discounts``, the power of ``gamma`` that their bootstrap
    takes; every ``add`` is then one step of the same environments. With ``reuse``, every sample of a size fills the
    same tensors again, for loops that are done with a batch before they draw the next.
    """

    EXTRA: tuple[str, ...] = ()  # further scalars of a row
    FOREIGN: tuple[str, ...] = ("hindsight",)  # what states of other buffers have beside the same rows

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...] = (),
        device: str | torch.device = "cpu",
        obs_dtype: Any = np.float32,
        action_dtype: Any = np.float32,
        *,
        rng: Rng | None = None,
        reuse: bool = False,
        frames: int = 1,
        share_frames: bool = True,
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity, self.rng = capacity, rng if rng is not None else Rng(0, "replay")
        self._device = torch.device(device)
        self.written, self.size = 0, 0  # rows ever stored, and how many of the newest can be drawn
        self.newest: int | None = None  # draw from so many of the newest rows only; None: from all of them
        self._window = NStepWindow(n_step, gamma) if n_step > 1 else None
        obs = Field(tuple(obs_shape), numpy_dtype(obs_dtype))
        action = Field(tuple(action_shape), numpy_dtype(action_dtype))
        extra = self.EXTRA if self._window is None else (*self.EXTRA, "discounts")
        fields = transition_fields(obs, action, extra)
        images = len(obs.shape) in (1, 3) and obs.dtype == np.uint8  # or rows of parts, images among them
        layout = partial(FrameLayout, stack=frames) if images and share_frames else PackedLayout
        with enough_memory(f"a replay buffer of {capacity:,} transitions"):
            self._layout: PackedLayout = layout(capacity, fields, reuse=reuse)

    def __len__(self) -> int:
        return self.size

    @property
    def single(self) -> bool:
        """Whether every row stands for itself: a transition of one step, whose images are no other row's too."""
        return self._window is None and not isinstance(self._layout, FrameLayout)

    def add(self, *, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, truncations: Any = None) -> None:
        """Append one row or many; every value has the same leading length."""
        rewards = np.asarray(rewards)
        rows: Rows = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": dones}
        rows["truncations"] = np.zeros(rewards.shape) if truncations is None else truncations
        if rewards.ndim == 0:
            rows = {name: np.asarray(value)[None] for name, value in rows.items()}
        self._add(rows)

    def add_some(self, streams: Sequence[int], **rows: Any) -> None:
        """Append the rows of some environments, which are numbered, as ``add`` does for a step of all."""
        self._add({**rows, "streams": streams})

    def _add(self, rows: Rows) -> None:
        rows = self._layout.encode(rows, self._evict_oldest)
        complete = rows if self._window is None else self._window.push(rows)
        rows.pop("streams", None)
        if complete is not None:
            self._store(complete)

    def cut(self, ended: np.ndarray, obs: np.ndarray) -> None:
        """Truncate the environments of the last ``add`` where ``ended`` (N,) is set, which were lost at ``obs`` (N,
        ...) and begin anew: no row goes on from one episode to the other."""
        if self._window is not None:
            complete = self._window.cut(ended, self._layout.encode_final(ended, obs, self._evict_oldest))
            if complete is not None:
                self._store(complete)
            return
        columns = self._layout.columns
        for i in np.flatnonzero(ended):
            age = len(ended) - int(i)  # the newest row of environment i is the i-th of the last ones
            place = (self.written - age) % self.capacity
            if age <= self.size and not columns["dones"][place]:
                columns["truncations"][place] = 1.0

    def sample(self, n: int) -> Tensors:
        """``n`` transitions, drawn with replacement."""
        return self.rows(self._draw(n))

    def _draw(self, n: int) -> np.ndarray:
        """The places of ``n`` rows."""
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        count = self.size if self.newest is None else min(self.size, self.newest)
        index = self.rng.generator.integers(count, size=n)
        first = (self.written - count) % self.capacity
        if first and count < self.capacity:  # a full ring is drawn from as it lies
            index = (index + first) % self.capacity
        return index

    def rows(self, index: np.ndarray) -> Tensors:
        """The transitions at ``index``, as tensors on the buffer's device."""
        return to_device(self._layout.gather(index), self._device)

    def columns(self) -> dict[str, np.ndarray]:
        """Everything that can be drawn, oldest first, by name: for exports."""
        columns = self._layout.read((np.arange(self.size) + self._first) % self.capacity)
        return {name: column for name, column in columns.items() if name not in self.EXTRA}

    @property
    def _first(self) -> int:
        """The place of the oldest row that can be drawn."""
        return (self.written - self.size) % self.capacity

    def _store(self, rows: Rows) -> None:
        """Write complete transitions after the newest row; the oldest ones leave where there is no room."""
        self._layout.announce(rows, self.written, self._window)
        if self.size + len(rows["rewards"]) > self.capacity:
            rows = self._make_room(rows)
        first, n = self.written, len(rows["rewards"])
        self._layout.write(rows, first, n)
        self.written += n
        self.size += n
        self._on_rows_stored(first % self.capacity, n)

    def _make_room(self, rows: Rows) -> Rows:
        """Give up as many of the oldest rows as are needed; of more rows than places, only the newest are left."""
        n = len(rows["rewards"])
        self._evict(min(self.size, self.size + n - self.capacity))
        surplus = n - self.capacity
        if surplus <= 0:
            return rows
        self._layout.discard({name: value[:surplus] for name, value in rows.items()}, self.written)
        self.written += surplus
        return {name: value[surplus:] for name, value in rows.items()}

    def _evict(self, n: int) -> None:
        """The ``n`` oldest rows can no longer be drawn."""
        self._layout.release(self.written - self.size, n)
        self.size -= n

    def _evict_oldest(self) -> bool:
        """Give up the oldest row before another takes its place; False if there is none."""
        if self.size == 0:
            return False
        self._on_row_evicted(self._first)
        self._evict(1)
        return True

    def _on_rows_stored(self, start: int, n: int) -> None:
        """Hook: ``n`` rows have been written from place ``start`` on, around the end of the ring."""

    def _on_row_evicted(self, place: int) -> None:
        """Hook: the row at ``place`` can no longer be drawn, and no other one takes its place yet."""

    def state_dict(self) -> dict[str, Any]:
        """Only the filled part; the arrays are shared, not copied: write or copy them before adding more."""
        state = {
            **self._layout.state_dict(min(self.written, self.capacity)),
            "written": self.written,
            "size": self.size,
            "newest": self.newest,
            "rng": self.rng.state_dict(),
        }
        return state if self._window is None else {**state, "window": self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a buffer of any capacity, if its rows fit into this one."""
        layout, width = self._layout, self._layout.matrix.shape[1]
        if isinstance(state, dict) and isinstance(state.get("frames"), dict) and "free" not in state["frames"]:
            state = from_frame_ring(state)
        own = {*layout.PARTS, "written", "size", "newest", "rng"} | ({"window"} if self._window is not None else set())
        saved = Saved(state, own)
        packed = saved.array("packed", np.float32, (None, None), finite=True)
        written = saved.count("written")
        size = saved.count("size", most=min(written, len(packed)))
        if size > self.capacity or packed.shape[1] != width:
            raise StateError(
                f"a replay buffer of {self.capacity} rows of width {width} cannot take "
                f"{size} rows of width {packed.shape[1]}: capacity and spaces must be those of the saved run"
            )
        self.size, self.written, self.newest = size, written, saved.count_or_none("newest")
        layout.load_state_dict(state, *self._moved(len(packed)))
        if self._window is not None:
            with within("window"):
                stored = (layout.columns[name].shape[1:] for name in ("obs", "actions"))
                self._window.load_state_dict(saved["window"], *stored)
        layout.announce_written(written - size, size, self._window)
        with within("rng"):
            self.rng.load_state_dict(saved["rng"])

    def take_over(self, state: dict[str, Any], envs: int) -> None:
        """Begin with the rows of another run's buffer, whose ``envs`` environments do not go on; what is drawn follows
        from this buffer's own random numbers."""
        own = self.rng.state_dict()
        self.load_state_dict({name: part for name, part in state.items() if name not in self.FOREIGN})
        self.rng.load_state_dict(own)
        self.cut(np.ones(envs), self.columns()["next_obs"][-1:])

    def _moved(self, saved: int) -> tuple[Any, Any]:
        """The rows to take of the ``saved`` ones of a state, and their places: row k lies at k modulo the capacity."""
        if saved == min(self.written, self.capacity):
            return slice(saved), slice(saved)
        rows = np.arange(self.written - self.size, self.written)
        return rows % max(saved, 1), rows % self.capacity  # where fewer are saved than written, that buffer was full
