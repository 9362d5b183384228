"""Deep Q-learning (Mnih et al., 2013, 2015), optionally double (van Hasselt et al., 2016).

The loss is Huber's, the paper's clipped error. Where the paper counts frames between target copies, we count updates.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Acting, Learner, Tensors, UpdateResult, stream
from rl_training.algorithms.normalizer import ObservationNormalizer
from rl_training.algorithms.optim import FlatAdam, Target, descend
from rl_training.models.host import host_forward
from rl_training.models.mlp_q_network import MLPQNetwork


def td_target(batch: Tensors, next_values: torch.Tensor, gamma: torch.Tensor | float) -> torch.Tensor:
    """r + γ V(s') where the episode goes on; nothing after a termination. All (B,)."""
    return batch["rewards"] + gamma * (1 - batch["dones"]) * next_values


def dqn_loss(batch: Tensors) -> Tensors:
    """Huber regression of Q(s, a) on its target: q_values (B, A), actions (B,), target_q_values (B,), optional weights (B,)."""
    chosen = batch["q_values"].gather(1, batch["actions"].long()[:, None]).squeeze(1)
    errors = F.smooth_l1_loss(chosen, batch["target_q_values"], reduction="none")
    td_errors = (batch["target_q_values"] - chosen).detach()
    return {
        "loss": (errors * batch["weights"] if "weights" in batch else errors).mean(),
        "q_value_mean": chosen.mean(),
        "target_mean": batch["target_q_values"].mean(),
        "td_error_mean": td_errors.abs().mean(),
        "td_errors": td_errors,
    }


class DQN(Learner):
    """``q_network`` is any module from observations to Q-values (B, A)."""

    STATE = ("updates",)
    CONTROLS = ("epsilon",)
    WORTH_COMPILING = 40_000

    def __init__(
        self,
        *,
        q_network: Any,
        learning_rate: float,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        max_grad_norm: float | None = None,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        self.target_network = copy.deepcopy(q_network)
        self.q_network, self.normalizer, self.updates = q_network, normalizer, 0
        self.optimizer = FlatAdam(q_network.parameters(), lr=learning_rate, max_grad_norm=max_grad_norm)
        self.last_td_errors: torch.Tensor | None = None
        self._target = Target(q_network, self.target_network, lambda network: network.parameters())
        self._gamma = torch.tensor(gamma, device=self._target.flat.device)
        self._target_update_interval, self._double, self._epsilon = target_update_interval, double_q, 0.0
        self._forward = host_forward(q_network.body if type(q_network) is MLPQNetwork else q_network)

    def act(
        self,
        obs: np.ndarray,
        *,
        carry: Any = None,
        deterministic: bool = False,
        step: int = 0,
        rng: np.random.Generator | None = None,
    ) -> Acting:
        if self.normalizer is not None:
            obs = self.normalizer.host(obs)
        q_values = self._forward(obs)
        actions = q_values.argmax(-1)
        if not deterministic and self._epsilon > 0:
            rng = stream(rng)
            for i, chance in enumerate(rng.random(len(actions)).tolist()):
                if chance < self._epsilon:
                    actions[i] = rng.integers(q_values.shape[-1])
        return Acting(actions)

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        metrics, rest = self.learn(batch)
        self.last_td_errors = rest["td_errors"]
        self.updates += 1
        if self.updates % self._target_update_interval == 0:
            self._target.flat.copy_(self.optimizer.flat)
            self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = batch["obs"], batch["next_obs"]
        if self.normalizer is not None:
            obs, next_obs = self.normalizer(obs), self.normalizer(next_obs)
        with torch.no_grad():
            next_q = self.target_network(next_obs)
            if self._double:  # the online network chooses, the target network judges
                best = self.q_network(next_obs).argmax(1, keepdim=True)
                next_values = next_q.gather(1, best).squeeze(1)
            else:
                next_values = next_q.amax(1)
            target = td_target(batch, next_values, self._gamma)

        terms = dqn_loss({**batch, "q_values": self.q_network(obs), "target_q_values": target})
        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}
