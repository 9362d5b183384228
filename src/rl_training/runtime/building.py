"""Building an agent for a checkpoint: options that a file names make nothing larger than what the file holds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rl_training.experiment.checkpointing import CheckpointError, CheckpointState, count_numbers

__all__ = ["within_checkpoint"]

MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
SMALL = 1_000_000  # numbers that any network may have


@contextlib.contextmanager
def within_checkpoint(state: CheckpointState) -> Iterator[None]:
    """Refuse tensors beyond what a checkpoint's agent holds before any memory is taken for them."""
    with _Limited(max(SMALL, count_numbers(state.algorithm_state))):
        yield


class _Limited(TorchFunctionMode):
    """Lets no tensor be made of more than ``most`` numbers, nor all of them together of four times as many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._total = most, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in MAKERS:
            self._account(kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args))
        return function(*args, **kwargs)

    def _account(self, sizes: Any) -> None:
        numbers = math.prod(sizes)
        self._total += numbers
        if numbers > self._most or self._total > 4 * self._most:
            raise CheckpointError(
                f"the checkpoint's options make networks of more than {max(numbers, self._total):,} numbers, "
                "which it does not hold"
            )
