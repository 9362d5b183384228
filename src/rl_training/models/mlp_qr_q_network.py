"""Quantiles of the return at fixed fractions, for every action."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from rl_training.models.mlp_q_network import MLPQNetwork, epsilon_greedy

__all__ = ["MLPQRQNetwork"]


class MLPQRQNetwork(MLPQNetwork):
    """Quantiles at the fractions (i + 1/2) / N: (B, A, N). The other arguments are those of ``MLPQNetwork``."""

    REPLACED: ClassVar[tuple[str, ...]] = ("forward", "act")  # by numpy, in acting

    def __init__(self, *, action_dim: int, num_quantiles: int, **arguments: Any) -> None:
        super().__init__(action_dim=action_dim, atoms=num_quantiles, **arguments)
        self.action_dim, self.num_quantiles = action_dim, num_quantiles

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Quantiles (B, A, N)."""
        quantiles: torch.Tensor = self.body(obs).unflatten(-1, (self.action_dim, self.num_quantiles))
        return quantiles

    def act(self, obs: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
        """ε-greedy actions (B,), by the mean over quantiles."""
        return epsilon_greedy(self(obs).mean(-1), epsilon, self.masks, obs)
