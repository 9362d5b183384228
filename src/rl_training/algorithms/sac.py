"""Soft Actor-Critic (Haarnoja et al., 2018) with critics in any number and a fixed or tuned temperature.

As in the second paper: no value network, and the next action comes from the current actor. All gradients of an update
are taken before any step, so the actor's loss uses the critics from before their step; the paper's pseudocode steps the
critics first.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch

from rl_training.algorithms.actor_critic import ActorCritic, LogCoefficient, critic_metrics
from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.box_policies import SquashedPolicy
from rl_training.algorithms.value_learner import td_target
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["SAC", "actor_loss", "actor_metrics", "critic_loss", "sac_loss", "temperature_loss"]

Steps = list[tuple[FlatAdam, torch.Tensor]]  # optimizers and their losses, for ``descend``


def critic_loss(q_values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared error of every critic (C, B) against one target (B,): mean over the batch, sum over critics."""
    return (q_values - target).square().mean(1).sum()


def actor_loss(logprobs: torch.Tensor, q_values: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Prefer actions of high value and high entropy; ``q_values`` (B,) is already reduced over critics."""
    return (alpha * logprobs - q_values).mean()


def temperature_loss(log_alpha: torch.Tensor, logprobs: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """Its descent raises the temperature while the policy's entropy is below the target."""
    return -(log_alpha * (logprobs.detach() + target_entropy)).mean()


def sac_loss(batch: Tensors) -> Tensors:
    """Both losses from values that are given, of two critics: at the data's actions, and at the actor's (sampled_*)."""
    q_values = torch.stack([batch["q1_values"], batch["q2_values"]])
    sampled = torch.minimum(batch["sampled_q1"], batch["sampled_q2"])
    return {
        "critic_loss": critic_loss(q_values, batch["target_q_values"]),
        "actor_loss": actor_loss(batch["sampled_logprobs"], sampled, torch.as_tensor(batch["alpha"])),
        "target_q_mean": batch["target_q_values"].mean(),
        "entropy_term": (batch["alpha"] * batch["sampled_logprobs"]).mean(),
    }


def actor_metrics(loss: torch.Tensor, logprobs: torch.Tensor, alpha: torch.Tensor, temperature: Steps) -> Tensors:
    """What is logged of the actor and of a tuned temperature; ``logprobs`` (B,) of the actions that the actor drew."""
    logp = logprobs.detach()
    metrics = {"actor_loss": loss.detach(), "entropy_term": (alpha * logp).mean(), "entropy": -logp.mean()}
    if temperature:
        metrics["alpha_loss"] = temperature[0][1].detach()
    return {**metrics, "alpha": alpha}


class SAC(ActorCritic):
    """Soft Actor-Critic of an MLPSACModel, or a module with its ``sample_actions``, ``q_values`` and parameter
    lists."""

    COMPILE_THRESHOLD = 5_000
    ENTROPY_PER_DIMENSION: ClassVar[float] = -1.0  # the goal of a tuned temperature unless ``target_entropy`` is given
    _policy: SquashedPolicy

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        gamma: float,
        alpha: float | Literal["auto"],
        tau: float,
        target_entropy: float | None = None,
        initial_alpha: float = 1.0,
        backup_entropy: bool = True,
        **options: Any,
    ) -> None:
        """``backup_entropy``: whether targets include the next action's entropy. Else: see ``ActorCritic``."""
        policy = SquashedPolicy(model)
        super().__init__(model=model, policy=policy, learning_rate=learning_rate, gamma=gamma, tau=tau, **options)
        self.log_alpha = LogCoefficient(initial_alpha if alpha == "auto" else max(alpha, 1e-30), self._device)
        self.alpha_optimizer = FlatAdam([self.log_alpha.value], lr=learning_rate) if alpha == "auto" else None
        self._target_entropy, self._backup_entropy = target_entropy, backup_entropy

    @property
    def alpha(self) -> float:
        """The temperature."""
        return float(self.log_alpha.coefficient())

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        actions = batch["actions"]
        noise = torch.randn(2 * len(actions), *actions.shape[1:], device=actions.device)
        metrics, _ = self.learn({**batch, "noise": noise})
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        alpha = self.log_alpha.coefficient()

        noise, next_noise = batch["noise"].chunk(2)
        actions, logp = self.model.sample_actions(obs, noise=noise)

        with torch.no_grad():  # r + γ (min Q' - α log π)
            next_actions, next_logp = self.model.sample_actions(next_obs, noise=next_noise)
            next_q = torch.stack(self.target_model.q_values(next_obs, next_actions)).amin(0)
            target = td_target(batch, next_q - alpha * next_logp if self._backup_entropy else next_q, self._gamma)

        q_values = torch.stack(self.model.q_values(obs, batch["actions"]))
        critics = critic_loss(q_values, target)

        actor = actor_loss(logp, torch.stack(self.model.q_values(obs, actions)).amin(0), alpha)
        temperature = self._temperature_steps(logp, actions.shape[-1])

        descend((self.critic_optimizer, critics), (self.actor_optimizer, actor), *temperature)
        self._move_target()
        return {**critic_metrics(critics, q_values, target), **actor_metrics(actor, logp, alpha, temperature)}

    def _temperature_steps(self, logp: torch.Tensor, action_dim: int) -> Steps:
        """The temperature's optimizer and loss; nothing if the temperature is fixed."""
        if self.alpha_optimizer is None:
            return []
        goal = self.ENTROPY_PER_DIMENSION * action_dim if self._target_entropy is None else self._target_entropy
        return [(self.alpha_optimizer, temperature_loss(self.log_alpha.value, logp, goal))]
