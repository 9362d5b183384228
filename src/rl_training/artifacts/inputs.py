"""What an exported policy takes: observations as the environment gives them, one input for each of their parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.base.parts import Part, Parts
from rl_training.envs.spaces import Spaces
from rl_training.models.parts import PartsNormalizer

__all__ = ["Named", "PolicyInputs", "drawn_rows"]

OTHERS = {"action", "carry", "next_carry"}  # names that a file uses for other things
BOUND = 255  # of bytes


class PolicyInputs:
    """The inputs of a policy: their names, and how they become what its network sees."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self.parts: Parts | None = spaces.parts if spaces.in_rows or spaces.image else None
        named = ["obs"] if self.parts is None else [part.name for part in self.parts.all]
        self.names = [f"obs_{name}" if name in OTHERS else name for name in named]

    def columns(self, obs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Observations (N, ...) of the wrapped environment as they are given to the file."""
        return (obs,) if self.parts is None else tuple(self.parts.unpack(obs.reshape(len(obs), -1)))

    def encoded(self, given: tuple[torch.Tensor, ...], normalizer: nn.Module | None) -> Any:
        """What the network sees: a tensor, or the parts of a row."""
        if self.parts is None:
            x = given[0].movedim(-1, -3) if self._spaces.channels_last else given[0]
            return x if normalizer is None else normalizer(x)
        pairs = list(zip(self.parts.all, given))
        images = [_image(part, x) for part, x in pairs if part.kind == "image"]
        if self._spaces.image:
            return images[0]
        vectors = [_vector(part, x) for part, x in pairs if part.kind == "vector"]
        joined = torch.cat(vectors, 1) if vectors else images[0].flatten(1)[:, :0].to(torch.float32)
        if isinstance(normalizer, PartsNormalizer):
            joined = normalizer.vectors(joined)
        return joined, *images, *(x for part, x in pairs if part.kind == "mask")


class Named(nn.Module):
    """A policy as a function of its inputs, one tensor each, with a carry after them if it has one."""

    def __init__(self, policy: nn.Module, count: int) -> None:
        super().__init__()
        self.policy, self._count = policy, count

    def forward(self, *given: torch.Tensor) -> Any:
        return self.policy(given[: self._count], *given[self._count :])


def _vector(part: Part, x: torch.Tensor) -> torch.Tensor:
    """A part (B, ...) as the environment gives it, as a vector (B, n): choices become one-hot."""
    flat = x[:, None] if x.ndim == 1 else x.flatten(1)
    if part.source == "box":
        return flat.to(torch.float32)
    ones = [
        torch.arange(first, first + n) == column[:, None]
        for first, n, column in zip(part.first, part.choices, flat.unbind(1))
    ]
    return torch.cat(ones, 1).to(torch.float32)


def _image(part: Part, x: torch.Tensor) -> torch.Tensor:
    """An image (B, ...) as the environment gives it, as the networks' (B, C, H, W)."""
    if x.ndim == len(part.shape):
        x = x[:, None]
    elif part.channels_last:
        x = x.movedim(-1, 1)
    return x.to(torch.float32) * BOUND if part.boolean else x


def drawn_rows(parts: Parts, real: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random rows (n, ...) of all kinds of parts, their numbers around those of real rows (N, ...)."""
    rows = np.zeros((n, parts.width), parts.dtype)
    floats, seen = parts.floats_of(rows), parts.floats_of(real.reshape(len(real), -1))
    at = 0
    for part, (start, stop) in zip(parts.all, parts.spans):
        if part.dtype == "uint8":
            top = 2 if part.boolean else BOUND + 1
            rows[:, start:stop] = rng.integers(top, size=(n, part.size)) * (BOUND if part.boolean else 1)
            continue
        own = slice(at, at := at + part.size)
        if part.kind == "mask":
            floats[:, own] = seen[rng.integers(len(seen), size=n), own]
            continue
        if part.source == "box":
            mean, deviation = seen[:, own].mean(0), seen[:, own].std(0)
            floats[:, own] = rng.normal(mean, 2 * deviation + 1e-3, (n, part.size))
            continue
        first = own.start
        for size in part.choices:
            floats[np.arange(n), first + rng.integers(size, size=n)] = 1
            first += size
    return rows.reshape(n, *real.shape[1:])
