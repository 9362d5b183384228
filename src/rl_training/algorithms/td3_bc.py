"""TD3+BC (Fujimoto & Gu, 2021): TD3 with one more term, that keeps the actor near the data's actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import BoxLearner, Greedy, Tensors, UpdateResult
from rl_training.algorithms.sac import critic_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.base.metrics import both
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    device_of,
    numpy_layers,
    overridden,
    through,
    with_arrays,
)
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, Target, descend


def td3_bc_actor_loss(
    actions: torch.Tensor, data_actions: torch.Tensor, q_values: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss, its imitation part, λ): -λ Q + (π - a)², where λ = α / mean |Q| makes both terms weigh alike in any reward's units."""
    scale = alpha / q_values.detach().abs().mean().clamp(min=1e-8)
    imitation = (actions - data_actions).square().mean()
    return imitation - scale * q_values.mean(), imitation, scale


def _torch_policy(model: Any, obs: np.ndarray) -> tuple[np.ndarray, None]:
    return with_arrays(model, model.actions, obs), None


def _numpy_policy(model: Any) -> Callable[[np.ndarray], tuple[np.ndarray, None]] | None:
    actor = None if overridden(model, "actions") else numpy_layers(model.actor)
    if actor is None:
        return None

    def policy(obs: np.ndarray) -> tuple[np.ndarray, None]:
        return _torch_policy(model, obs) if len(obs) > MOST_ROWS else (np.tanh(through(actor, obs)), None)

    return policy


class TD3BC(BoxLearner):
    """``model`` is an MLPTD3Model or a module with its ``actions``, ``q_values`` and two parameter lists."""

    STATE = ("updates",)
    PARTS = ("_learn_critics", "_learn_actor")
    COMPILE_THRESHOLD = 10_000

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        gamma: float,
        tau: float,
        alpha: float = 2.5,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_delay: int = 2,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        device = device_of(model)
        self.target_model: Any = copy.deepcopy(model)
        self.model, self.normalizer, self.updates = model, normalizer, 0
        self.actor_optimizer = FlatAdam(model.actor_parameters(), lr=learning_rate)
        self.critic_optimizer = FlatAdam(model.critic_parameters(), lr=learning_rate)
        self._targets = [
            (self.actor_optimizer, Target(model, self.target_model, lambda model: model.actor_parameters())),
            (self.critic_optimizer, Target(model, self.target_model, lambda model: model.critic_parameters())),
        ]
        self._gamma, self._tau, self._alpha = torch.tensor(gamma, device=device), tau, alpha
        self._noise, self._noise_clip, self._delay = policy_noise, noise_clip, policy_delay
        self._actor_metrics: Mapping[str, float] = {}
        self._policy = HostFunction(model, _numpy_policy, _torch_policy)

    def _bounded(self, actions: np.ndarray) -> np.ndarray:
        return actions  # they are already

    def policy_module(self) -> nn.Module:
        if overridden(self.model, "actions"):
            return Greedy(self.model, lambda model, obs: model.actions(obs))
        return Greedy(self.model.actor, lambda actor, obs: actor(obs).tanh())

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        noise = torch.randn_like(batch["actions"])
        critics, _ = self.learn({**batch, "noise": noise}, "_learn_critics")
        self.updates += 1
        if self.updates % self._delay == 0:  # the actor and all targets move once the critics have moved often enough
            part = {"obs": batch["obs"], "actions": batch["actions"]}
            self._actor_metrics, _ = self.learn(part, "_learn_actor")
            for _, target in self._targets:
                target.copy_buffers()
        return UpdateResult(both(critics, self._actor_metrics), num_gradient_steps=1)

    def _learn_critics(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        with torch.no_grad():
            noise = (self._noise * batch["noise"]).clamp(-self._noise_clip, self._noise_clip)
            next_actions = (self.target_model.actions(next_obs) + noise).clamp(-1, 1)
            next_q = torch.stack(self.target_model.q_values(next_obs, next_actions)).amin(0)
            target = td_target(batch, next_q, self._gamma)
        q_values = torch.stack(self.model.q_values(obs, batch["actions"]))
        loss = critic_loss(q_values, target)
        descend((self.critic_optimizer, loss))
        return {"critic_loss": loss.detach(), "q_value_mean": q_values.detach().mean(), "target_q_mean": target.mean()}

    def _learn_actor(self, batch: Tensors) -> Tensors:
        obs = batch["obs"] if self.normalizer is None else self.normalizer(batch["obs"])
        actions = self.model.actions(obs)
        loss, imitation, scale = td3_bc_actor_loss(
            actions, batch["actions"], self.model.q_values(obs, actions)[0], self._alpha
        )
        descend((self.actor_optimizer, loss))
        with torch.no_grad():
            for optimizer, target in self._targets:
                target.flat.lerp_(optimizer.flat, self._tau)
        return {"actor_loss": loss.detach(), "bc_loss": imitation.detach(), "q_scale": scale}
