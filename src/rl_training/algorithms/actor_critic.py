"""What off-policy learners with an actor and critics for boxes share: optimizers, target critics, acting."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Learner, Tensors
from rl_training.algorithms.box_policies import BoxPolicy
from rl_training.base.saved import alike
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, OptimizerFactory, Target

__all__ = ["ActorCritic", "LogCoefficient", "critic_metrics"]


def critic_metrics(loss: torch.Tensor, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
    """What is logged of critics with values (C, B) and their target (B,)."""
    return {"critic_loss": loss.detach(), "q_value_mean": q_values.detach().mean(), "target_q_mean": target.mean()}


class LogCoefficient:
    """A positive coefficient of a loss by its logarithm: a parameter that may be tuned, saved as one tensor."""

    def __init__(self, coefficient: float, device: torch.device) -> None:
        self.value = nn.Parameter(torch.tensor(math.log(coefficient), device=device))

    def coefficient(self) -> torch.Tensor:
        """The coefficient itself, without a gradient."""
        return self.value.detach().exp()

    def state_dict(self) -> torch.Tensor:
        return self.value.detach()

    def load_state_dict(self, state: torch.Tensor) -> None:
        self.value.data.copy_(alike(state, self.state_dict()))


class ActorCritic(Learner):
    """An actor, critics and target critics, with an optimizer for each of the first two.

    ``model`` has ``q_values(obs, actions)``, a (B,) for each critic, ``actor_parameters`` and ``critic_parameters``.
    ``policy`` acts for it. The critics of ``target_model`` follow those of ``model`` by ``tau`` with every
    ``_move_target``.
    """

    def __init__(
        self,
        *,
        model: Any,
        policy: BoxPolicy,
        learning_rate: float,
        gamma: float,
        tau: float,
        actor_learning_rate: float | None = None,
        normalizer: ObservationNormalizer | None = None,
        optimizer: OptimizerFactory = FlatAdam,
    ) -> None:
        self.target_model: Any = copy.deepcopy(model)
        self.model, self.normalizer = model, normalizer
        self._optimizer = optimizer
        self.actor_optimizer = optimizer(model.actor_parameters(), lr=actor_learning_rate or learning_rate)
        self.critic_optimizer = optimizer(model.critic_parameters(), lr=learning_rate)
        self._target = Target(model, self.target_model, lambda model: model.critic_parameters())
        self._device = self.critic_optimizer.flat.device
        self._gamma, self._tau = torch.tensor(gamma, device=self._device), tau
        self._policy = policy

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        return Acting(self._policy.actions(obs, deterministic, rng))

    def policy_module(self) -> nn.Module:
        return self._policy.module()

    def _normalized(self, obs: torch.Tensor) -> torch.Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    @torch.no_grad()
    def _move_target(self) -> None:
        """θ' ← (1 - τ) θ' + τ θ"""
        self._target.flat.lerp_(self.critic_optimizer.flat, self._tau)
