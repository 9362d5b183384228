"""Double precision for learners that ask for float32 by name: rounding errors then lie far below any mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch


@contextmanager
def double_precision() -> Iterator[None]:
    """New tensors are float64, and ``tensor.float()`` gives float64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)
