"""A ring of transitions, and batches mixed from several sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.base.batches import PackedBatch
from rl_training.base.errors import reason
from rl_training.base.state import Rng
from rl_training.data.frames import FrameStore
from rl_training.data.n_step import NStepWindow

Batch = dict[str, torch.Tensor]
EXACT = 2**24  # whole numbers up to this one are exact in float32


class Source(Protocol):
    """Anything batches can be drawn from."""

    def sample(self, n: int) -> Batch: ...


def _numpy_dtype(dtype: Any) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)


class ReplayBuffer:
    """The last ``capacity`` transitions, drawn uniformly.

    ``dones`` means terminated (do not bootstrap); ``truncations`` are kept beside it. Float columns lie side by side in one
    matrix, so a batch of vectors is a single gather. Images (uint8) are kept once each: rows hold the numbers of their frames,
    of which an observation stacks ``frames`` (not with ``share_frames=False``, for rows in no order). With ``n_step`` > 1, rows span up to that many steps and carry ``discounts``, the
    power of ``gamma`` that their bootstrap takes; every ``add`` is then one step of the same environments. With ``reuse``,
    every sample of a size fills the same tensors again: for loops that are done with a batch before they draw the next.
    """

    EXTRA: tuple[str, ...] = ()  # further columns of numbers

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
        self.written, self.size = 0, 0  # rows ever stored, and how many of the newest can be drawn
        self.newest: int | None = None  # only so many of those are drawn, if it says so
        self._reuse, self._reused = reuse, None  # type: bool, Any
        self._device = torch.device(device)
        obs, action = (tuple(obs_shape), _numpy_dtype(obs_dtype)), (tuple(action_shape), _numpy_dtype(action_dtype))
        self._frames: FrameStore | None = None
        self._window = NStepWindow(n_step, gamma) if n_step > 1 else None
        try:
            if len(obs_shape) == 3 and obs[1] == np.uint8 and share_frames:
                # an episode's first observation is a frame more than its steps: room for one in ten, and for tiny buffers
                places = capacity + capacity // 10 + 256
                if places > EXACT:
                    raise ValueError(f"a replay buffer of images holds at most {EXACT:,} of them, not {places:,}")
                self._frames = FrameStore(places, obs_shape, frames, reuse=reuse)
                obs = ((frames,), np.dtype(np.int64))
            scalar = ((), np.dtype(np.float32))
            fields = {"obs": obs, "actions": action, "rewards": scalar, "next_obs": obs}
            names = ["dones", "truncations", *self.EXTRA, *(["discounts"] if self._window else [])]
            fields |= dict.fromkeys(names, scalar)
            packed = {
                k: (s, d) for k, (s, d) in fields.items() if d == np.float32 or (d.kind in "iu" and d.itemsize == 8)
            }
            width = sum(int(np.prod(shape)) for shape, _ in packed.values())
            self._packed = np.zeros((capacity, width), np.float32)
            self._loose = {k: np.zeros((capacity, *s), d) for k, (s, d) in fields.items() if k not in packed}
        except MemoryError as error:
            raise ValueError(
                f"a replay buffer of {capacity:,} transitions does not fit into memory: {reason(error)}"
            ) from None
        self._columns: dict[str, np.ndarray] = {}
        self._views: list[tuple[str, tuple[int, ...], bool]] = []
        self._widths: list[int] = []
        start = 0
        for name, (shape, dtype) in packed.items():
            stop = start + int(np.prod(shape))
            self._columns[name] = (
                self._packed[:, start:stop].reshape(capacity, *shape) if shape else self._packed[:, start]
            )
            self._views.append((name, shape, dtype != np.float32))  # whole numbers up to EXACT
            self._widths.append(stop - start)
            start = stop
        self._columns.update(self._loose)
        self._unpack = _unpacker(self._views, self._widths)

    def __len__(self) -> int:
        return self.size

    def add(self, *, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, truncations: Any = None) -> None:
        """Append one row or many; every value has the same leading length."""
        rewards = np.asarray(rewards)
        rows = {
            "obs": obs,
            "actions": actions,
            "rewards": rewards,
            "next_obs": next_obs,
            "dones": dones,
            "truncations": np.zeros(rewards.shape) if truncations is None else truncations,
        }
        if rewards.ndim == 0:
            rows = {name: np.asarray(value)[None] for name, value in rows.items()}
        n = len(rows["rewards"])
        if self._frames is not None:
            places = []
            for i in range(n):
                if self._frames.room < 2 * self._frames.stack:
                    self._make_room(self._frames)
                places.append(self._frames.transition(i, rows["obs"][i], rows["next_obs"][i]))
            rows["obs"], rows["next_obs"] = (np.stack(part) for part in zip(*places))
        complete = rows if self._window is None else self._window.push(rows)
        if complete is not None:
            self._write(complete, len(complete["rewards"]))

    def cut(self, ended: np.ndarray, obs: np.ndarray) -> None:
        """Of the environments of the last ``add``, those where ``ended`` (N,) is set were lost at ``obs`` (N, ...), and begin anew:
        as a truncation, so that no row goes on from one episode to the other."""
        if self._window is not None:
            last: Any = obs
            if self._frames is not None:
                last = np.zeros((len(ended), self._frames.stack), np.int64)
                for i in np.flatnonzero(ended):
                    if self._frames.room < self._frames.stack:
                        self._make_room(self._frames)
                    last[i] = self._frames.observation(int(i), obs[i])
            complete = self._window.cut(ended, last)
            if complete is not None:
                self._write(complete, len(complete["rewards"]))
            return
        for i in np.flatnonzero(ended):
            age = len(ended) - int(i)  # the newest row of environment i is the i-th of the last ones
            place = (self.written - age) % self.capacity
            if age <= self.size and not self._columns["dones"][place]:
                self._columns["truncations"][place] = 1.0

    def _write(self, rows: dict[str, Any], n: int) -> None:
        frames = self._frames
        if frames is not None:
            places = np.concatenate([rows["obs"], rows["next_obs"]], 1)
            numbers = np.arange(self.written, self.written + n)
            frames.store(places, numbers)
            frames.hold([] if self._window is None else self._window.open_obs())
            if self.size + n > self.capacity:
                self._leave(frames, min(self.size, self.size + n - self.capacity))
            if n > self.capacity:
                frames.leave(places[: -self.capacity], numbers[: -self.capacity])
        if n > self.capacity:
            rows = {name: value[-self.capacity :] for name, value in rows.items()}
            self.written += n - self.capacity
            n = self.capacity
        start = self.written % self.capacity
        where: Any = slice(start, start + n)
        if start + n > self.capacity:
            where = np.arange(start, start + n) % self.capacity
        for name, column in self._columns.items():
            if name in rows:
                column[where] = rows[name]
        self.written += n
        self.size = min(self.size + n, self.capacity)
        self._stored(start, n)

    def _make_room(self, frames: FrameStore) -> None:
        """Let the oldest rows go until the frames of a transition fit; grow if even none of them is enough."""
        wanted = 2 * frames.stack
        while frames.room < wanted and self.size:
            self._forgotten(self._first)
            self._leave(frames, 1)
        frames.grow(max(0, wanted - frames.room))

    def _leave(self, frames: FrameStore, n: int) -> None:
        """The ``n`` oldest rows can no longer be drawn, and need no frames any more."""
        oldest = self.written - self.size
        where: Any = slice(oldest % self.capacity, oldest % self.capacity + n)
        if where.stop > self.capacity:
            where = np.arange(where.start, where.stop) % self.capacity
        places = np.concatenate([self._columns["obs"][where], self._columns["next_obs"][where]], 1)
        frames.leave(places.astype(np.int64), np.arange(oldest, oldest + n))
        self.size -= n

    @property
    def _first(self) -> int:
        """The place of the oldest row that can be drawn."""
        return (self.written - self.size) % self.capacity

    def _stored(self, start: int, n: int) -> None:
        """Hook: ``n`` rows have been written from ``start`` on, around the end of the ring."""

    def _forgotten(self, place: int) -> None:
        """Hook: the row at ``place`` can no longer be drawn, and no other one takes its place yet."""

    def sample(self, n: int) -> Batch:
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        if self.newest is not None and self.newest < self.size:
            index = self.rng.generator.integers(self.newest, size=n)
            return self.rows((index + self.written - self.newest) % self.capacity)
        index = self.rng.generator.integers(self.size, size=n)
        if self.size < self.capacity:
            first = self._first
            if first:  # elsewhere, the rows that can be drawn are the first ones, or all
                index = (index + first) % self.capacity
        return self.rows(index)

    def rows(self, index: np.ndarray) -> Batch:
        """The transitions at ``index``, as tensors on the buffer's device."""
        gathered, matrix, views, integers = self._batch(len(index))
        np.take(self._packed, index, axis=0, out=gathered, mode="clip")  # "clip" writes straight into ``out``
        for source, target in integers:
            np.copyto(target, source, casting="unsafe")
        if not self._loose and self._frames is None and self._device.type == "cpu":
            return PackedBatch(views, matrix, self._unpack)
        batch = {**views, **{name: torch.from_numpy(array[index]) for name, array in self._loose.items()}}
        if self._frames is not None:
            batch |= {name: self._frames.take(views[name].numpy(), name) for name in ("obs", "next_obs")}
        return {name: tensor.to(self._device) for name, tensor in batch.items()}

    def columns(self) -> dict[str, np.ndarray]:
        """Everything that can be drawn, oldest first, by name: for exports."""
        index = (np.arange(self.size) + self._first) % self.capacity
        columns = {name: column[index] for name, column in self._columns.items() if name not in self.EXTRA}
        columns |= {name: columns[name].astype(np.int64) for name, _, integer in self._views if integer}
        if self._frames is not None:
            columns |= {name: self._frames.take(columns[name], name).numpy().copy() for name in ("obs", "next_obs")}
        return columns

    def _batch(self, n: int) -> tuple[np.ndarray, torch.Tensor, Batch, list[tuple[np.ndarray, np.ndarray]]]:
        """Room for ``n`` rows: the matrix they are gathered into (twice: as array and tensor), its columns by name, and integer copies to fill from it."""
        if self._reused is not None and len(self._reused[0]) == n:
            return self._reused
        gathered = np.empty((n, self._packed.shape[1]), np.float32)
        matrix = torch.from_numpy(gathered)
        views: Batch = self._unpack(matrix)
        floats = self._unpack(matrix, integers=False)
        integers = [(floats[name].numpy(), views[name].numpy()) for name in views if views[name].dtype == torch.int64]
        if self._reuse:
            self._reused = (gathered, matrix, views, integers)
        return gathered, matrix, views, integers

    def state_dict(self) -> dict[str, Any]:
        """Only the filled part; the arrays are shared, not copied: write or copy them before adding more."""
        filled = min(self.written, self.capacity)
        state = {
            "packed": torch.from_numpy(self._packed[:filled]),
            "loose": {name: torch.from_numpy(array[:filled]) for name, array in self._loose.items()},
            "written": self.written,
            "size": self.size,
            "newest": self.newest,
            "rng": self.rng.state_dict(),
        }
        if self._frames is not None:
            state["frames"] = self._frames.state_dict()
        return state if self._window is None else {**state, "window": self._window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a buffer of any capacity, if what it holds fits into this one."""
        saved, width = state["packed"].shape
        if state["size"] > self.capacity or width != self._packed.shape[1]:
            raise ValueError(
                f"replay buffer of {self.capacity} rows of width {self._packed.shape[1]} cannot take "
                f"{state['size']} rows of width {width}: capacity and spaces must be those of the saved run"
            )
        if self._frames is not None and "free" not in state["frames"]:
            state = _from_ring(state)
        self.size, self.written, self.newest = state["size"], state["written"], state["newest"]
        source, target = self._moved(saved)
        self._packed[target] = state["packed"].numpy()[source]
        for name, array in self._loose.items():
            array[target] = state["loose"][name].numpy()[source]
        if self._window is not None:
            self._window.load_state_dict(state["window"])
        if self._frames is not None:
            self._frames.load_state_dict(state["frames"])
            where = (self._first + np.arange(self.size)) % self.capacity
            places = np.concatenate([self._columns["obs"][where], self._columns["next_obs"][where]], 1)
            self._frames.store(places.astype(np.int64), np.arange(self.written - self.size, self.written))
            self._frames.hold([] if self._window is None else self._window.open_obs())
        self.rng.load_state_dict(state["rng"])

    def _moved(self, saved: int) -> tuple[Any, Any]:
        """Which of the ``saved`` rows of a state to take, and where they belong: row k lies at k modulo the capacity."""
        if saved == min(self.written, self.capacity):
            return slice(saved), slice(saved)
        rows = np.arange(self.written - self.size, self.written)
        return rows % max(
            saved, 1
        ), rows % self.capacity  # fewer saved than written: as many as that buffer had room for


def _from_ring(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it was saved when frames lay in one ring, in the order of their numbers: older rows may show frames that have
    been overwritten, and are left out."""
    frames, size, written = state["frames"], state["size"], state["written"]
    held = max(1, len(frames["data"]))
    oldest = frames["count"] - held
    rows = np.arange(written - size, written) % max(1, len(state["packed"]))
    gone = np.flatnonzero(state["oldest_frame"].numpy()[rows] < oldest)
    size -= int(gone[-1]) + 1 if len(gone) else 0
    kept = {stream: last % held for stream, last in zip(frames["streams"], frames["last"]) if int(last.min()) >= oldest}
    last = torch.stack(list(kept.values())) if kept else frames["last"][:0]
    moved = {**frames, "free": None, "grown": 0, "streams": list(kept), "last": last}
    state = {**state, "frames": moved, "size": size}
    if "obs" in state.get("window", {}):
        state["window"] = {**state["window"], "obs": state["window"]["obs"] % held}
    return state


def _unpacker(fields: list[tuple[str, tuple[int, ...], bool]], widths: list[int]) -> Callable[..., Batch]:
    """A function from a matrix of packed rows to its columns by name: views, but for integers, which are copies."""

    def unpack(matrix: torch.Tensor, integers: bool = True) -> Batch:
        batch: Batch = {}
        for (name, shape, integer), column in zip(fields, matrix.split(widths, 1)):
            if name != "truncations":  # no update needs them: they end n-step windows and go into exports
                view = column if len(shape) == 1 else column.view(len(matrix), *shape)
                batch[name] = view.long() if integer and integers else view
        return batch

    return unpack


class Mixed:
    """Draws exact counts from several sources and interleaves the rows, so that any equal slice keeps the shares.

    Each source but the last gives ``int(n * share)`` rows, the last one gives the rest; with ``slices``, that holds for each of
    so many equal slices of a sample.
    """

    def __init__(self, *shares: tuple[Source, float], slices: int = 1) -> None:
        self._shares, self._slices = shares, slices
        self._orders: dict[int, torch.Tensor] = {}

    def counts(self, n: int) -> list[int]:
        size = n // self._slices
        counts = [int(size * share + 1e-9) * self._slices for _, share in self._shares[:-1]]  # 0.1 of 100 are ten
        return [*counts, n - sum(counts)]

    def sample(self, n: int) -> Batch:
        parts = [source.sample(count) for (source, _), count in zip(self._shares, self.counts(n)) if count]
        matrices = [part.packed for part in parts if isinstance(part, PackedBatch) and part.packed is not None]
        if len(matrices) == len(parts):  # columns of one matrix: one gather for all of them
            unpack = parts[0].unpack  # type: ignore[attr-defined]
            matrix = torch.cat(matrices)[self._order(n, "cpu")]
            return PackedBatch(unpack(matrix), matrix, unpack)
        return {
            name: torch.cat([part[name] for part in parts])[self._order(n, column.device)]
            for name, column in parts[0].items()
        }

    def _order(self, n: int, device: str | torch.device) -> torch.Tensor:
        """Row j of a part with c rows belongs at position (j + 1/2) n / c of the whole."""
        if n not in self._orders:
            places = np.concatenate([(np.arange(count) + 0.5) * n / count for count in self.counts(n) if count])
            self._orders[n] = torch.from_numpy(np.argsort(places, kind="stable"))
        return self._orders[n].to(device)
