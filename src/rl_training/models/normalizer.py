"""Normalisation of observations by their running mean and variance."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.base.moments import merge_moments
from rl_training.models.overrides import overridden

__all__ = ["ObservationNormalizer"]


class ObservationNormalizer(nn.Module):
    """(x - mean) / deviation, clipped, with statistics of all observations seen in training; frozen while evaluating.

    The statistics are buffers of the agent, so they are saved, loaded and applied wherever the agent goes.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by ``host``, in acting

    mean: torch.Tensor
    inverse_std: torch.Tensor
    square: torch.Tensor
    exact_mean: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("inverse_std", torch.ones(shape))
        self.register_buffer("square", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("exact_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def observe(self, rows: np.ndarray) -> None:
        """Update the statistics by observations (B, ...); does nothing in evaluation mode."""
        if not self.training:
            return
        count, mean, square = merge_moments(
            float(self.count), self.exact_mean.cpu().numpy(), self.square.cpu().numpy(), rows.astype(np.float64)
        )
        self.count.fill_(count)
        self.exact_mean.copy_(torch.as_tensor(mean))
        self.square.copy_(torch.as_tensor(square))
        self.mean.copy_(self.exact_mean)
        self.inverse_std.copy_((self.square / count + 1e-8).rsqrt())

    def fit(self, rows: np.ndarray, *, epsilon: float = 1e-3) -> None:
        """Set the statistics to those of a fixed dataset: (x - mean) / (deviation + epsilon)."""
        exact = rows.astype(np.float64)
        self.mean.copy_(torch.as_tensor(exact.mean(0)))
        self.inverse_std.copy_(torch.as_tensor(1 / (exact.std(0) + epsilon)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.mean) * self.inverse_std).clamp(-self.clip, self.clip)

    def host(self, x: np.ndarray) -> np.ndarray:
        """``forward`` on arrays, for acting."""
        if overridden(self):
            with torch.no_grad():
                normalised: np.ndarray = self(torch.from_numpy(x).to(self.mean.device)).cpu().numpy()
                return normalised
        scaled: np.ndarray = (x - self.mean.cpu().numpy()) * self.inverse_std.cpu().numpy()
        return np.clip(scaled, -self.clip, self.clip, out=scaled)
