"""A ring of transitions, and batches mixed from several sources."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

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
    matrix, so a batch of vectors is a single gather; images stay in arrays of their own type.
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
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity, self.rng = capacity, rng if rng is not None else Rng(0, "replay")
        self.position, self.size = 0, 0
        self._device = torch.device(device)
        obs, action = (tuple(obs_shape), _numpy_dtype(obs_dtype)), (tuple(action_shape), _numpy_dtype(action_dtype))
        scalar = ((), np.dtype(np.float32))
        fields = {"obs": obs, "actions": action, "rewards": scalar, "next_obs": obs, "dones": scalar, "truncations": scalar}
        self._columns: dict[str, np.ndarray] = {}
        self._views: list[tuple[str, int, int, tuple[int, ...], bool]] = []
        packed = {k: (s, d) for k, (s, d) in fields.items() if d == np.float32 or (d.kind in "iu" and d.itemsize == 8)}
        width = sum(int(np.prod(shape)) for shape, _ in packed.values())
        self._packed = np.zeros((capacity, width), np.float32)
        self._matrix = torch.from_numpy(self._packed)
        start = 0
        for name, (shape, dtype) in packed.items():
            stop = start + int(np.prod(shape))
            self._columns[name] = self._packed[:, start:stop].reshape(capacity, *shape) if shape else self._packed[:, start]
            self._views.append((name, start, stop, shape, dtype != np.float32))  # indices up to 2^24 are exact in float32
            start = stop
        self._loose = {k: np.zeros((capacity, *s), d) for k, (s, d) in fields.items() if k not in packed}
        self._columns.update(self._loose)

    def __len__(self) -> int:
        return self.size

    def add(self, **rows: Any) -> None:
        """Append one row or many: obs, actions, rewards, next_obs, dones, and truncations (zero if left out)."""
        rows.setdefault("truncations", np.zeros_like(np.asarray(rows["dones"], dtype=np.float32)))
        if set(rows) != set(self._columns):
            raise ValueError(f"add needs {sorted(self._columns)}, got {sorted(rows)}")
        n = len(rows["rewards"]) if np.ndim(rows["rewards"]) else 1
        if n > self.capacity:
            rows, n = {name: value[-self.capacity :] for name, value in rows.items()}, self.capacity
        where: Any = self.position if n == 1 else slice(self.position, self.position + n)
        if self.position + n > self.capacity:
            where = np.arange(self.position, self.position + n) % self.capacity
        for name, column in self._columns.items():
            value = rows[name]
            column[where] = value[0] if n == 1 and np.ndim(value) == column.ndim else value
        self.position = (self.position + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n: int) -> Batch:
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        return self.rows(self.rng.generator.integers(self.size, size=n))

    def rows(self, index: np.ndarray) -> Batch:
        """The transitions at ``index``, as tensors on the buffer's device."""
        gathered = self._matrix.index_select(0, torch.from_numpy(index)).to(self._device)
        batch: Batch = {}
        for name, start, stop, shape, integer in self._views:
            column = gathered[:, start:stop].view(-1, *shape) if len(shape) == 1 else gathered[:, start:stop].reshape(-1, *shape)
            batch[name] = column.long() if integer else column
        for name, array in self._loose.items():
            batch[name] = torch.from_numpy(array[index]).to(self._device)
        return batch

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
