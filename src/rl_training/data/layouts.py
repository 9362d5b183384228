"""How a replay buffer's rows lie in memory: fields as columns of one matrix, images as places of shared frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from rl_training.base.batches import PackedBatch, Tensors
from rl_training.base.saved import Saved, within
from rl_training.data.frames import FrameStore
from rl_training.data.n_step import NStepWindow, Rows

__all__ = ["EXACT", "Field", "FrameLayout", "PackedLayout", "numpy_dtype", "transition_fields"]

EXACT = 2**24  # whole numbers up to this one are exact in float32

Evict = Callable[[], bool]  # gives up the oldest row; False if there is none


class Field(NamedTuple):
    """Shape and type of one field of a row."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype = np.dtype(np.float32)

    @property
    def width(self) -> int:
        return int(np.prod(self.shape))

    @property
    def packed(self) -> bool:
        """Whether the field fits into a float32 matrix: floats do, and 64-bit indices, which stay below ``EXACT``."""
        return self.dtype == np.float32 or (self.dtype.kind in "iu" and self.dtype.itemsize == 8)


def numpy_dtype(dtype: Any) -> np.dtype:
    """The numpy type of a numpy or torch type."""
    return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)


def transition_fields(obs: Field, action: Field, extra: Iterable[str] = ()) -> dict[str, Field]:
    """The fields of a transition, in the order in which they are stored, and ``extra`` scalars after them."""
    fields = {"obs": obs, "actions": action, "rewards": Field(), "next_obs": obs}
    return fields | dict.fromkeys(("dones", "truncations", *extra), Field())


