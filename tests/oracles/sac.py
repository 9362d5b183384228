"""Soft Actor-Critic (Haarnoja et al., 2018b), all gradients of an update before any step."""

from __future__ import annotations

import math
from typing import Literal

import torch

from oracles.actors import Batch, Weights, adam, critics, descend, discounted, follow, perceptron, smallest, squashed


class SAC:
    """Draws as its learner does: standard normal noise for the actions at the observations, then at the next ones."""

    def __init__(
        self,
        weights: Batch,
        *,
        learning_rate: float,
        gamma: float,
        tau: float,
        alpha: float | Literal["auto"],
        target_entropy: float,
        initial_alpha: float = 1.0,
        backup_entropy: bool = True,
        actor_learning_rate: float | None = None,
        layer_norm: bool = False,
    ) -> None:
        self.weights, self.target = Weights(weights), Weights(weights)
        self.log_alpha = torch.tensor(math.log(initial_alpha if alpha == "auto" else alpha), requires_grad=True)
        self.critic_optimizer = adam(self.weights.of("critics"), learning_rate)
        self.actor_optimizer = adam(self.weights.of("actor"), actor_learning_rate or learning_rate)
        self.alpha_optimizer = adam([self.log_alpha], learning_rate)
        self.tuned, self.target_entropy, self.backup_entropy = alpha == "auto", target_entropy, backup_entropy
        self.gamma, self.tau, self.layer_norm = gamma, tau, layer_norm

    def act(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return squashed(perceptron(self.weights, "actor", obs), noise)

    def q(self, weights: Weights, obs: torch.Tensor, actions: torch.Tensor) -> list[torch.Tensor]:
        return critics(weights, obs, actions, self.layer_norm)

    def soft_target(self, batch: Batch, noise: torch.Tensor, members: list[int] | None = None) -> torch.Tensor:
        """r + γ (min Q'(s', a') - α log π(a' | s')), the current actor's a', the minimum over some target critics."""
        next_actions, next_logp = self.act(batch["next_obs"], noise)
        values = self.q(self.target, batch["next_obs"], next_actions)
        value = smallest(values if members is None else [values[k] for k in members])
        bonus = -self.log_alpha.exp() * next_logp if self.backup_entropy else 0
        return (batch["rewards"] + discounted(batch, self.gamma) * (value + bonus)).detach()

    def temperature_loss(self, logp: torch.Tensor) -> torch.Tensor:
        """J(α) = E[-log α (log π + H)]: the form in the logarithm, as in the authors' code."""
        return (-self.log_alpha * (logp + self.target_entropy).detach()).mean()

    def actor_metrics(self, loss: torch.Tensor, logp: torch.Tensor, alpha: torch.Tensor) -> dict[str, float]:
        metrics = {"actor_loss": loss, "entropy": -logp.mean(), "entropy_term": alpha * logp.mean(), "alpha": alpha}
        return metrics | ({"alpha_loss": self.temperature_loss(logp)} if self.tuned else {})

    def update(self, batch: Batch) -> dict[str, float]:
        noise = torch.randn(2, *batch["actions"].shape)
        alpha = self.log_alpha.exp().detach()

        target = self.soft_target(batch, noise[1])
        values = self.q(self.weights, batch["obs"], batch["actions"])
        critic_loss = sum(((q - target) ** 2).mean() for q in values)

        actions, logp = self.act(batch["obs"], noise[0])
        actor_loss = (alpha * logp - smallest(self.q(self.weights, batch["obs"], actions))).mean()

        steps = [(self.critic_optimizer, critic_loss), (self.actor_optimizer, actor_loss)]
        metrics = self.actor_metrics(actor_loss, logp, alpha)
        descend(*steps, *([(self.alpha_optimizer, self.temperature_loss(logp))] if self.tuned else []))
        follow(self.target, self.weights, self.tau, "critics")
        means = {"q_value_mean": torch.stack(values).mean(), "target_q_mean": target.mean()}
        return {"critic_loss": critic_loss, **means, **metrics}
