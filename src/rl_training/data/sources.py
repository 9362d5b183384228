"""Sources of batches, and a mix of several of them with exact shares."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from rl_training.base.batches import PackedBatch, Tensors
from rl_training.base.devices import arrays_to_device, to_device

__all__ = ["Mixed", "Source"]


class Source(Protocol):
    """Anything batches can be drawn from."""

    def sample(self, n: int) -> Tensors: ...


class Mixed:
    """Draws exact counts from several sources and interleaves the rows, so that any equal slice keeps the shares.

    Each source but the last gives ``int(n * share)`` rows, the last one gives the rest; with ``slices``, that holds for
    each of so many equal slices of a sample.
    """

    def __init__(
        self, *shares: tuple[Source, float], slices: int = 1, device: str | torch.device | None = None
    ) -> None:
        """``device``: where samples go, of sources that are on the host, so that they cross together; None: where the
        sources are."""
        self._shares, self._slices, self._device = shares, slices, device
        self._orders: dict[tuple[int, torch.device], torch.Tensor] = {}

    def counts(self, n: int) -> list[int]:
        """The number of rows from each source in a sample of ``n``."""
        size = n // self._slices
        counts = [int(size * share + 1e-9) * self._slices for _, share in self._shares[:-1]]  # 0.1 of 100 are ten
        return [*counts, n - sum(counts)]

    def sample(self, n: int) -> Tensors:
        mixed = self._sample(n)
        return mixed if self._device is None else to_device(mixed, self._device)

    def _sample(self, n: int) -> Tensors:
        parts = [source.sample(count) for (source, _), count in zip(self._shares, self.counts(n)) if count]
        matrices = [part.packed for part in parts if isinstance(part, PackedBatch) and part.packed is not None]
        first = parts[0]
        if isinstance(first, PackedBatch) and len(matrices) == len(parts):  # one gather for all columns
            matrix = torch.cat(matrices)[self._order(n, matrices[0].device)]
            return PackedBatch(first.unpack(matrix), matrix, first.unpack)
        return {
            name: torch.cat([part[name] for part in parts])[self._order(n, column.device)]
            for name, column in first.items()
        }

    def _order(self, n: int, device: torch.device) -> torch.Tensor:
        """Row j of a part with c rows belongs at position (j + 1/2) n / c of the whole."""
        if (n, device) not in self._orders:
            places = np.concatenate([(np.arange(count) + 0.5) * n / count for count in self.counts(n) if count])
            [self._orders[n, device]] = arrays_to_device(device, np.argsort(places, kind="stable"))
        return self._orders[n, device]
