"""Fully parameterized quantile function (Yang et al., 2019): quantiles at the midpoints of proposed fractions.

The fractions follow Proposition 1, ∂W1/∂τ_i = 2 F⁻¹(τ_i) - F⁻¹(τ̂_i) - F⁻¹(τ̂_{i-1}), which autograd is given as the
gradient of τ_i.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oracles.dqn import Batch
from oracles.qr_dqn import QRDQN, Atoms


class FQF(QRDQN):
    def __init__(
        self, network: nn.Module, *, fraction_learning_rate: float, entropy_coef: float = 1e-3,
        fraction_scaling: str = "range", train_at_fractions: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(network, **options)
        self.fraction_optimizer = torch.optim.RMSprop(
            network.fraction_head.parameters(), lr=fraction_learning_rate, alpha=0.95, eps=1e-5
        )
        self.entropy_coef, self.scaling, self.everywhere = entropy_coef, fraction_scaling, train_at_fractions

    def update(self, batch: Batch) -> dict[str, float]:
        return super().update(batch) | self.reported

    def step(self) -> None:
        super().step()
        self.fraction_optimizer.step()

    def proposed(self, network: nn.Module, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Masses (B, N), fractions (B, N + 1) from 0 to 1, and their midpoints (B, N)."""
        mass = torch.softmax(network.fraction_head(features.detach()), 1)
        taus = torch.stack([mass[:, :i].sum(1) for i in range(self.count + 1)], 1)
        return mass, taus, torch.stack([(taus[:, i] + taus[:, i + 1]) / 2 for i in range(self.count)], 1)

    def predicted(self, batch: Batch) -> tuple[Atoms, torch.Tensor]:
        features = self.network.encode(batch["obs"])
        mass, taus, tau_hats = self.proposed(self.network, features)
        inner = taus[:, 1:-1]

        def quantiles(taus: torch.Tensor) -> torch.Tensor:
            values = self.network.quantiles(features, taus.detach())
            return torch.stack([values[b, a] for b, a in enumerate(batch["actions"])])

        trained = torch.cat([tau_hats, inner], 1).detach() if self.everywhere else tau_hats.detach()
        values = quantiles(trained)
        hats = values.detach()[:, : self.count]
        at = values.detach()[:, self.count :] if self.everywhere else quantiles(inner).detach()
        self.propose_better(mass, inner, at, hats)
        return Atoms(values, trained, mass.detach()), (mass.detach() * hats).sum(1)

    def propose_better(self, mass: torch.Tensor, inner: torch.Tensor, at: torch.Tensor, hats: torch.Tensor) -> None:
        """The gradients of the fraction head, for ``step``."""
        rows = len(mass)
        gradient = torch.zeros_like(inner)
        for b in range(rows):
            for i in range(1, self.count):
                gradient[b, i - 1] = 2 * at[b, i - 1] - hats[b, i] - hats[b, i - 1]
        if self.scaling == "range":
            gradient = gradient / (sum(row.max() - row.min() for row in hats) / rows)
        entropy = -(mass * mass.log()).sum() / rows
        self.fraction_optimizer.zero_grad()
        torch.autograd.backward([inner, -self.entropy_coef * entropy], [gradient / rows, None])
        self.reported = {
            "fraction_loss": (gradient * inner).sum().item() / rows, "fraction_entropy": entropy.item(),
            "entropy_loss": -self.entropy_coef * entropy.item(), "fraction_min": mass.min().item(),
        }  # fmt: skip

    def next_return(self, batch: Batch) -> Atoms:
        """The target network's quantiles at its own fractions, each with the mass that it stands for."""
        features = self.target.encode(batch["next_obs"])
        mass, _, tau_hats = self.proposed(self.target, features)
        quantiles = self.target.quantiles(features, tau_hats)
        values = (quantiles * mass[:, None]).sum(2)
        if self.double:
            features = self.network.encode(batch["next_obs"])
            own_mass, _, own_hats = self.proposed(self.network, features)
            values = (self.network.quantiles(features, own_hats) * own_mass[:, None]).sum(2)
        best = values.argmax(1)
        return Atoms(torch.stack([quantiles[b, a] for b, a in enumerate(best)]), tau_hats, mass)
