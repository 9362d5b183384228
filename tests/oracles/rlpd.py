"""RLPD (Ball et al., 2023), algorithm 1: G critic steps on targets by a random subset, then one step of the actor."""

from __future__ import annotations

from typing import Any

import torch

from oracles.actors import Batch, descend, follow
from oracles.sac import SAC


class RLPD(SAC):
    """Draws as its learner does: for each slice a permutation of the critics, then noise; at last the actor's noise."""

    def __init__(self, weights: Batch, *, updates_per_batch: int, target_subset: int, **options: Any) -> None:
        super().__init__(weights, **options)
        self.slices, self.subset = updates_per_batch, target_subset

    def update(self, batch: Batch) -> dict[str, float]:
        metrics, part = self.critic_steps(batch)
        alpha = self.log_alpha.exp().detach()
        actions, logp = self.act(part["obs"], torch.randn(part["actions"].shape))
        mean_q = torch.stack(self.q(self.weights, part["obs"], actions)).mean(0)
        actor_loss = (alpha * logp - mean_q).mean()
        metrics |= self.actor_metrics(actor_loss, logp, alpha)
        temperature = [(self.alpha_optimizer, self.temperature_loss(logp))] if self.tuned else []
        descend((self.actor_optimizer, actor_loss), *temperature)
        return metrics

    def update_critics(self, batch: Batch) -> dict[str, float]:
        """The same while the actor is frozen."""
        return self.critic_steps(batch)[0]

    def critic_steps(self, batch: Batch) -> tuple[dict[str, float], Batch]:
        """A step of the critics on each slice; the metrics of the last, and its rows."""
        members = len(self.weights["critics.0.weight"])
        slices = zip(*(column.chunk(self.slices) for column in batch.values()))
        for part in (dict(zip(batch, columns)) for columns in slices):
            chosen = torch.randperm(members)[: self.subset].tolist()
            target = self.soft_target(part, torch.randn(part["actions"].shape), chosen)
            values = torch.stack(self.q(self.weights, part["obs"], part["actions"]))
            critic_loss = ((values - target) ** 2).mean()
            descend((self.critic_optimizer, critic_loss))
            follow(self.target, self.weights, self.tau, "critics")
        values = {"q_value_mean": values.mean(), "q_value_max": values.abs().max(), "target_q_mean": target.mean()}
        return {"critic_loss": critic_loss, **values}, part
