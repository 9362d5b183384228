"""A policy without a critic."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from rl_training.base.parts import Parts
from rl_training.models.heads import ClonedHead
from rl_training.models.mlp import Linear
from rl_training.models.trunks import features, observed

__all__ = ["MLPPolicy"]


class MLPPolicy(nn.Module):
    """Observations (vectors, images or rows of several parts) to the parameters (B, head.size) of ``head``'s
    distribution over actions."""

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by numpy, in acting

    def __init__(
        self,
        *,
        head: ClonedHead,
        hidden_sizes: tuple[int, ...] = (256, 256),
        obs_dim: int | None = None,
        obs_shape: tuple[int, ...] | None = None,
        obs_parts: Parts | None = None,
    ) -> None:
        super().__init__()
        trunk, width = features(observed(obs_dim, obs_shape, obs_parts), tuple(hidden_sizes))
        self.head = head
        self.body = nn.Sequential(trunk, Linear(width, head.size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(obs)
        return outputs
