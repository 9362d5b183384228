"""Deep Q-learning (Mnih et al., 2013, 2015), optionally double (van Hasselt et al., 2016).

The loss is Huber's, whose gradient is the paper's clipped error; Adam takes the place of RMSProp.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.value_learner import ValueLearner, of_actions, td_target, weighted_mean
from rl_training.models.action_values import ActionValues
from rl_training.models.masks import ActionMasks
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, FlatOptimizer, OptimizerFactory, Target, descend

__all__ = ["DQN", "dqn_loss"]


def dqn_loss(batch: Tensors) -> Tensors:
    """Huber regression of Q(s, a) on its target.

    ``q_values`` is (B, A); ``actions``, ``target_q_values`` and the optional importance ``weights`` are (B,).
    """
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

    STATE = ("updates",)
    COMPILE_THRESHOLD = 40_000

    def __init__(
        self,
        *,
        q_network: Any,
        learning_rate: float,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        max_grad_norm: float | None = None,
        adam_epsilon: float = 1e-8,
        normalizer: ObservationNormalizer | None = None,
        values: ActionValues | None = None,
        masks: ActionMasks | None = None,
        parameters: Callable[[Any], Iterable[nn.Parameter]] = nn.Module.parameters,
        optimizer: OptimizerFactory = FlatAdam,
    ) -> None:
        """``values``: how a variant's network gives Q-values; ``masks``: those of actions, in observations;
        ``parameters``: those that ``optimizer`` owns."""
        super().__init__(q_network, ActionValues(q_network) if values is None else values, masks)
        self.target_network, self.normalizer = copy.deepcopy(q_network), normalizer
        self.optimizer = optimizer(
            parameters(q_network), lr=learning_rate, eps=adam_epsilon, max_grad_norm=max_grad_norm
        )
        self._targets: list[tuple[FlatOptimizer, Target]] = []
        self._add_target(self.optimizer, parameters)
        self._gamma = torch.tensor(gamma, device=self.optimizer.flat.device)
        self._double, self._target_update_interval, self.updates = double_q, target_update_interval, 0
        self.last_td_errors: torch.Tensor | None = None

    def _add_target(self, optimizer: FlatOptimizer, parameters: Callable[[Any], Iterable[nn.Parameter]]) -> None:
        """Let the target network copy the parameters that this optimizer owns."""
        self._targets.append((optimizer, Target(self.q_network, self.target_network, parameters)))

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One step on transitions, and a copy to the target network every ``target_update_interval`` updates."""
        metrics, rest = self.learn(batch)
        self.last_td_errors = rest["td_errors"]
        self.updates += 1
        if self.updates % self._target_update_interval == 0:
            for optimizer, target in self._targets:
                target.flat.copy_(optimizer.flat)
                target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)

        with torch.no_grad():  # target: r + γ Q'(s', a*)
            next_q = self.allowed(self.target_network(next_obs), next_obs)
            if self._double:  # a* maximises the online network's values, the target network evaluates it
                next_values = of_actions(next_q, self.allowed(self.q_network(next_obs), next_obs).argmax(1))
            else:
                next_values = next_q.amax(1)
            target = td_target(batch, next_values, self._gamma)

        terms = self._terms(batch, self.q_network(obs), target)

        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}

    def _terms(self, batch: Tensors, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
        """The loss of Q-values (B, A) against targets (B,), and what is reported beside it."""
        return dqn_loss({**batch, "q_values": q_values, "target_q_values": target})
