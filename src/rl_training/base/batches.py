"""Batches of tensors by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]


class PackedBatch(dict[str, torch.Tensor]):
    """A batch whose tensors are columns of one matrix, ``packed``. A compiled update takes that matrix and applies ``unpack``
    inside the graph: every tensor handed to a graph costs as much as a small kernel. Changing the batch unpacks it for good."""

    def __init__(self, columns: Tensors, packed: torch.Tensor, unpack: Callable[[torch.Tensor], Tensors]) -> None:
        super().__init__(columns)
        self.packed: torch.Tensor | None = packed
        self.unpack = unpack

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self.packed = None
        super().__setitem__(name, value)

    def beside(self, **tensors: torch.Tensor) -> PackedBatch:
        """With tensors that no update reads, such as where the rows came from."""
        super().update(tensors)
        return self
