"""Quantile regression DQN (Dabney, Rowland, Bellemare & Munos, 2018): quantiles of the return in place of its mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.value_learner import of_actions, td_target, weighted_mean
from rl_training.models.action_values import ActionValues, QuantileMeans
from rl_training.models.mlp_iqn_network import midpoints
from rl_training.optim.flat import descend

__all__ = ["QRDQN", "Quantiles", "quantile_huber_loss", "quantile_loss"]


class Quantiles(NamedTuple):
    """Quantiles of the return of one action per row."""

    values: torch.Tensor  # (B, N)
    taus: torch.Tensor  # (B, N) or (N,): the fractions at which they lie
    mean: torch.Tensor  # (B,)


def quantile_huber_loss(
    quantiles: torch.Tensor,
    taus: torch.Tensor,
    targets: torch.Tensor,
    *,
    kappa: float = 1.0,
    mass: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's loss, and the mean size of its errors u = target - quantile: both (B,).

    ``quantiles`` (B, N) at ``taus`` (B, N) or (N,) against ``targets`` (B, M): the mean over targets, or the sum by
    their ``mass`` (B, M), of |τ - 1{u < 0}| times Huber's loss over κ; summed over quantiles.
    """
    u = targets[:, None, :] - quantiles[:, :, None]
    size = u.abs()
    huber = torch.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa)) / kappa
    losses = (taus[..., None] - (u.detach() < 0).to(u.dtype)).abs() * huber
    if mass is None:
        return losses.mean(2).sum(1), size.detach().mean((1, 2))
    weight = mass[:, None, :]
    return (losses * weight).sum((1, 2)), (size.detach() * weight).sum(2).mean(1)


def quantile_loss(
    batch: Tensors, predicted: Quantiles, target: torch.Tensor, mass: torch.Tensor | None, *, kappa: float
) -> Tensors:
    """Quantile regression on samples (B, M) of the return with probabilities ``mass`` (B, M; None: all equal), with the
    importance ``weights`` of the batch, if there are any."""
    losses, td_errors = quantile_huber_loss(predicted.values, predicted.taus, target, kappa=kappa, mass=mass)
    return {
        "loss": weighted_mean(losses, batch),
        "q_value_mean": predicted.mean.detach().mean(),
        "target_mean": target.mean() if mass is None else (target * mass).sum(1).mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


class QRDQN(DQN):
    """``q_network`` is any module from observations to quantiles (B, A, N) at the fractions (i + 1/2) / N.

    A variant predicts quantiles at other fractions: here (``quantiles``) and at the next observation (``next_return``).
    """

    COMPILE_THRESHOLD = 4_000  # every quantile meets every target: eager, that is ten times the work of the rest

    def __init__(
        self,
        *,
        q_network: Any,
        num_quantiles: int,
        kappa: float = 1.0,
        values: ActionValues | None = None,
        **options: Any,
    ) -> None:
        """Further options: see ``DQN``."""
        values = QuantileMeans(q_network, num_quantiles) if values is None else values
        super().__init__(q_network=q_network, values=values, **options)
        self._num_quantiles, self._kappa = num_quantiles, kappa
        self._taus = midpoints(num_quantiles, self._gamma.device)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        predicted = self.quantiles(obs, batch["actions"])

        with torch.no_grad():  # target: r + γ Z'(s', a*)
            next_values, mass = self.next_return(next_obs)
            target = td_target(batch, next_values, self._gamma)

        terms = quantile_loss(batch, predicted, target, mass, kappa=self._kappa)

        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}

    def quantiles(self, obs: torch.Tensor, actions: torch.Tensor) -> Quantiles:
        """Z(s, a): the online network's quantiles of the actions that were taken."""
        quantiles = of_actions(self.q_network(obs), actions)
        return Quantiles(quantiles, self._taus, quantiles.mean(1))

    def next_return(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Z'(s', a*): the target network's quantiles (B, M) for the action with the largest mean, and their
        probabilities (B, M; None: all equal)."""
        quantiles = self.target_network(next_obs)
        q_values = (self.q_network(next_obs) if self._double else quantiles).mean(-1)
        return of_actions(quantiles, self.allowed(q_values, next_obs).argmax(1)), None
