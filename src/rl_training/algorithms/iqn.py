"""Implicit quantile networks (Dabney, Ostrovski, Silver & Munos, 2018): quantile regression at random fractions."""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.qr_dqn import QRDQN, Quantiles
from rl_training.algorithms.value_learner import of_actions
from rl_training.models.action_values import FractionQuantileMeans
from rl_training.models.mlp_iqn_network import quantiles_at

__all__ = ["IQN"]


class IQN(QRDQN):
    """``q_network`` is an MLPIQNetwork, or has ``encode`` and ``quantiles`` as ``ImplicitQuantiles`` has.

    Both sides of the regression use ``num_quantiles`` random fractions; ``stratified`` draws one from each of as many
    equal parts of [0, 1]. Actions are valued at ``action_samples`` random fractions, or at the midpoints of as many
    equal parts where acting is deterministic or a double estimator chooses the next action.
    """

    def __init__(self, *, q_network: Any, action_samples: int = 32, stratified: bool = False, **options: Any) -> None:
        """Further options: see ``QRDQN`` and ``DQN``."""
        values = FractionQuantileMeans(q_network, action_samples)
        super().__init__(q_network=q_network, values=values, **options)
        self._action_samples, self._midpoints = action_samples, values.midpoints[None].to(self._gamma.device)
        self._strata = torch.arange(self._num_quantiles, device=self._gamma.device) if stratified else None

    def fractions(self, rows: int) -> torch.Tensor:
        """Random fractions (rows, num_quantiles); a random one of a row's is uniform on [0, 1]."""
        uniform = torch.rand(rows, self._num_quantiles, device=self._gamma.device)
        return uniform if self._strata is None else (uniform + self._strata) / self._num_quantiles

    def quantiles(self, obs: torch.Tensor, actions: torch.Tensor) -> Quantiles:
        taus = self.fractions(len(obs))
        quantiles = of_actions(quantiles_at(self.q_network, obs, taus), actions)
        return Quantiles(quantiles, taus, quantiles.mean(1))

    def next_return(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        taus, samples = self.fractions(len(next_obs)), self._action_samples
        if self._double:  # the same fractions for all: embedded once, and no noise in the choice
            choosing = quantiles_at(self.q_network, next_obs, self._midpoints)
            quantiles = quantiles_at(self.target_network, next_obs, taus)
        else:  # one pass for both
            random = torch.rand(len(next_obs), samples, device=next_obs.device)
            both = quantiles_at(self.target_network, next_obs, torch.cat([random, taus], 1))
            choosing, quantiles = both[..., :samples], both[..., samples:]
        return of_actions(quantiles, self.allowed(choosing.mean(-1), next_obs).argmax(1)), None
