"""Fully parameterized quantile function (Yang et al., 2019): quantile regression at fractions that are learned too.

The fractions of a state minimise the 1-Wasserstein distance between its return and the N quantiles at their midpoints.
That distance cannot be computed, but its gradient can (Proposition 1); it is applied to the fractions alone.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.qr_dqn import QRDQN, Quantiles, quantile_loss
from rl_training.algorithms.value_learner import of_actions, td_target
from rl_training.models.action_values import ProposedQuantileMeans
from rl_training.models.mlp_fqf_network import MLPFQFNetwork
from rl_training.models.overrides import redefined
from rl_training.optim.flat import FlatRMSprop, descend

__all__ = ["FQF", "fraction_gradient"]


def fraction_gradient(quantiles_tau: torch.Tensor, quantile_hats: torch.Tensor) -> torch.Tensor:
    """∂W1/∂τ_i = 2 F⁻¹(τ_i) - F⁻¹(τ̂_i) - F⁻¹(τ̂_{i-1}) for i = 1 … N-1: (B, N-1) and (B, N) -> (B, N-1)."""
    return 2 * quantiles_tau - quantile_hats[:, 1:] - quantile_hats[:, :-1]


def fraction_loss(
    taus: torch.Tensor, quantiles_tau: torch.Tensor, quantile_hats: torch.Tensor, *, scaled: bool
) -> torch.Tensor:
    """A scalar whose gradient with respect to the inner fractions ``taus`` (B, N-1) is ``fraction_gradient``, averaged
    over rows; ``scaled`` divides it by the mean range of the quantiles."""
    with torch.no_grad():
        gradient = fraction_gradient(quantiles_tau, quantile_hats)
        if scaled:
            gradient = gradient / (quantile_hats.amax(1) - quantile_hats.amin(1)).mean().clamp(min=1e-6)
    return (gradient * taus).sum(1).mean()


class FQF(QRDQN):
    """``fraction_scaling`` "range" divides the fraction gradient by the batch's mean range of quantiles, so that
    neither the step nor the entropy's weight depends on the size of returns; "none" is the paper's. Divided by its own
    range, a state with certain returns would push the fractions as hard as any other, and what it pushes with is noise.

    The gradient needs quantiles at the fractions, where the paper's loss, at the midpoints alone, never trains them.
    With ``train_at_fractions`` it does; without, it is the paper's.
    """

    def __init__(
        self,
        *,
        q_network: MLPFQFNetwork,
        fraction_learning_rate: float,
        entropy_coef: float = 1e-3,
        fraction_scaling: Literal["range", "none"] = "range",
        train_at_fractions: bool = True,
        **options: Any,
    ) -> None:
        """Further options: see ``QRDQN`` and ``DQN``."""
        if redefined(q_network, "forward") and not redefined(q_network, "encode", "propose", "quantiles", "values"):
            raise ValueError(
                f"{type(q_network).__name__} overrides forward, which FQF neither learns nor acts by: "
                "override encode, propose, quantiles or values"
            )
        super().__init__(
            q_network=q_network,
            values=ProposedQuantileMeans(q_network),
            parameters=MLPFQFNetwork.quantile_parameters,
            **options,
        )
        self.fraction_optimizer = FlatRMSprop(q_network.fraction_parameters(), lr=fraction_learning_rate)
        self._add_target(self.fraction_optimizer, MLPFQFNetwork.fraction_parameters)
        self._entropy_coef, self._scaled = entropy_coef, fraction_scaling == "range"
        self._train_at_fractions = train_at_fractions
        self._own_values = redefined(q_network, "values")

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        features = self.q_network.encode(obs)
        fractions = self.q_network.propose(features)
        tau_hats, taus = fractions.tau_hats.detach(), fractions.taus[:, 1:-1].detach()

        def quantiles(taus: torch.Tensor) -> torch.Tensor:
            return of_actions(self.q_network.quantiles(features, taus), batch["actions"])

        if self._train_at_fractions:
            trained_taus = torch.cat([tau_hats, taus], 1)
            trained = quantiles(trained_taus)
            quantile_hats, quantiles_tau = trained[:, : self._num_quantiles], trained[:, self._num_quantiles :]
        else:
            trained_taus = tau_hats
            trained = quantile_hats = quantiles(tau_hats)
            with torch.no_grad():
                quantiles_tau = quantiles(taus)
        mean = (fractions.probabilities.detach() * quantile_hats).sum(1)

        with torch.no_grad():  # target: r + γ Z'(s', a*)
            next_values, mass = self.next_return(next_obs)
            target = td_target(batch, next_values, self._gamma)

        terms = quantile_loss(batch, Quantiles(trained, trained_taus, mean), target, mass, kappa=self._kappa)
        wasserstein = fraction_loss(fractions.taus[:, 1:-1], quantiles_tau, quantile_hats, scaled=self._scaled)
        entropy = fractions.entropies.mean()
        entropy_loss = -self._entropy_coef * entropy

        descend((self.optimizer, terms["loss"]), (self.fraction_optimizer, wasserstein + entropy_loss))
        terms |= {
            "fraction_loss": wasserstein,
            "entropy_loss": entropy_loss,
            "fraction_entropy": entropy,
            "fraction_min": fractions.probabilities.amin(),
        }
        return {name: term.detach() for name, term in terms.items()}

    def next_return(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The target network's quantiles at the fractions that it proposes itself, each with the mass between them."""
        features = self.target_network.encode(next_obs)
        fractions = self.target_network.propose(features)
        quantiles, mass = self.target_network.quantiles(features, fractions.tau_hats), fractions.probabilities
        if self._double or self._own_values:
            q_values = (self.q_network if self._double else self.target_network).values(next_obs)
        else:
            q_values = (mass[:, None] * quantiles).sum(-1)
        return of_actions(quantiles, self.allowed(q_values, next_obs).argmax(1)), mass
