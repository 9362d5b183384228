"""Proportional prioritized replay (Schaul et al., 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.batches import PackedBatch, Tensors
from rl_training.base.devices import to_device, to_host
from rl_training.base.saved import Saved, StateError
from rl_training.data.replay_buffer import ReplayBuffer

__all__ = ["PrioritizedReplayBuffer", "SumTree"]

FAN = 32  # children of a node: four levels hold a million leaves


class SumTree:
    """Weights that can be changed, summed and searched by mass: O(log n) each, for whole arrays at once."""

    def __init__(self, size: int) -> None:
        self._levels: list[np.ndarray] = []  # (nodes, FAN) each, leaves first; a row's sum is an entry one level up
        while True:
            rows = -(-size // FAN)
            self._levels.append(np.zeros((rows, FAN)))
            if rows == 1:
                break
            size = rows

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum())

    @property
    def leaves(self) -> np.ndarray:
        return self._levels[0].reshape(-1)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        weights: np.ndarray = self.leaves[index]
        return weights

    def __setitem__(self, index: np.ndarray, values: Any) -> None:
        self.leaves[index] = values
        for lower, upper in zip(self._levels, self._levels[1:]):
            index = index // FAN
            upper.reshape(-1)[index] = lower[index].sum(1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaves at which the running sum first exceeds ``mass`` (in [0, total)); never one without weight."""
        index = np.zeros(len(mass), np.int64)
        rows = np.arange(len(mass))
        for level in reversed(self._levels):
            sums = level[index].cumsum(1)
            # rounding may put the mass on or beyond the end of its row: keep it inside
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0))
            child = (sums <= mass[:, None]).sum(1)
            mass = mass - np.where(child > 0, sums[rows, child - 1], 0.0)
            index = index * FAN + child
        return index


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws transitions in proportion to priority ** alpha, with ``weights`` by which each counts in the loss.

    New transitions get the highest priority so far, so that each is likely to be drawn soon. A batch has one draw from
    each of its equal slices of the mass. Weights (N P) ** -beta correct for the preference of large errors as beta goes
    to 1; the largest of a batch is 1.
    """

    EXTRA = ("weights",)  # a column to write a batch's weights into, so that it is still one matrix

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if alpha < 0:
            raise ValueError(f"alpha must not be negative, got {alpha}")
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.highest = 1.0
        self._tree = SumTree(self.capacity)

    def sample(self, n: int, beta: float | None = None) -> Tensors:
        """``n`` transitions, with ``indices`` for ``update_priorities`` and ``weights`` for the loss."""
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        tree = self._tree
        slices = (np.arange(n) + self.rng.generator.random(n)) / n
        index = tree.find(slices * tree.total)
        weights = (tree[index] * (self.size / tree.total)) ** -(self.beta if beta is None else beta)
        batch = self._layout.gather(index)
        batch["weights"].copy_(torch.from_numpy(weights / weights.max()))
        batch, indices = to_device(batch, self._device), torch.from_numpy(index)  # which only the host reads
        if isinstance(batch, PackedBatch):
            return batch.beside(indices=indices)
        return {**batch, "indices": indices}

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """``priorities``: the size of each transition's error."""
        index, sizes = (to_host(x)[0] if isinstance(x, torch.Tensor) else x for x in (indices, priorities))
        index, errors = np.asarray(index, np.int64), np.abs(np.asarray(sizes, np.float64)) + self.epsilon
        if self.size < min(self.written, self.capacity):  # some may have been evicted since they were drawn
            there = (index - self._first) % self.capacity < self.size
            index, errors = index[there], errors[there]
        self.highest = max(self.highest, float(errors.max(initial=0.0)))
        self._tree[index] = errors**self.alpha

    def _on_rows_stored(self, start: int, n: int) -> None:
        self._tree[np.arange(start, start + n) % self.capacity] = self.highest**self.alpha

    def _on_row_evicted(self, place: int) -> None:
        self._tree[np.array([place])] = 0.0

    def state_dict(self) -> dict[str, Any]:
        filled = min(self.written, self.capacity)
        weights = torch.from_numpy(self._tree.leaves[:filled])
        return {**super().state_dict(), "weights": weights, "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("weights", "highest"), state)
        highest = saved.number("highest", least=0)
        super().load_state_dict({name: value for name, value in state.items() if name not in ("weights", "highest")})
        weights = saved.array("weights", np.float64, (len(state["packed"]),), finite=True)
        if (weights < 0).any():
            raise StateError("holds priorities below 0", "weights")
        self.highest = highest
        source, target = self._moved(len(weights))
        priorities = np.zeros(self.capacity)
        priorities[target] = weights[source]
        age = (np.arange(self.capacity) - self._first) % self.capacity
        self._tree[np.arange(self.capacity)] = np.where(age < self.size, priorities, 0.0)
        if self.size and not 0 < self._tree.total < np.inf:
            raise StateError("holds no priorities that rows could be drawn by", "weights")
