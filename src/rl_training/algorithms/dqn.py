"""Deep Q-learning (Mnih et al., 2013, 2015), optionally double (van Hasselt et al., 2016).

The loss is Huber's, the paper's clipped error. Where the paper counts frames between target copies, we count updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.value_learner import ValueLearner, of_actions, td_target, weighted_mean
from rl_training.models.host import host_forward
from rl_training.optim.flat import descend


def dqn_loss(batch: Tensors) -> Tensors:
    """Huber regression of Q(s, a) on its target: q_values (B, A), actions (B,), target_q_values (B,), optional weights (B,)."""
    chosen = of_actions(batch["q_values"], batch["actions"])
    errors = F.smooth_l1_loss(chosen, batch["target_q_values"], reduction="none")
    td_errors = (batch["target_q_values"] - chosen).detach()
    return {
        "loss": weighted_mean(errors, batch),
        "q_value_mean": chosen.mean(),
        "target_mean": batch["target_q_values"].mean(),
        "td_error_mean": td_errors.abs().mean(),
        "td_errors": td_errors,
    }


class DQN(ValueLearner):
    """``q_network`` is any module from observations to Q-values (B, A)."""

    def __init__(self, *, q_network: Any, **options: Any) -> None:
        """Options: see ``ValueLearner``."""
        super().__init__(q_network=q_network, **options)
        self._forward = host_forward(q_network)

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        return self._forward(obs, rng)

    def _greedy_values(self) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        return lambda network, obs: network(obs)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        with torch.no_grad():
            next_q = self.target_network(next_obs)
            if self._double:  # the online network chooses, the target network judges
                next_values = of_actions(next_q, self.q_network(next_obs).argmax(1))
            else:
                next_values = next_q.amax(1)
            target = td_target(batch, next_values, self._gamma)

        terms = self._terms(batch, self.q_network(obs), target)
        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}

    def _terms(self, batch: Tensors, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
        """The loss and what else is worth reporting."""
        return dqn_loss({**batch, "q_values": q_values, "target_q_values": target})
