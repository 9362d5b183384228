"""Implicit quantile networks (Dabney, Ostrovski, Silver & Munos, 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Greedy
from rl_training.algorithms.qr_dqn import Predicted, QuantileLearner
from rl_training.algorithms.value_learner import of_actions
from rl_training.models.host import MOST_ROWS, host_quantiles, torch_forward
from rl_training.models.mlp_iqn_network import MLPIQNetwork, midpoints


class IQN(QuantileLearner):
    """``q_network`` has ``encode`` and ``quantiles`` as ``ImplicitQuantiles`` has.

    Both sides of the regression use ``num_quantiles`` random fractions, ``stratified`` ones from as many equal parts of [0, 1], one
    each; actions are judged by ``action_samples`` of them, or by the middles of as many equal parts where actions shall be
    deterministic or a double estimator chooses them.
    """

    def __init__(self, *, action_samples: int = 32, stratified: bool = False, **options: Any) -> None:
        """Options: see ``QuantileLearner`` and ``ValueLearner``."""
        super().__init__(**options)
        self._samples = action_samples
        parts = torch.arange(self._num_quantiles, device=self._gamma.device)
        self._strata = parts if stratified else None
        self._middles = midpoints(action_samples).numpy()
        self._judging = midpoints(action_samples)[None].to(self._gamma.device)
        self._host = host_quantiles(self.q_network) if type(self.q_network) is MLPIQNetwork else None
        self._forward = torch_forward(self._mean_of, self._gamma.device)

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        rows = len(obs)
        taus = np.tile(self._middles, (rows, 1)) if rng is None else rng.random((rows, self._samples), "f4")
        if self._host is None or rows * self._samples > MOST_ROWS:
            return self._forward(obs, taus)
        encode, quantiles = self._host
        return quantiles(encode(obs, rng), taus, rng).mean(-1)

    def _mean_of(self, obs: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        return self.q_network.quantiles(self.q_network.encode(obs), taus).mean(-1)

    def policy_module(self) -> nn.Module:
        taus = self._judging.cpu()
        return Greedy(self.q_network, lambda network, obs: network.quantiles(network.encode(obs), taus).mean(-1))

    def fractions(self, rows: int) -> torch.Tensor:
        """Random fractions (rows, num_quantiles); one of a row's, picked blindly, is uniform on [0, 1]."""
        drawn = torch.rand(rows, self._num_quantiles, device=self._gamma.device)
        return drawn if self._strata is None else (drawn + self._strata) / self._num_quantiles

    def _next_atoms(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = len(next_obs)
        features = self.target_network.encode(next_obs)
        asked = self.fractions(rows)
        if self._double:  # the same fractions for all: embedded once, and no noise in the choice
            judged = self.q_network.quantiles(self.q_network.encode(next_obs), self._judging)
            atoms = self.target_network.quantiles(features, asked)
        else:  # one pass for both
            judging = torch.rand(rows, self._samples, device=next_obs.device)
            both = self.target_network.quantiles(features, torch.cat([judging, asked], 1))
            judged, atoms = both[..., : self._samples], both[..., self._samples :]
        return of_actions(atoms, judged.mean(-1).argmax(1)), None

    def _predict(self, obs: torch.Tensor, actions: torch.Tensor) -> Predicted:
        taus = self.fractions(len(obs))
        quantiles = of_actions(self.q_network.quantiles(self.q_network.encode(obs), taus), actions)
        return Predicted(quantiles, taus, quantiles.mean(1))
