"""Implicit Q-learning (Kostrikov et al., 2021): no action outside the data is ever evaluated.

A value network regresses on an upper expectile of Q over the data's actions, Q bootstraps from it, and the actor
imitates the data, weighted by how much better than that value an action was. All gradients of an update are taken
before any step; the reference steps the value network first.
"""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.actor_critic import ActorCritic, critic_metrics
from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.box_policies import BoundedGaussianPolicy
from rl_training.algorithms.sac import critic_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.models.heads import DiagonalGaussian
from rl_training.optim.flat import descend

__all__ = ["IQL", "advantage_weights", "expectile_loss"]


def expectile_loss(errors: torch.Tensor, expectile: float) -> torch.Tensor:
    """Squared errors, of which the positive ones weigh ``expectile`` and the others 1 - ``expectile``; the mean."""
    return ((errors > 0).float() - (1 - expectile)).abs().mul(errors.square()).mean()


def advantage_weights(advantages: torch.Tensor, inverse_temperature: float, largest: float) -> torch.Tensor:
    """exp(β A), at most ``largest``."""
    return (inverse_temperature * advantages).exp().clamp(max=largest)


class IQL(ActorCritic):
    """Implicit Q-learning of an MLPIQLModel, or a module with its methods and three parameter lists."""

    CONTROLS = ("actor_rate",)
    COMPILE_THRESHOLD = 10_000

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        expectile: float = 0.7,
        inverse_temperature: float = 3.0,
        largest_weight: float = 100.0,
        **options: Any,
    ) -> None:
        """Further options: see ``ActorCritic``."""
        policy = BoundedGaussianPolicy(model)
        super().__init__(model=model, policy=policy, learning_rate=learning_rate, **options)
        self.value_optimizer = self._optimizer(model.value_parameters(), lr=learning_rate)
        self._expectile, self._beta, self._largest = expectile, inverse_temperature, largest_weight
        self._rate = self.actor_optimizer.base_lr

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

        # V regresses on an upper expectile of min Q' over the data's actions
        with torch.no_grad():
            target_q = torch.stack(self.target_model.q_values(obs, actions)).amin(0)
        values = self.model.values(obs)
        advantages = target_q - values
        value = expectile_loss(advantages, self._expectile)

        with torch.no_grad():  # r + γ V
            target = td_target(batch, self.model.values(next_obs), self._gamma)
        q_values = torch.stack(self.model.q_values(obs, actions))
        critics = critic_loss(q_values, target)

        mean, log_std = self.model.policy(obs)  # the actor imitates, weighted by exp(β A)
        outputs = torch.cat([mean, log_std.expand_as(mean)], -1)
        logprobs, _ = DiagonalGaussian(actions.shape[-1]).evaluate(outputs, actions)
        weights = advantage_weights(advantages.detach(), self._beta, self._largest)
        actor = -(weights * logprobs).mean()

        descend((self.value_optimizer, value), (self.critic_optimizer, critics), (self.actor_optimizer, actor))
        self._move_target()
        return {
            **critic_metrics(critics, q_values, target),
            "value_loss": value.detach(),
            "actor_loss": actor.detach(),
            "value_mean": values.detach().mean(),
            "advantage_mean": advantages.detach().mean(),
            "weight_mean": weights.mean(),
        }
