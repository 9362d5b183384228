"""Conservative Q-learning (Kumar et al., 2020) for choices, on double DQN: the soft maximum over actions is exact."""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.value_learner import of_actions

__all__ = ["DiscreteCQL", "check_cql_alpha"]


def check_cql_alpha(cql_alpha: float) -> float:
    """The weight of the penalty, if it is positive."""
    if cql_alpha <= 0:
        raise ValueError(f"cql_alpha must be > 0, got {cql_alpha}")
    return cql_alpha


class DiscreteCQL(DQN):
    """DQN whose loss has ``cql_alpha`` times the gap between log Σ exp Q and the values of the data's actions."""

    def __init__(self, *, cql_alpha: float, **options: Any) -> None:
        """Further options: see ``ValueLearner``."""
        super().__init__(**options)
        self._cql_alpha = torch.tensor(check_cql_alpha(cql_alpha), device=self.optimizer.flat.device)

    def _terms(self, batch: Tensors, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
        terms = dqn_loss({**batch, "q_values": q_values, "target_q_values": target})
        gap = (q_values.logsumexp(1) - of_actions(q_values, batch["actions"])).mean()
        penalty = self._cql_alpha * gap
        return {
            **terms,
            "loss": terms["loss"] + penalty,
            "td_loss": terms["loss"],
            "cql_penalty": penalty,
            "cql_gap": gap,
        }
