"""Quantile regression DQN (Dabney, Rowland, Bellemare & Munos, 2018), and what every learner of quantiles shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.value_learner import ValueLearner, of_actions, td_target, weighted_mean
from rl_training.models.host import host_forward
from rl_training.models.mlp_iqn_network import midpoints
from rl_training.optim.flat import descend


def quantile_huber_loss(
    quantiles: torch.Tensor,
    taus: torch.Tensor,
    targets: torch.Tensor,
    *,
    kappa: float = 1.0,
    mass: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's loss, and the mean size of its errors u = target - quantile: both (B,).

    ``quantiles`` (B, N) at ``taus`` (B, N) or (N,) against ``targets`` (B, M): the mean over targets, or the sum by their
    ``mass`` (B, M), of |τ - 1{u < 0}| times Huber's loss over κ; summed over quantiles.
    """
    u = targets[:, None, :] - quantiles[:, :, None]
    size = u.abs()
    huber = torch.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa)) / kappa
    losses = (taus[..., None] - (u.detach() < 0).to(u.dtype)).abs() * huber
    if mass is None:
        return losses.mean(2).sum(1), size.detach().mean((1, 2))
    weight = mass[:, None, :]
    return (losses * weight).sum((1, 2)), (size.detach() * weight).sum(2).mean(1)


class Predicted(NamedTuple):
    """Quantiles of the return of the actions that were taken, with gradient."""

    quantiles: torch.Tensor  # (B, N)
    taus: torch.Tensor  # (B, N) or (N,)
    values: torch.Tensor  # (B,)


class QuantileLearner(ValueLearner):
    """Quantile regression towards r + γ Z(s', a*). A subclass gives both sides."""

    COMPILE_THRESHOLD = 4_000  # every quantile meets every target: eager, that is ten times the work of the rest

    def __init__(self, *, num_quantiles: int, kappa: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._num_quantiles, self._kappa = num_quantiles, kappa

    def _next_atoms(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Quantiles (B, M) of the best next action's return, and their mass (B, M); None where it is equal."""
        raise NotImplementedError

    def _predict(self, obs: torch.Tensor, actions: torch.Tensor) -> Predicted:
        raise NotImplementedError

    def _regress(self, batch: Tensors, predicted: Predicted, next_obs: torch.Tensor) -> Tensors:
        with torch.no_grad():
            atoms, mass = self._next_atoms(next_obs)
            targets = td_target(batch, atoms, self._gamma)
        losses, td_errors = quantile_huber_loss(
            predicted.quantiles, predicted.taus, targets, kappa=self._kappa, mass=mass
        )
        return {
            "loss": weighted_mean(losses, batch),
            "q_value_mean": predicted.values.detach().mean(),
            "target_mean": targets.mean() if mass is None else (targets * mass).sum(1).mean(),
            "td_error_mean": td_errors.mean(),
            "td_errors": td_errors,
        }

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        terms = self._regress(batch, self._predict(obs, batch["actions"]), next_obs)
        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}


class QRDQN(QuantileLearner):
    """``q_network`` is any module from observations to quantiles (B, A, N) at the fractions (i + 1/2) / N."""

    def __init__(self, *, q_network: Any, **options: Any) -> None:
        """Options: see ``QuantileLearner`` and ``ValueLearner``."""
        super().__init__(q_network=q_network, **options)
        self._forward = host_forward(q_network)
        self._taus = midpoints(self._num_quantiles).to(self._gamma.device)

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        quantiles = self._forward(obs, rng)
        return quantiles.reshape(len(obs), -1, self._num_quantiles).mean(-1)

    def _greedy_values(self) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        return lambda network, obs: network(obs).mean(-1)

    def _next_atoms(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        atoms = self.target_network(next_obs)
        choosing = self.q_network(next_obs) if self._double else atoms
        return of_actions(atoms, choosing.mean(-1).argmax(1)), None

    def _predict(self, obs: torch.Tensor, actions: torch.Tensor) -> Predicted:
        quantiles = of_actions(self.q_network(obs), actions)
        return Predicted(quantiles, self._taus, quantiles.mean(1))
