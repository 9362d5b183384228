"""TD3+BC (Fujimoto & Gu, 2021): TD3 whose actor also imitates the data."""

from __future__ import annotations

import torch

from oracles.actors import Batch, Weights, adam, critics, descend, discounted, follow, perceptron, smallest


class TD3BC:
    """Draws as its learner does: standard normal noise for the target's actions."""

    def __init__(
        self, weights: Batch, *, learning_rate: float, gamma: float, tau: float, alpha: float, policy_noise: float,
        noise_clip: float, policy_delay: int,
    ) -> None:  # fmt: skip
        self.weights, self.target, self.updates = Weights(weights), Weights(weights), 0
        self.actor_optimizer = adam(self.weights.of("actor"), learning_rate)
        self.critic_optimizer = adam(self.weights.of("critics"), learning_rate)
        self.gamma, self.tau, self.alpha, self.delay = gamma, tau, alpha, policy_delay
        self.noise, self.clip = policy_noise, noise_clip
        self.actor_metrics: dict[str, float] = {}

    def update(self, batch: Batch) -> dict[str, float]:
        obs, data = batch["obs"], batch["actions"]
        noise = (self.noise * torch.randn(data.shape)).clamp(-self.clip, self.clip)
        next_actions = (perceptron(self.target, "actor", batch["next_obs"]).tanh() + noise).clamp(-1, 1)
        next_q = smallest(critics(self.target, batch["next_obs"], next_actions))
        target = (batch["rewards"] + discounted(batch, self.gamma) * next_q).detach()
        values = torch.stack(critics(self.weights, obs, data))
        critic_loss = ((values - target) ** 2).mean(1).sum()
        descend((self.critic_optimizer, critic_loss))

        self.updates += 1
        if self.updates % self.delay == 0:
            actions = perceptron(self.weights, "actor", obs).tanh()
            q = critics(self.weights, obs, actions)[0]
            scale = self.alpha / q.abs().mean().detach()
            imitation = ((actions - data) ** 2).mean()
            actor_loss = -scale * q.mean() + imitation
            descend((self.actor_optimizer, actor_loss))
            follow(self.target, self.weights, self.tau, "critics", "actor")
            self.actor_metrics = {"actor_loss": actor_loss, "bc_loss": imitation, "q_scale": scale}
        means = {"q_value_mean": values.mean(), "target_q_mean": target.mean()}
        return {"critic_loss": critic_loss, **means, **self.actor_metrics}
