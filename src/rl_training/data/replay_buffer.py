"""A ring of transitions, and batches mixed from several sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.algorithms.optim import PackedBatch
from rl_training.state import Rng

Batch = dict[str, torch.Tensor]


class Source(Protocol):
    """Anything batches can be drawn from."""

    def sample(self, n: int) -> Batch: ...


def _numpy_dtype(dtype: Any) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)


class ReplayBuffer:
    """The last ``capacity`` transitions, drawn uniformly.

    ``dones`` means terminated (do not bootstrap); ``truncations`` are kept beside it. Float columns lie side by side in one
    matrix, so a batch of vectors is a single gather; images stay in arrays of their own type. With ``reuse``, every sample
    of a size fills the same tensors again: for loops that are done with a batch before they draw the next.
    """

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
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity, self.rng = capacity, rng if rng is not None else Rng(0, "replay")
        self.position, self.size = 0, 0
        self._reuse, self._reused = reuse, None  # type: bool, Any
        self._device = torch.device(device)
        obs, action = (tuple(obs_shape), _numpy_dtype(obs_dtype)), (tuple(action_shape), _numpy_dtype(action_dtype))
        scalar = ((), np.dtype(np.float32))
        fields = {
            "obs": obs,
            "actions": action,
            "rewards": scalar,
            "next_obs": obs,
            "dones": scalar,
            "truncations": scalar,
        }
        self._columns: dict[str, np.ndarray] = {}
        self._views: list[tuple[str, tuple[int, ...], bool]] = []
        packed = {k: (s, d) for k, (s, d) in fields.items() if d == np.float32 or (d.kind in "iu" and d.itemsize == 8)}
        width = sum(int(np.prod(shape)) for shape, _ in packed.values())
        try:
            self._packed = np.zeros((capacity, width), np.float32)
            self._loose = {k: np.zeros((capacity, *s), d) for k, (s, d) in fields.items() if k not in packed}
        except MemoryError as error:
            raise ValueError(f"a replay buffer of {capacity:,} transitions does not fit into memory: {error}") from None
        self._widths: list[int] = []
        start = 0
        for name, (shape, dtype) in packed.items():
            stop = start + int(np.prod(shape))
            self._columns[name] = (
                self._packed[:, start:stop].reshape(capacity, *shape) if shape else self._packed[:, start]
            )
            self._views.append((name, shape, dtype != np.float32))  # indices up to 2^24 are exact in float32
            self._widths.append(stop - start)
            start = stop
        self._columns.update(self._loose)
        self._unpack = _unpacker(self._views, self._widths)

    def __len__(self) -> int:
        return self.size

    def add(self, *, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, truncations: Any = None) -> None:
        """Append one row or many; every value has the same leading length."""
        n = len(rewards) if getattr(rewards, "ndim", 1) and hasattr(rewards, "__len__") else 1
        rows = {
            "obs": obs,
            "actions": actions,
            "rewards": rewards,
            "next_obs": next_obs,
            "dones": dones,
            "truncations": 0.0 if truncations is None else truncations,
        }
        if n > self.capacity:
            rows = {name: value[-self.capacity :] if np.ndim(value) else value for name, value in rows.items()}
            n = self.capacity
        stop = self.position + n
        where: Any = slice(self.position, stop)
        if stop > self.capacity:
            where = np.arange(self.position, stop) % self.capacity
        for name, column in self._columns.items():
            column[where] = rows[name]
        self.position = stop % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n: int) -> Batch:
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        return self.rows(self.rng.generator.integers(self.size, size=n))

    def rows(self, index: np.ndarray) -> Batch:
        """The transitions at ``index``, as tensors on the buffer's device."""
        gathered, matrix, views, integers = self._batch(len(index))
        np.take(self._packed, index, axis=0, out=gathered, mode="clip")  # "clip" writes straight into ``out``
        for source, target in integers:
            np.copyto(target, source, casting="unsafe")
        for name, array in self._loose.items():
            views[name] = torch.from_numpy(array[index])
        if self._device.type != "cpu":
            return {name: view.to(self._device) for name, view in views.items()}
        # a dict of its own each time, so that adding to one batch does not add to the next
        return dict(views) if self._loose else PackedBatch(views, matrix, self._unpack)

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
        return {
            "packed": torch.from_numpy(self._packed[: self.size]),
            "loose": {name: torch.from_numpy(array[: self.size]) for name, array in self._loose.items()},
            "position": self.position,
            "rng": self.rng.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        size = len(state["packed"])
        if size > self.capacity or state["packed"].shape[1] != self._packed.shape[1]:
            raise ValueError(
                f"replay buffer of {self.capacity} rows of width {self._packed.shape[1]} cannot take "
                f"{size} rows of width {state['packed'].shape[1]}: capacity and spaces must be those of the saved run"
            )
        self.size, self.position = size, state["position"]
        self._packed[:size] = state["packed"].numpy()
        for name, array in self._loose.items():
            array[:size] = state["loose"][name].numpy()
        self.rng.load_state_dict(state["rng"])


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

    Each source but the last gives ``int(n * share)`` rows; the last one gives the rest.
    """

    def __init__(self, *shares: tuple[Source, float]) -> None:
        self._shares = shares

    def counts(self, n: int) -> list[int]:
        counts = [int(n * share) for _, share in self._shares[:-1]]
        return [*counts, n - sum(counts)]

    def sample(self, n: int) -> Batch:
        counts = self.counts(n)
        parts = [source.sample(count) for (source, _), count in zip(self._shares, counts) if count]
        # row j of a part with c rows belongs at position (j + 1/2) n / c of the whole
        places = np.concatenate([(np.arange(count) + 0.5) * n / count for count in counts if count])
        order = torch.from_numpy(np.argsort(places, kind="stable"))
        return {name: torch.cat([part[name] for part in parts])[order.to(parts[0][name].device)] for name in parts[0]}