class PackedLayout:
    """Rows as they come. Floats and indices are columns of one float32 matrix, so that a batch is a single gather;
    fields of other types have an array of their own.

    Row number k lies at k modulo the capacity. With ``reuse``, every batch of one size fills the same tensors again.
    """

    PARTS: ClassVar[tuple[str, ...]] = ("packed", "loose")  # of its state

    def __init__(self, capacity: int, fields: Mapping[str, Field], *, reuse: bool = False) -> None:
        self.capacity, self._reuse = capacity, reuse
        packed = {name: field for name, field in fields.items() if field.packed}
        self.matrix = np.zeros((capacity, sum(field.width for field in packed.values())), np.float32)
        self.loose = {
            name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items() if name not in packed
        }
        self._integers = [name for name, field in packed.items() if field.dtype != np.float32]
        self._unpack = _unpacker(packed)
        views = self._unpack(torch.from_numpy(self.matrix), stored=True)
        self.columns = {name: view.numpy() for name, view in views.items()} | self.loose  # to write into, by field
        self._target: _Target | None = None

    def encode(self, rows: Rows, evict: Evict) -> Rows:
        """Bring transitions into the form in which they are stored; ``evict`` is called where they need room."""
        return rows

    def encode_final(self, ended: np.ndarray, obs: np.ndarray, evict: Evict) -> np.ndarray:
        """Observations (N, ...) in the form in which they are stored; only those where ``ended`` (N,) is set matter."""
        return obs

    def announce(self, rows: Rows, first: int, window: NStepWindow | None) -> None:
        """Encoded rows are about to be written from number ``first`` on; the open transitions of ``window`` follow."""

    def announce_written(self, first: int, n: int, window: NStepWindow | None) -> None:
        """The same for ``n`` rows that a loaded state has written already."""

    def release(self, first: int, n: int) -> None:
        """The ``n`` rows from number ``first`` on, the oldest, can no longer be drawn."""

    def discard(self, rows: Rows, first: int) -> None:
        """Announced rows, numbered from ``first`` on, are not written after all."""

    def write(self, rows: Rows, first: int, n: int) -> None:
        """Store ``n`` encoded rows as those from number ``first`` on; a field that is left out keeps what is there."""
        where, columns = self.where(first, n), self.columns
        for name in rows:
            columns[name][where] = rows[name]

    def where(self, first: int, n: int) -> Any:
        """The places of the ``n`` rows from number ``first`` on: a slice, or an index where they go around the ring."""
        start = first % self.capacity
        stop = start + n
        return slice(start, stop) if stop <= self.capacity else np.arange(start, stop) % self.capacity

    def gather(self, index: np.ndarray) -> Tensors:
        """The rows at ``index`` as tensors of the host."""
        target = self._gather_packed(index)
        if not self.loose:
            return PackedBatch(target.views, target.matrix, self._unpack)
        return self._with_loose(target.views, index)

    def read(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at ``index`` as arrays by field."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return columns | {name: columns[name].astype(np.int64) for name in self._integers}

    def _gather_packed(self, index: np.ndarray) -> _Target:
        target = self._target
        if target is None or len(target.array) != len(index):
            target = _Target.of(np.empty((len(index), self.matrix.shape[1]), np.float32), self._unpack)
            self._target = target if self._reuse else None
        np.take(self.matrix, index, axis=0, out=target.array, mode="clip")  # "clip" writes straight into ``out``
        for floats, integers in target.integers:
            np.copyto(integers, floats, casting="unsafe")
        return target

    def _with_loose(self, views: Tensors, index: np.ndarray) -> Tensors:
        return {**views, **{name: torch.from_numpy(array[index]) for name, array in self.loose.items()}}

    def state_dict(self, filled: int) -> dict[str, Any]:
        """The first ``filled`` places; the arrays are shared, not copied."""
        loose = {name: torch.from_numpy(array[:filled]) for name, array in self.loose.items()}
        return {"packed": torch.from_numpy(self.matrix[:filled]), "loose": loose}

    def load_state_dict(self, state: dict[str, Any], source: Any, target: Any) -> None:
        """Put the saved rows at ``source`` to the places ``target``."""
        saved = Saved(state, PackedLayout.PARTS, state)
        packed = saved.array("packed", np.float32, (None, self.matrix.shape[1]))
        with within("loose"):
            columns = Saved(saved["loose"], self.loose)
            loose = {n: columns.array(n, a.dtype, (len(packed), *a.shape[1:])) for n, a in self.loose.items()}
        self.matrix[target] = packed[source]
        for name, array in self.loose.items():
            array[target] = loose[name][source]


class FrameLayout(PackedLayout):
    """Rows whose observations are stacks of frames. Each frame is stored once, and a row has the places of its frames.

    The frames have room for a tenth more than there are rows, as an episode's first observation adds a frame beyond
    those of its steps. Where that is not enough, the oldest rows are evicted, and if none is left the room grows.
    """

    PARTS = ("packed", "loose", "frames")

    def __init__(self, capacity: int, fields: Mapping[str, Field], stack: int, *, reuse: bool = False) -> None:
        room = capacity + capacity // 10 + 256
        if room > EXACT:
            raise ValueError(f"a replay buffer of images holds at most {EXACT:,} of them, not {room:,}")
        self.frames = FrameStore(room, fields["obs"].shape, stack, reuse=reuse)
        places = Field((stack,), np.dtype(np.int64))
        super().__init__(capacity, {**fields, "obs": places, "next_obs": places}, reuse=reuse)

    def encode(self, rows: Rows, evict: Evict) -> Rows:
        pairs, frames = [], self.frames
        streams = rows.get("streams", range(len(rows["rewards"])))
        for stream, obs, next_obs in zip(streams, rows["obs"], rows["next_obs"]):
            if frames.room < 2 * frames.stack:
                self._make_room(evict)
            pairs.append(frames.add_transition(stream, obs, next_obs))
        rows["obs"], rows["next_obs"] = (np.stack(places) for places in zip(*pairs))
        return rows

    def encode_final(self, ended: np.ndarray, obs: np.ndarray, evict: Evict) -> np.ndarray:
        places = np.zeros((len(ended), self.frames.stack), np.int64)
        for stream in np.flatnonzero(ended):
            if self.frames.room < self.frames.stack:
                self._make_room(evict)
            places[stream] = self.frames.add_observation(int(stream), obs[stream])
        return places

    def _make_room(self, evict: Evict) -> None:
        """Room for the frames of a transition that shares none."""
        frames = self.frames
        needed = 2 * frames.stack
        while frames.room < needed and evict():
            pass
        frames.grow(max(0, needed - frames.room))

    def announce(self, rows: Rows, first: int, window: NStepWindow | None) -> None:
        self._assign(_places(rows), first, window)

    def announce_written(self, first: int, n: int, window: NStepWindow | None) -> None:
        places = self._written_places(first, n)
        for shown in (places, *([] if window is None else window.open_obs())):
            self.frames.require_places(shown)
        self._assign(places, first, window)

    def _assign(self, places: np.ndarray, first: int, window: NStepWindow | None) -> None:
        self.frames.assign(places, np.arange(first, first + len(places)))
        self.frames.retain([] if window is None else window.open_obs())

    def release(self, first: int, n: int) -> None:
        self.frames.release(self._written_places(first, n), np.arange(first, first + n))

    def discard(self, rows: Rows, first: int) -> None:
        places = _places(rows)
        self.frames.release(places, np.arange(first, first + len(places)))

    def _written_places(self, first: int, n: int) -> np.ndarray:
        where = self.where(first, n)
        return _places({name: self.columns[name][where] for name in ("obs", "next_obs")}).astype(np.int64)

    def gather(self, index: np.ndarray) -> Tensors:
        batch = self._with_loose(self._gather_packed(index).views, index)
        images = {name: self.frames.take(batch[name].numpy(), name) for name in ("obs", "next_obs")}
        return batch | images

    def read(self, index: np.ndarray) -> dict[str, np.ndarray]:
        columns = super().read(index)
        return columns | {name: self.frames.take(columns[name], name).numpy().copy() for name in ("obs", "next_obs")}

    def state_dict(self, filled: int) -> dict[str, Any]:
        return {**super().state_dict(filled), "frames": self.frames.state_dict()}

    def load_state_dict(self, state: dict[str, Any], source: Any, target: Any) -> None:
        """As for any layout; which rows show which frames must be announced again."""
        super().load_state_dict(state, source, target)
        with within("frames"):
            self.frames.load_state_dict(state["frames"])


class _Target(NamedTuple):
    """Memory for a batch: a matrix as array and as tensor, its columns by field, and for each integer field the column
    of floats and the integers to make of it."""

    array: np.ndarray
    matrix: torch.Tensor
    views: Tensors
    integers: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, array: np.ndarray, unpack: Callable[..., Tensors]) -> _Target:
        matrix = torch.from_numpy(array)
        views, floats = unpack(matrix), unpack(matrix, stored=True)
        pairs = [(floats[name].numpy(), view.numpy()) for name, view in views.items() if view.dtype == torch.int64]
        return cls(array, matrix, views, pairs)


def _unpacker(fields: Mapping[str, Field]) -> Callable[..., Tensors]:
    """A function from a matrix of packed rows to tensors by field: views, but for integers, which are copies; with
    ``stored``, views of all that is stored."""
    widths = [field.width for field in fields.values()]
    layout = [(name, field.shape, field.dtype != np.float32) for name, field in fields.items()]

    def unpack(matrix: torch.Tensor, stored: bool = False) -> Tensors:
        batch: Tensors = {}
        for (name, shape, integer), column in zip(layout, torch.split(matrix, widths, 1)):
            if stored or name != "truncations":  # no update needs them: they end n-step windows and go into exports
                view = column if len(shape) == 1 else column.view(len(matrix), *shape)
                batch[name] = view.long() if integer and not stored else view
        return batch

    return unpack


def _places(rows: Rows) -> np.ndarray:
    """The places of all frames that each row shows: (B, 2 * stack)."""
    return np.concatenate([rows["obs"], rows["next_obs"]], 1)
