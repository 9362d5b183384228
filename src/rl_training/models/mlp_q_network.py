"""Action values for discrete actions, from vectors or images."""

from __future__ import annotations

import torch
from torch import nn

from rl_training.models.cnn import features, observation_shape


class MLPQNetwork(nn.Module):
    """Q(s, ·) for every action: (B, A). Images (uint8, channel first) go through the convolutional trunk."""

    def __init__(
        self,
        *,
        obs_dim: int | None = None,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (64, 64),
        obs_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        trunk, width = features(observation_shape(obs_dim, obs_shape), tuple(hidden_sizes))
        self.body = nn.Sequential(trunk, nn.Linear(width, action_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs)
