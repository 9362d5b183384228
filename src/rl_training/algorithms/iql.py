"""Implicit Q-learning (Kostrikov et al., 2021): no value is ever asked for an action that is not in the data.

A value network regresses on an upper expectile of Q over the data's actions, Q bootstraps from it, and the actor imitates the
data, weighted by how much better than that value an action was. All gradients of an update are taken before any step; the
reference steps the value network first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import BoxLearner, Greedy, Tensors, UpdateResult
from rl_training.algorithms.sac import critic_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.models.heads import HIGHEST, DiagonalGaussian
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    device_of,
    numpy_layers,
    overridden,
    through,
    with_arrays,
)
from rl_training.models.mlp_sac import NARROWEST
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, Target, descend


def expectile_loss(errors: torch.Tensor, expectile: float) -> torch.Tensor:
    """Squared errors, of which the positive ones weigh ``expectile`` and the others 1 - ``expectile``; the mean."""
    return ((errors > 0).float() - (1 - expectile)).abs().mul(errors.square()).mean()


def advantage_weights(advantages: torch.Tensor, inverse_temperature: float, largest: float) -> torch.Tensor:
    """exp(β A), at most ``largest``."""
    return (inverse_temperature * advantages).exp().clamp(max=largest)


def _torch_policy(model: Any, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return with_arrays(model, model.policy, obs)


def _numpy_policy(model: Any) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
    actor = None if overridden(model, "policy", "actions", "policy_log_std") else numpy_layers(model.actor)
    if actor is None or model.log_std is not model._parameters.get("log_std"):
        return None
    log_std = model.log_std.detach().numpy()

    def policy(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(obs) > MOST_ROWS:
            return _torch_policy(model, obs)
        return np.tanh(through(actor, obs)), np.clip(log_std, NARROWEST, HIGHEST)

    return policy


class IQL(BoxLearner):
    """``model`` is an MLPIQLModel or a module with its ``policy``, ``q_values``, ``values`` and three parameter lists."""

    CONTROLS = ("actor_rate",)
    COMPILE_THRESHOLD = 10_000

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        gamma: float,
        tau: float,
        expectile: float = 0.7,
        inverse_temperature: float = 3.0,
        largest_weight: float = 100.0,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        device = device_of(model)
        self.target_model: Any = copy.deepcopy(model)
        self.model, self.normalizer = model, normalizer
        self.actor_optimizer = FlatAdam(model.actor_parameters(), lr=learning_rate)
        self.critic_optimizer = FlatAdam(model.critic_parameters(), lr=learning_rate)
        self.value_optimizer = FlatAdam(model.value_parameters(), lr=learning_rate)
        self._target = Target(model, self.target_model, lambda model: model.critic_parameters())
        self._gamma, self._tau, self._rate = torch.tensor(gamma, device=device), tau, learning_rate
        self._expectile, self._beta, self._largest = expectile, inverse_temperature, largest_weight
        self._policy = HostFunction(model, _numpy_policy, _torch_policy)

    def _bounded(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(actions, -1, 1)

    def policy_module(self) -> nn.Module:
        if overridden(self.model, "policy", "actions"):
            return Greedy(self.model, lambda model, obs: model.policy(obs)[0].clamp(-1, 1))
        return Greedy(self.model.actor, lambda actor, obs: actor(obs).tanh())

    def set_control(self, name: str, value: float) -> None:
        """``actor_rate`` multiplies the actor's learning rate alone."""
        self.actor_optimizer.base_lr = self._rate * value
        self.actor_optimizer.scale_lr(self.critic_optimizer.scale)

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        metrics, _ = self.learn(batch)
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        actions = batch["actions"]
        with torch.no_grad():
            judged = torch.stack(self.target_model.q_values(obs, actions)).amin(0)
            target = td_target(batch, self.model.values(next_obs), self._gamma)
        values = self.model.values(obs)
        advantages = judged - values
        q_values = torch.stack(self.model.q_values(obs, actions))
        mean, log_std = self.model.policy(obs)
        head = DiagonalGaussian(actions.shape[-1])
        logprobs, _ = head.evaluate(torch.cat([mean, log_std.expand_as(mean)], -1), actions)
        weights = advantage_weights(advantages.detach(), self._beta, self._largest)
        losses = {
            "value_loss": expectile_loss(advantages, self._expectile),
            "critic_loss": critic_loss(q_values, target),
            "actor_loss": -(weights * logprobs).mean(),
        }
        optimizers = (self.value_optimizer, self.critic_optimizer, self.actor_optimizer)
        descend(*zip(optimizers, losses.values()))
        with torch.no_grad():
            self._target.flat.lerp_(self.critic_optimizer.flat, self._tau)
        return {
            **{name: loss.detach() for name, loss in losses.items()},
            "q_value_mean": q_values.detach().mean(),
            "target_q_mean": target.mean(),
            "value_mean": values.detach().mean(),
            "advantage_mean": advantages.detach().mean(),
            "weight_mean": weights.mean(),
        }
