"""A rollout that is learned from in sequences, by networks with a memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.data.rollout_buffer import RolloutBuffer

__all__ = ["SequenceRollout"]


class SequenceRollout(RolloutBuffer):
    """A rollout whose steps also hold the state (T, N, C) that they were met with.

    Minibatches are of whole pieces, each ``sequence_length`` steps of one environment (the last ones of a rollout may
    be shorter). A piece is cut where an episode starts within it, so each of its sequences begins with a state that is
    stored: of an episode's first step, that is zeros.
    """

    def __init__(self, *arguments: Any, carry_size: int, sequence_length: int, **options: Any) -> None:
        """Other arguments: see ``RolloutBuffer``."""
        super().__init__(*arguments, **options)
        self.sequence_length = min(sequence_length, self.num_steps)
        self.carry = np.zeros((self.num_steps, self.num_envs, carry_size), np.float32)
        self.beside["carry"] = self.carry

    @property
    def pieces(self) -> int:
        """The number of pieces of a rollout."""
        return -(-self.num_steps // self.sequence_length) * self.num_envs

    def pieces_of(self, minibatch_size: int) -> int:
        """The number of pieces of a minibatch: of about as many steps as are wanted, and at least one."""
        return max(1, minibatch_size // self.sequence_length)

    def _starts(self) -> np.ndarray:
        """Which steps begin a sequence, (N, T): those of a piece, and of an episode."""
        starts = np.zeros((self.num_envs, self.num_steps), bool)
        starts[:, 1:] = np.maximum(self.terminated, self.truncated)[:-1].T > 0
        starts[:, :: self.sequence_length] = True
        return starts

    def iter_minibatches(self, minibatch_size: int, shuffle: bool = True) -> Iterator[Tensors]:
        """Every row once, in minibatches of whole pieces: rows of sequences, one sequence after the other, with the
        sequences' ``lengths``, which stay on the host, and the ``carry`` that each begins with."""
        count, length = self.pieces, self.sequence_length
        order = self.rng.generator.permutation(count) if shuffle else np.arange(count)
        size, each = self.pieces_of(minibatch_size), -(-self.num_steps // length)
        starts, flat = self._starts(), to_device(self._flat(), self._device)
        for chosen in np.split(order, range(size, count, size)):
            envs, first = chosen // each, chosen % each * length
            lengths = np.minimum(length, self.num_steps - first)
            piece = np.repeat(np.arange(len(chosen)), lengths)
            times = np.arange(len(piece)) - (lengths.cumsum() - lengths)[piece] + first[piece]
            begins = np.flatnonzero(starts[envs[piece], times])
            carry = self.carry[times[begins], envs[piece][begins]]
            own = {"rows": torch.from_numpy(times * self.num_envs + envs[piece]), "carry": torch.from_numpy(carry)}
            own = to_device(own, self._device)
            rows = own.pop("rows")
            sequences = torch.from_numpy(np.diff(begins, append=len(piece)))
            yield {**{name: row.index_select(0, rows) for name, row in flat.items()}, **own, "lengths": sequences}
