"""Quantiles at fractions that the network proposes for each observation (Yang et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from rl_training.models.mlp_iqn_network import ImplicitQuantiles
from rl_training.models.mlp_q_network import epsilon_greedy

__all__ = ["FQFOutput", "Fractions", "MLPFQFNetwork", "fractions_of"]


class Fractions(NamedTuple):
    """Fractions 0 = τ_0 < … < τ_N = 1, the probabilities between them and their midpoints."""

    probabilities: torch.Tensor  # (B, N), τ_{i+1} - τ_i
    taus: torch.Tensor  # (B, N + 1)
    tau_hats: torch.Tensor  # (B, N), the midpoints
    entropies: torch.Tensor  # (B,), of the probabilities


class FQFOutput(NamedTuple):
    """Proposed fractions, and the quantiles at them."""

    quantile_hats: torch.Tensor  # (B, A, N), at the midpoints
    taus: torch.Tensor  # (B, N + 1)
    tau_hats: torch.Tensor  # (B, N)
    quantiles_tau: torch.Tensor  # (B, A, N - 1), at the inner fractions
    entropies: torch.Tensor  # (B,)
    q_values: torch.Tensor  # (B, A)

    @property
    def quantiles_hat(self) -> torch.Tensor:
        """Another name of ``quantile_hats``."""
        return self.quantile_hats


def fractions_of(logits: torch.Tensor) -> Fractions:
    """Fractions with softmax(logits) between them."""
    log_probabilities = logits.log_softmax(-1)
    probabilities = log_probabilities.exp()
    first = torch.zeros_like(probabilities[:, :1])
    inner = probabilities.cumsum(-1)[:, :-1]
    inner = inner - (inner - 1).clamp(min=0).detach()  # sums may round to more than 1; the gradient stays
    taus = torch.cat([first, inner, first + 1], 1)
    entropies = -(probabilities * log_probabilities).sum(-1)
    return Fractions(probabilities, taus, (taus[:, 1:] + taus[:, :-1]) / 2, entropies)


class MLPFQFNetwork(ImplicitQuantiles):
    """The implicit quantile network with a head that proposes ``num_quantiles`` fractions, nearly equal at first.

    Learning and acting use ``encode``, ``propose``, ``quantiles`` and ``values``; ``forward`` gives all of their
    results at once, for other uses.
    """

    # replaced by numpy in acting
    REPLACED: ClassVar[tuple[str, ...]] = ("forward", "encode", "propose", "quantiles", "values", "act")

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.fraction_head = nn.Linear(self.width, self.num_quantiles)
        nn.init.xavier_uniform_(self.fraction_head.weight, gain=0.01)
        nn.init.zeros_(self.fraction_head.bias)

    def propose(self, features: torch.Tensor) -> Fractions:
        """Fractions for features (B, F); no gradient flows back into the features."""
        return fractions_of(self.fraction_head(features.detach()))

    def forward(self, obs: torch.Tensor) -> FQFOutput:
        features = self.encode(obs)
        fractions = self.propose(features)
        quantile_hats = self.quantiles(features, fractions.tau_hats.detach())
        with torch.no_grad():
            quantiles_tau = self.quantiles(features, fractions.taus[:, 1:-1])
        q_values = (fractions.probabilities.detach()[:, None] * quantile_hats).sum(-1)
        return FQFOutput(
            quantile_hats, fractions.taus, fractions.tau_hats, quantiles_tau, fractions.entropies, q_values
        )

    def act(self, obs: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
        """ε-greedy actions (B,)."""
        return epsilon_greedy(self.values(obs), epsilon, self.masks, obs)

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """Q-values (B, A): quantiles at the midpoints, weighted by the probabilities."""
        features = self.encode(obs)
        fractions = self.propose(features)
        return (fractions.probabilities[:, None] * self.quantiles(features, fractions.tau_hats)).sum(-1)

    def fraction_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the head that proposes fractions."""
        return self.fraction_head.parameters()

    def quantile_parameters(self) -> Iterator[nn.Parameter]:
        """All other parameters."""
        mine = {id(p) for p in self.fraction_parameters()}
        return (p for p in self.parameters() if id(p) not in mine)
