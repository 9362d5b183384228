"""Implicit quantile networks (Dabney, Ostrovski, Silver & Munos, 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.qr_dqn import Predicted, QuantileLearner
from rl_training.algorithms.value_learner import of_actions
from rl_training.models.host import MOST_ROWS, HostFunction, host_quantiles, with_arrays
from rl_training.models.mlp_iqn_network import MLPIQNetwork, midpoints


def quantiles_at(network: Any, obs: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
    """Quantiles (B, A, N) at fractions (B, N): by ``forward`` of an MLPIQNetwork, by ``encode`` and ``quantiles`` of another."""
    if isinstance(network, MLPIQNetwork):
        return network(obs, taus=taus)[0]
    return network.quantiles(network.encode(obs), taus)


def _torch_values(network: Any, obs: np.ndarray, taus: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    return with_arrays(network, lambda obs, taus: quantiles_at(network, obs, taus).mean(-1), obs, taus)


def _numpy_values(network: Any) -> Callable[..., np.ndarray] | None:
    parts = host_quantiles(network)
    if parts is None:
        return None
    encode, quantiles = parts

    def values(obs: np.ndarray, taus: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        if taus.size > MOST_ROWS:
            return _torch_values(network, obs, taus, rng)
        return quantiles(encode(obs, rng), taus, rng).mean(-1)

    return values


class IQN(QuantileLearner):
    """``q_network`` is an MLPIQNetwork, or has ``encode`` and ``quantiles`` as ``ImplicitQuantiles`` has.

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
        self._mean_at = HostFunction(self.q_network, _numpy_values, _torch_values)

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        rows = len(obs)
        taus = np.tile(self._middles, (rows, 1)) if rng is None else rng.random((rows, self._samples), "f4")
        return self._mean_at(obs, taus, rng)

    def _greedy_values(self) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        taus = self._judging
        return lambda network, obs: quantiles_at(network, obs, taus.to(obs.device)).mean(-1)

    def fractions(self, rows: int) -> torch.Tensor:
        """Random fractions (rows, num_quantiles); one of a row's, picked blindly, is uniform on [0, 1]."""
        drawn = torch.rand(rows, self._num_quantiles, device=self._gamma.device)
        return drawn if self._strata is None else (drawn + self._strata) / self._num_quantiles

    def _next_atoms(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = len(next_obs)
        asked = self.fractions(rows)
        if self._double:  # the same fractions for all: embedded once, and no noise in the choice
            judged = quantiles_at(self.q_network, next_obs, self._judging)
            atoms = quantiles_at(self.target_network, next_obs, asked)
        else:  # one pass for both
            judging = torch.rand(rows, self._samples, device=next_obs.device)
            both = quantiles_at(self.target_network, next_obs, torch.cat([judging, asked], 1))
            judged, atoms = both[..., : self._samples], both[..., self._samples :]
        return of_actions(atoms, judged.mean(-1).argmax(1)), None

    def _predict(self, obs: torch.Tensor, actions: torch.Tensor) -> Predicted:
        taus = self.fractions(len(obs))
        quantiles = of_actions(quantiles_at(self.q_network, obs, taus), actions)
        return Predicted(quantiles, taus, quantiles.mean(1))
