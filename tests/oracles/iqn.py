"""Implicit quantile networks (Dabney, Ostrovski, Silver & Munos, 2018): N = N' random fractions, actions by K.

The draws, in this order: τ (B, N) of the prediction, τ' (B, N) of the target and, without double, K of the choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oracles.dqn import Batch
from oracles.qr_dqn import QRDQN, Atoms, equal


def all_at(network: nn.Module, obs: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
    quantiles: torch.Tensor = network.quantiles(network.encode(obs), taus)
    return quantiles


class IQN(QRDQN):
    def __init__(
        self, network: nn.Module, *, action_samples: int = 32, stratified: bool = False, **options: Any
    ) -> None:
        super().__init__(network, **options)
        self.samples, self.stratified = action_samples, stratified

    def fractions(self, rows: int) -> torch.Tensor:
        taus = torch.rand(rows, self.count)
        return (taus + torch.arange(self.count)) / self.count if self.stratified else taus

    def predicted(self, batch: Batch) -> tuple[Atoms, torch.Tensor]:
        taus = self.fractions(len(batch["obs"]))
        quantiles = all_at(self.network, batch["obs"], taus)
        rows = torch.stack([quantiles[b, a] for b, a in enumerate(batch["actions"])])
        return equal(rows, taus), rows.detach().mean(1)

    def next_return(self, batch: Batch) -> Atoms:
        obs = batch["next_obs"]
        taus = self.fractions(len(obs))
        if self.double:
            midpoints = (torch.arange(self.samples) + 0.5) / self.samples
            choosing = all_at(self.network, obs, midpoints.repeat(len(obs), 1))
            quantiles = all_at(self.target, obs, taus)
        else:
            random = torch.rand(len(obs), self.samples)
            both = all_at(self.target, obs, torch.cat([random, taus], 1))  # one pass: one noise for both
            choosing, quantiles = both[..., : self.samples], both[..., self.samples :]
        best = choosing.mean(2).argmax(1)
        return equal(torch.stack([quantiles[b, a] for b, a in enumerate(best)]), taus)
