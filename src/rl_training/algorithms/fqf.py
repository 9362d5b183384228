"""Fully parameterized quantile function (Yang et al., 2019): the fractions are learned too.

The fractions of a state minimise the 1-Wasserstein distance between its return and the N quantiles at their middles. That
distance cannot be computed, but its gradient can (Proposition 1); it is applied to the fractions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.qr_dqn import Predicted, QuantileLearner
from rl_training.algorithms.value_learner import of_actions
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    host_quantiles,
    numpy_layers,
    redefined,
    through,
    with_arrays,
)
from rl_training.models.mlp_fqf_network import Fractions, MLPFQFNetwork
from rl_training.optim.flat import FlatRMSprop, descend


def fraction_gradient(quantiles_tau: torch.Tensor, quantile_hats: torch.Tensor) -> torch.Tensor:
    """∂W1/∂τ_i = 2 F⁻¹(τ_i) - F⁻¹(τ̂_i) - F⁻¹(τ̂_{i-1}) for i = 1 … N-1: (B, N-1) and (B, N) -> (B, N-1)."""
    return 2 * quantiles_tau - quantile_hats[:, 1:] - quantile_hats[:, :-1]


def _torch_values(network: MLPFQFNetwork, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    return with_arrays(network, network.values, obs)


def _numpy_values(network: MLPFQFNetwork) -> Callable[..., np.ndarray] | None:
    parts, fraction_head = host_quantiles(network), numpy_layers(network.fraction_head)
    if parts is None or fraction_head is None:
        return None
    encode, quantiles = parts

    def values(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        if len(obs) * network.num_quantiles > MOST_ROWS:
            return _torch_values(network, obs, rng)
        features = encode(obs, rng)
        logits = through(fraction_head, features)
        mass = np.exp(logits - logits.max(1, keepdims=True))
        mass /= mass.sum(1, keepdims=True)
        upper = np.minimum(mass.cumsum(1), np.float32(1))
        upper[:, -1] = 1
        lower = np.concatenate([np.zeros_like(upper[:, :1]), upper[:, :-1]], 1)
        return (mass[:, None] * quantiles(features, (lower + upper) / 2, rng)).sum(-1)

    return values


class FQF(QuantileLearner):
    """``fraction_scaling`` "range" divides the fraction gradient by the batch's mean range of quantiles, so that neither the
    step nor the entropy's weight depends on the size of returns; "none" is the paper's. By its own range, a state with
    certain returns would push the fractions as hard as any other, and what it pushes with is noise.

    The gradient needs quantiles at the fractions, where the paper's loss, at the middles alone, never trains them. With
    ``train_at_fractions`` it does; without, it is the paper's.
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
        """Options: see ``QuantileLearner`` and ``ValueLearner``."""
        if redefined(q_network, "forward") and not redefined(q_network, "encode", "propose", "quantiles", "values"):
            raise ValueError(
                f"{type(q_network).__name__} overrides forward, which FQF neither learns nor acts by: "
                "override encode, propose, quantiles or values"
            )
        super().__init__(q_network=q_network, parameters=MLPFQFNetwork.quantile_parameters, **options)
        self.fraction_optimizer = FlatRMSprop(q_network.fraction_parameters(), lr=fraction_learning_rate)
        self._follow(self.fraction_optimizer, MLPFQFNetwork.fraction_parameters)
        self._entropy_coef, self._scaled = entropy_coef, fraction_scaling == "range"
        self._train_at_fractions = train_at_fractions
        self._own_values = redefined(q_network, "values")
        self._value_of = HostFunction(q_network, _numpy_values, _torch_values)

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        return self._value_of(obs, rng)

    def _greedy_values(self) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        return lambda network, obs: network.values(obs)

    def _next_atoms(self, next_obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The target network's quantiles at the fractions it proposes itself, each with the mass between them."""
        features = self.target_network.encode(next_obs)
        fractions = self.target_network.propose(features)
        atoms, mass = self.target_network.quantiles(features, fractions.tau_hats), fractions.probabilities
        if self._double or self._own_values:
            judged = (self.q_network if self._double else self.target_network).values(next_obs)
        else:
            judged = (mass[:, None] * atoms).sum(-1)
        return of_actions(atoms, judged.argmax(1)), mass

    def _fraction_loss(
        self, fractions: Fractions, quantiles_tau: torch.Tensor, quantile_hats: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            gradient = fraction_gradient(quantiles_tau, quantile_hats)
            if self._scaled:
                gradient = gradient / (quantile_hats.amax(1) - quantile_hats.amin(1)).mean().clamp(min=1e-6)
        return (gradient * fractions.taus[:, 1:-1]).sum(1).mean()

    def _quantiles(self, features: torch.Tensor, taus: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return of_actions(self.q_network.quantiles(features, taus), actions)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        actions, n = batch["actions"], self._num_quantiles
        features = self.q_network.encode(obs)
        fractions = self.q_network.propose(features)
        hats, inner = fractions.tau_hats.detach(), fractions.taus[:, 1:-1].detach()
        if self._train_at_fractions:
            asked = torch.cat([hats, inner], 1)
            trained = self._quantiles(features, asked, actions)
            quantile_hats, quantiles_tau = trained[:, :n], trained[:, n:]
        else:
            asked = hats
            trained = quantile_hats = self._quantiles(features, hats, actions)
            with torch.no_grad():
                quantiles_tau = self._quantiles(features, inner, actions)
        values = (fractions.probabilities.detach() * quantile_hats).sum(1)
        terms = self._regress(batch, Predicted(trained, asked, values), next_obs)

        fraction_loss = self._fraction_loss(fractions, quantiles_tau, quantile_hats)
        entropy = fractions.entropies.mean()
        entropy_loss = -self._entropy_coef * entropy
        descend((self.optimizer, terms["loss"]), (self.fraction_optimizer, fraction_loss + entropy_loss))
        terms |= {
            "fraction_loss": fraction_loss,
            "entropy_loss": entropy_loss,
            "fraction_entropy": entropy,
            "fraction_min": fractions.probabilities.amin(),
        }
        return {name: term.detach() for name, term in terms.items()}
