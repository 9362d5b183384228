"""Conservative Q-learning (Kumar et al., 2020), CQL(H): on SAC for boxes, on double DQN for choices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributions import Normal
from torch.nn import functional as F

from oracles.actors import Batch, Weights, adam, descend, discounted, follow, perceptron, smallest
from oracles.sac import SAC


class CQL(SAC):
    """Draws as its learner does: noise for N + 1 actions at every observation, then at every next one (the first is
    SAC's own), and N uniform actions. Adds α' (log ∫ exp Q - Q(s, a) - τ) to the loss of each critic."""

    def __init__(
        self, weights: Batch, *, cql_alpha: float, num_cql_samples: int, cql_temperature: float = 1.0,
        lagrange: float | None = None, bc_updates: int = 0, learning_rate: float, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(weights, learning_rate=learning_rate, **options)
        self.log_weight = torch.tensor(math.log(cql_alpha), requires_grad=True)
        self.weight_optimizer = adam([self.log_weight], learning_rate)
        self.samples, self.temperature, self.lagrange = num_cql_samples, cql_temperature, lagrange
        self.imitations_left = bc_updates

    def log_integral(self, obs: torch.Tensor, proposals: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """T log Σ exp(Q / T) / density, over actions (B, A) drawn with log-densities (B,): (C, B)."""
        terms = []
        for actions, log_density in proposals:
            values = torch.stack(self.q(self.weights, obs, actions.detach()))
            terms.append(values / self.temperature - log_density.detach())
        return self.temperature * torch.stack(terms).exp().sum(0).log()

    def update(self, batch: Batch) -> dict[str, float]:
        (rows, dim), n, obs = batch["actions"].shape, self.samples, batch["obs"]
        noise = torch.randn(2, rows, n + 1, dim)
        uniform = torch.rand(rows, n, dim)
        alpha, weight = self.log_alpha.exp().detach(), self.log_weight.exp().detach()

        target = self.soft_target(batch, noise[1, :, 0])
        values = torch.stack(self.q(self.weights, obs, batch["actions"]))
        td_loss = ((values - target) ** 2).mean(1).sum()

        volume = torch.full((rows,), -dim * math.log(2.0))  # the density of the box [-1, 1]
        proposals = [(2 * uniform[:, i] - 1, volume) for i in range(n)]
        proposals += [self.act(obs, noise[0, :, i + 1]) for i in range(n)]
        proposals += [self.act(batch["next_obs"], noise[1, :, i + 1]) for i in range(n)]  # valued at obs
        gaps = (self.log_integral(obs, proposals) - values).mean(1)
        excess = gaps - (self.lagrange if self.lagrange is not None else 0)
        critic_loss = td_loss + weight * excess.sum()

        actions, logp = self.act(obs, noise[0, :, 0])
        if self.imitations_left > 0:
            mean, log_std = perceptron(self.weights, "actor", obs).chunk(2, -1)
            u = batch["actions"].atanh()
            density = Normal(mean, log_std.exp()).log_prob(u) - (1 - batch["actions"] ** 2).log()
            actor_loss = (alpha * logp - density.sum(-1)).mean()
            self.imitations_left -= 1
        else:
            actor_loss = (alpha * logp - smallest(self.q(self.weights, obs, actions))).mean()

        steps = [(self.critic_optimizer, critic_loss), (self.actor_optimizer, actor_loss)]
        steps += [(self.alpha_optimizer, self.temperature_loss(logp))] if self.tuned else []
        if self.lagrange is not None:  # maximised over α', for the mean of the critics
            steps.append((self.weight_optimizer, -(self.log_weight.exp() * excess.detach()).mean()))
        metrics = self.actor_metrics(actor_loss, logp, alpha)
        descend(*steps)
        follow(self.target, self.weights, self.tau, "critics")
        metrics |= {"cql_penalty": weight * gaps.sum(), "cql_gap": gaps.mean(), "cql_weight": weight}
        means = {"q_value_mean": values.mean(), "target_q_mean": target.mean()}
        return {**metrics, "critic_loss": critic_loss, **means, "td_loss": td_loss}


class DiscreteCQL:
    """Double DQN with Huber's loss and α (log Σ exp Q - Q(s, a))."""

    def __init__(
        self, weights: Batch, *, learning_rate: float, gamma: float, cql_alpha: float, target_update_interval: int
    ) -> None:
        self.weights, self.target, self.updates = Weights(weights), Weights(weights), 0
        self.optimizer = adam(list(self.weights.values()), learning_rate)
        self.gamma, self.cql_alpha, self.interval = gamma, cql_alpha, target_update_interval

    def update(self, batch: Batch) -> dict[str, float]:
        rows = torch.arange(len(batch["actions"]))
        best = perceptron(self.weights, "body", batch["next_obs"]).argmax(1)
        next_q = perceptron(self.target, "body", batch["next_obs"])[rows, best]
        target = (batch["rewards"] + discounted(batch, self.gamma) * next_q).detach()
        values = perceptron(self.weights, "body", batch["obs"])
        chosen = values[rows, batch["actions"]]
        td_loss = F.huber_loss(chosen, target)
        gap = (values.exp().sum(1).log() - chosen).mean()
        loss = td_loss + self.cql_alpha * gap
        descend((self.optimizer, loss))
        self.updates += 1
        if self.updates % self.interval == 0:
            follow(self.target, self.weights, 1.0, "body")
        metrics = {"loss": loss, "td_loss": td_loss, "cql_penalty": self.cql_alpha * gap, "cql_gap": gap}
        errors = {"td_error_mean": (target - chosen).abs().mean()}
        return {**metrics, **errors, "q_value_mean": chosen.mean(), "target_mean": target.mean()}
