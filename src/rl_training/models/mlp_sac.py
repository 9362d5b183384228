"""A squashed-Gaussian actor and an ensemble of critics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from rl_training.models.heads import squash
from rl_training.models.mlp import ensemble_mlp, mlp

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class SampledActions(NamedTuple):
    actions: torch.Tensor  # (B, A) in [-1, 1]
    logprobs: torch.Tensor  # (B,)


class MLPSACModel(nn.Module):
    """Everything happens in the box [-1, 1]; the map to the environment's units is not the network's business."""

    def __init__(
        self, *, obs_dim: int, action_dim: int, hidden_sizes: tuple[int, ...] = (256, 256), num_critics: int = 2
    ) -> None:
        super().__init__()
        hidden_sizes = tuple(hidden_sizes)
        self.actor = mlp((obs_dim, *hidden_sizes, 2 * action_dim))
        self.critics = ensemble_mlp(num_critics, (obs_dim + action_dim, *hidden_sizes, 1))

    def policy(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log-deviation of the Gaussian before squashing, each (B, A)."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample_actions(
        self, obs: torch.Tensor, *, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> SampledActions:
        """Reparameterised actions; ``noise`` (B, A) is standard normal and drawn here unless given."""
        mean, log_std = self.policy(obs)
        if noise is None:
            noise = torch.zeros_like(mean) if deterministic else torch.randn_like(mean)
        return SampledActions(*squash(mean, log_std, noise))

    def q_values(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One (B,) tensor per critic."""
        return self.critics(torch.cat([obs, actions], -1)).squeeze(-1).unbind(0)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return self.actor.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return self.critics.parameters()
