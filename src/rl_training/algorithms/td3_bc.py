"""TD3+BC (Fujimoto & Gu, 2021): TD3 with one more term, which keeps the actor near the data's actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.algorithms.actor_critic import ActorCritic, critic_metrics
from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.box_policies import DeterministicPolicy
from rl_training.algorithms.sac import critic_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.base.metrics import both
from rl_training.optim.flat import Target, descend

__all__ = ["TD3BC", "td3_bc_actor_loss"]


def td3_bc_actor_loss(
    actions: torch.Tensor, data_actions: torch.Tensor, q_values: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-λ Q + (π - a)², its second term, and λ = α / mean |Q|, by which both terms weigh alike in any unit of reward."""
    scale = alpha / q_values.detach().abs().mean().clamp(min=1e-8)
    imitation = (actions - data_actions).square().mean()
    return imitation - scale * q_values.mean(), imitation, scale


class TD3BC(ActorCritic):
    """TD3+BC of an MLPTD3Model, or a module with its ``actions``, ``q_values`` and two parameter lists."""

    STATE = ("updates",)
    PARTS = ("_learn_critics", "_learn_actor")
    COMPILE_THRESHOLD = 10_000

    def __init__(
        self,
        *,
        model: Any,
        alpha: float = 2.5,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_delay: int = 2,
        **options: Any,
    ) -> None:
        """Further options: see ``ActorCritic``."""
        super().__init__(model=model, policy=DeterministicPolicy(model), **options)
        self.updates = 0
        self._actor_target = Target(model, self.target_model, lambda model: model.actor_parameters())
        self._alpha, self._delay = alpha, policy_delay
        self._noise, self._noise_clip = policy_noise, noise_clip
        self._actor_metrics: Mapping[str, float] = {}

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        noise = torch.randn_like(batch["actions"])
        critics, _ = self.learn({**batch, "noise": noise}, "_learn_critics")
        self.updates += 1
        if self.updates % self._delay == 0:  # the actor and all targets move once the critics have moved often enough
            part = {"obs": batch["obs"], "actions": batch["actions"]}
            self._actor_metrics, _ = self.learn(part, "_learn_actor")
            self._target.copy_buffers()
        return UpdateResult(both(critics, self._actor_metrics), num_gradient_steps=1)

    def _learn_critics(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)

        with torch.no_grad():  # r + γ min Q'(s', π'(s') + clipped noise)
            noise = (self._noise * batch["noise"]).clamp(-self._noise_clip, self._noise_clip)
            next_actions = (self.target_model.actions(next_obs) + noise).clamp(-1, 1)
            next_q = torch.stack(self.target_model.q_values(next_obs, next_actions)).amin(0)
            target = td_target(batch, next_q, self._gamma)

        q_values = torch.stack(self.model.q_values(obs, batch["actions"]))
        loss = critic_loss(q_values, target)
        descend((self.critic_optimizer, loss))
        return critic_metrics(loss, q_values, target)

    def _learn_actor(self, batch: Tensors) -> Tensors:
        obs = self._normalized(batch["obs"])
        actions = self.model.actions(obs)
        q_values = self.model.q_values(obs, actions)[0]
        loss, imitation, scale = td3_bc_actor_loss(actions, batch["actions"], q_values, self._alpha)
        descend((self.actor_optimizer, loss))

        self._move_target()
        with torch.no_grad():
            self._actor_target.flat.lerp_(self.actor_optimizer.flat, self._tau)
        return {"actor_loss": loss.detach(), "bc_loss": imitation.detach(), "q_scale": scale}
