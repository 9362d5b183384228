"""Quantile regression DQN (Dabney, Rowland, Bellemare & Munos, 2018), one pair of quantile and target at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from oracles.dqn import DQN, Batch, huber, mean


class Atoms(NamedTuple):
    """Numbers that stand for a distribution: quantiles at ``taus``, or samples with the probabilities ``mass``."""

    values: torch.Tensor  # (B, N)
    taus: torch.Tensor  # (B, N)
    mass: torch.Tensor  # (B, N)


def equal(values: torch.Tensor, taus: torch.Tensor) -> Atoms:
    return Atoms(values, taus, torch.full_like(values, 1 / values.shape[1]))


class QRDQN(DQN):
    """Σ_i E_j |τ_i - 1{u_ij < 0}| L_κ(u_ij) / κ for u_ij = r + γ Z'_j(s', a*) - Z_i(s, a)."""

    def __init__(self, network: nn.Module, *, num_quantiles: int, kappa: float = 1.0, **options: Any) -> None:
        super().__init__(network, **options)
        self.count, self.kappa = num_quantiles, kappa

    def regression(self, batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, Any]]:
        predicted, means = self.predicted(batch)
        with torch.no_grad():
            sampled = self.next_return(batch)
        losses, errors, targets = [], [], []
        for b in range(len(batch["actions"])):
            loss, error, target = torch.zeros(()), torch.zeros(()), torch.zeros(())
            for z, p in zip(sampled.values[b], sampled.mass[b]):
                y = batch["rewards"][b] + self.discount(batch, b) * z
                target = target + p * y
                for theta, tau in zip(predicted.values[b], predicted.taus[b]):
                    u = y - theta
                    side = 1 - tau if u < 0 else tau
                    loss = loss + p * side * huber(u, self.kappa) / self.kappa
                    error = error + p * u.detach().abs() / predicted.values.shape[1]
            losses.append(loss)
            errors.append(error)
            targets.append(target)
        return losses, torch.stack(errors), {"q_value_mean": mean(means), "target_mean": mean(targets)}

    def predicted(self, batch: Batch) -> tuple[Atoms, torch.Tensor]:
        """Z(s, a) where it is trained, and its mean."""
        quantiles = self.network(batch["obs"])
        rows = torch.stack([quantiles[b, a] for b, a in enumerate(batch["actions"])])
        taus = torch.tensor([[(i + 0.5) / self.count for i in range(self.count)]] * len(rows))
        return equal(rows, taus), rows.detach().mean(1)

    def next_return(self, batch: Batch) -> Atoms:
        """Z'(s', a*), a* by the largest mean."""
        quantiles = self.target(batch["next_obs"])
        choosing = self.network(batch["next_obs"]) if self.double else quantiles
        best = [max(range(len(z)), key=lambda a: float(z[a].mean())) for z in choosing]
        rows = torch.stack([quantiles[b, a] for b, a in enumerate(best)])
        return equal(rows, rows)
