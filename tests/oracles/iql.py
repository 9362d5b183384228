"""Implicit Q-learning (Kostrikov et al., 2021), all gradients of an update before any step. Nothing is drawn."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal

from oracles.actors import Batch, Weights, adam, critics, descend, discounted, follow, perceptron, smallest


class IQL:
    """``actor_rates``: what the actor's learning rate is multiplied by, update for update."""

    def __init__(
        self, weights: Batch, *, learning_rate: float, gamma: float, tau: float, expectile: float,
        inverse_temperature: float, largest_weight: float, actor_learning_rate: float | None = None,
        actor_rates: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        self.weights, self.target = Weights(weights), Weights(weights)
        self.rate, self.rates = actor_learning_rate or learning_rate, list(actor_rates)
        self.actor_optimizer = adam(self.weights.of("actor", "log_std"), self.rate)
        self.critic_optimizer = adam(self.weights.of("critics"), learning_rate)
        self.value_optimizer = adam(self.weights.of("value"), learning_rate)
        self.gamma, self.tau, self.expectile = gamma, tau, expectile
        self.beta, self.largest = inverse_temperature, largest_weight

    def update(self, batch: Batch) -> dict[str, float]:
        obs, actions = batch["obs"], batch["actions"]
        value = perceptron(self.weights, "value", obs)[:, 0]
        advantage = smallest(critics(self.target, obs, actions)).detach() - value
        side = torch.where(advantage < 0, 1 - self.expectile, self.expectile)  # |τ - 1(u < 0)|
        value_loss = (side * advantage**2).mean()

        next_value = perceptron(self.weights, "value", batch["next_obs"])[:, 0]
        target = (batch["rewards"] + discounted(batch, self.gamma) * next_value).detach()
        values = torch.stack(critics(self.weights, obs, actions))
        critic_loss = ((values - target) ** 2).mean(1).sum()

        mean = perceptron(self.weights, "actor", obs).tanh()
        policy = Independent(Normal(mean, self.weights["log_std"].clamp(-5, 2).exp().expand_as(mean)), 1)
        importance = (self.beta * advantage.detach()).exp().clamp(max=self.largest)
        actor_loss = -(importance * policy.log_prob(actions)).mean()

        if self.rates:
            self.actor_optimizer.param_groups[0]["lr"] = self.rate * self.rates.pop(0)
        pairs = ((self.value_optimizer, value_loss), (self.critic_optimizer, critic_loss))
        descend(*pairs, (self.actor_optimizer, actor_loss))
        follow(self.target, self.weights, self.tau, "critics")
        return {
            "critic_loss": critic_loss, "q_value_mean": values.mean(), "target_q_mean": target.mean(),
            "value_loss": value_loss, "value_mean": value.mean(), "advantage_mean": advantage.mean(),
            "actor_loss": actor_loss, "weight_mean": importance.mean(),
        }  # fmt: skip
