"""Batches of tensors by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["PackedBatch", "Tensors"]

Tensors = dict[str, torch.Tensor]


class PackedBatch(dict[str, torch.Tensor]):
    """A batch whose tensors are columns of one matrix, ``packed``.

    A compiled update takes that matrix and applies ``unpack`` inside the graph: every tensor handed to a graph costs as
    much as a small kernel. Setting one of the tensors unpacks the batch for good.
    """

    def __init__(self, columns: Tensors, packed: torch.Tensor, unpack: Callable[[torch.Tensor], Tensors]) -> None:
        super().__init__(columns)
        self.packed: torch.Tensor | None = packed
        self.unpack = unpack

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self.packed = None
        super().__setitem__(name, value)

    def beside(self, **tensors: torch.Tensor) -> PackedBatch:
        """This batch with tensors that no update reads, such as the indices of its rows; it stays packed."""
        super().update(tensors)
        return self
