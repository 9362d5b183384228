"""Which library multiplies matrices of float32 on a CPU: MKL, or oneDNN where MKL takes twice as long.

Torch's builds for x86 multiply by MKL, which leaves half of the width of AVX-512 unused on processors that are not
Intel's. oneDNN, which such builds have too, uses all of it. Torch hands products of float32 to oneDNN where they may
be computed in bfloat16 (``torch.backends.mkldnn.matmul.fp32_precision = "bf16"``); oneDNN does that on processors
with units for it (AMX), and computes in float32 elsewhere. So oneDNN is used only where products of numbers that
neither bfloat16 nor TF32 can hold come out exact, which is tried once in each process.

A call of oneDNN costs some microseconds more, so it is for networks with wide layers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["by_onednn", "exact_in_float32", "onednn_is_faster"]

SWITCH = "RL_TRAINING_ONEDNN"  # in the environment: never
SHAPES = ((256, 200, 256), (512, 256, 12), (32, 200, 200), (200, 256, 200))  # (M, K, N) of the products that are tried
BIG = 8191  # 13 bits: more than bfloat16 (8) and TF32 (11) hold; K of them sum to less than float32's 24 bits
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies matrices of float32 faster than MKL does here, and as exactly."""
    return _mkl_is_narrow() and exact_in_float32()


def _mkl_is_narrow() -> bool:
    """Whether this is a processor with AVX-512 that is not Intel's, and has no units for other products."""
    if os.environ.get(SWITCH, "") == "never" or _setting() is None:
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        words = set(Path("/proc/cpuinfo").read_text().partition("\n\n")[0].split())
    except OSError:
        return False
    return "AuthenticAMD" in words and not any(word.startswith("amx") for word in words)


def exact_in_float32(multiply: Product = torch.matmul) -> bool:
    """Whether products by oneDNN are those of float32: of whole numbers whose sums float32 holds, none may be rounded.

    The arguments stand in every order: as they are, transposed, and as batches.
    """
    generator = torch.Generator().manual_seed(0)
    with by_onednn(True):
        for m, k, n in SHAPES:
            big = torch.randint(4097, BIG + 1, (m, k), generator=generator).float()
            signs = torch.randint(0, 2, (k, n), generator=generator).float() * 2 - 1
            right = (big.double() @ signs.double()).float()
            tried = (
                multiply(big, signs),
                multiply(signs.t(), big.t()).t(),
                multiply(big.t().contiguous().t(), signs.t().contiguous().t()),
                multiply(big.expand(2, m, k), signs.expand(2, k, n))[1],
            )
            if not all(torch.equal(product, right) for product in tried):
                return False
    return True


def _setting() -> Any:
    """Torch's switch for products of float32; None in a torch without it."""
    backend: Any = torch.backends.mkldnn
    setting = getattr(backend, "matmul", None)
    return setting if hasattr(setting, "fp32_precision") and backend.is_available() else None


@contextlib.contextmanager
def by_onednn(enabled: bool) -> Iterator[None]:
    """Products of float32 by oneDNN in here, if ``enabled``; a precision that somebody has set for them stays."""
    setting = _setting()
    if not enabled or setting is None or setting.fp32_precision != "none":
        yield
        return
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = "none"
