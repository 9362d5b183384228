"""The quantile function of the return, as a network of observation and fraction (Dabney et al., 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from rl_training.base.parts import Parts
from rl_training.models.memory import MemorySize
from rl_training.models.mlp import Linear
from rl_training.models.mlp_q_network import epsilon_greedy, q_head
from rl_training.models.noisy import NoisyLinear
from rl_training.models.trunks import encoder, observed, remembering

__all__ = ["ImplicitQuantiles", "MLPIQNetwork", "midpoints", "quantiles_at"]


def midpoints(count: int, device: torch.device | None = None) -> torch.Tensor:
    """The midpoints of ``count`` equal parts of [0, 1]."""
    return (torch.arange(count, device=device) + 0.5) / count


class ImplicitQuantiles(nn.Module):
    """Encoder of the observation, multiplied by an embedding of the fraction, to a quantile per action.

    The embedding is a learned layer over cos(π i τ) for i = 0 … ``embedding_dim`` - 1. As in the paper, the last hidden
    layer comes after the product; a single hidden layer comes before it.
    """

    frequencies: torch.Tensor

    def __init__(
        self,
        *,
        obs_dim: int | None = None,
        action_dim: int,
        num_quantiles: int = 64,
        hidden_sizes: tuple[int, ...] = (64, 64),
        embedding_dim: int = 64,
        obs_shape: tuple[int, ...] | None = None,
        obs_parts: Parts | None = None,
        dueling: bool = False,
        noisy: bool = False,
        memory: MemorySize | None = None,
    ) -> None:
        super().__init__()
        self.action_dim, self.num_quantiles, self.embedding_dim = action_dim, num_quantiles, embedding_dim
        shape = observed(obs_dim, obs_shape, obs_parts)
        observing, width, head_sizes = encoder(shape, tuple(hidden_sizes), linear=NoisyLinear if noisy else Linear)
        self.encoder, width = remembering(observing, width, memory)
        self.width = width
        self.embedding = nn.Sequential(Linear(embedding_dim, width), nn.ReLU())
        self.head = q_head(width, head_sizes, action_dim, 1, dueling=dueling, noisy=noisy)
        self.register_buffer("frequencies", torch.pi * torch.arange(embedding_dim), persistent=False)

    def encode(self, obs: torch.Tensor) -> torch.Tensor:
        """The encoder's output: (B, ...) -> (B, F)."""
        features: torch.Tensor = self.encoder(obs)
        return features

    def quantiles(self, features: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        """Features (B, F) and fractions (B, N) -> quantiles (B, A, N)."""
        embedded = self.embedding(torch.cos(taus[..., None] * self.frequencies))
        quantiles: torch.Tensor = self.head(features[:, None, :] * embedded)
        return quantiles.transpose(1, 2)


class MLPIQNetwork(ImplicitQuantiles):
    """Quantiles at ``num_quantiles`` random fractions of each observation, or at given ones."""

    REPLACED: ClassVar[tuple[str, ...]] = ("forward", "encode", "quantiles", "act")  # by numpy, in acting

    def forward(
        self,
        obs: torch.Tensor,
        *,
        num_quantiles: int | None = None,
        taus: torch.Tensor | None = None,
        random_taus: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(quantiles (B, A, N), fractions (B, N)); without ``random_taus``, at the midpoints of N equal parts."""
        features = self.encode(obs)
        if taus is None:
            taus = self.fractions(len(features), num_quantiles or self.num_quantiles, random_taus, features.device)
        return self.quantiles(features, taus), taus

    @staticmethod
    def fractions(rows: int, count: int, random: bool, device: torch.device) -> torch.Tensor:
        """(rows, count) fractions: uniformly random, or the same midpoints in every row."""
        return torch.rand(rows, count, device=device) if random else midpoints(count, device).expand(rows, count)

    def act(self, obs: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
        """ε-greedy actions (B,), by the mean of quantiles at midpoints."""
        return epsilon_greedy(self(obs, random_taus=False)[0].mean(-1), epsilon)


def quantiles_at(network: Any, obs: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
    """Quantiles (B, A, N) at fractions (B, N): by ``forward`` of an MLPIQNetwork, by ``encode`` and ``quantiles`` of
    any other network."""
    ours = isinstance(network, MLPIQNetwork)
    quantiles: torch.Tensor = network(obs, taus=taus)[0] if ours else network.quantiles(network.encode(obs), taus)
    return quantiles
