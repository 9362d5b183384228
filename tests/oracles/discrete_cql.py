"""Conservative Q-learning (Kumar et al., 2020) for choices: DQN and α times the mean of log Σ exp Q(s, ·) - Q(s, a)."""

from __future__ import annotations

from typing import Any

import torch

from oracles.dqn import DQN, Batch, mean


class DiscreteCQL(DQN):
    def __init__(self, network: torch.nn.Module, *, cql_alpha: float, **options: Any) -> None:
        super().__init__(network, **options)
        self.cql_alpha = cql_alpha

    def objective(self, batch: Batch, losses: list[torch.Tensor], metrics: dict[str, Any]) -> torch.Tensor:
        td_loss = super().objective(batch, losses, metrics)
        gap = mean(q.exp().sum().log() - q[action] for q, action in zip(self.q_values, batch["actions"]))
        metrics |= {"td_loss": td_loss, "cql_gap": gap, "cql_penalty": self.cql_alpha * gap}
        return td_loss + self.cql_alpha * gap
