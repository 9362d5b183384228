"""Behaviour cloning (Pomerleau, 1989): supervised learning of the data's actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, Tensors, UpdateResult, stream
from rl_training.models.host import host_forward
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, OptimizerFactory, descend

__all__ = ["BC", "bc_loss"]


def bc_loss(batch: Mapping[str, Any]) -> Tensors:
    """Negative log-likelihood of the data's actions, from their ``logprobs`` (B,) under the policy."""
    return {"loss": -torch.as_tensor(batch["logprobs"]).mean()}


class BC(Learner):
    """``policy`` is an MLPPolicy, or like one: observations to the parameters of its ``head``'s distribution."""

    COMPILE_THRESHOLD = 20_000

    def __init__(
        self,
        *,
        policy: Any,
        learning_rate: float,
        normalizer: ObservationNormalizer | None = None,
        optimizer: OptimizerFactory = FlatAdam,
    ) -> None:
        self.policy, self.normalizer = policy, normalizer
        self.optimizer = optimizer(policy.parameters(), lr=learning_rate)
        self._forward = host_forward(policy)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        actions, _ = self.policy.head.sample(self._forward(obs), stream(rng), deterministic)
        return Acting(actions)

    def policy_module(self) -> nn.Module:
        return Greedy(self.policy, lambda policy, obs: policy.head.best(policy(obs)))

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        metrics, _ = self.learn({"obs": batch["obs"], "actions": batch["actions"]})
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs = batch["obs"] if self.normalizer is None else self.normalizer(batch["obs"])
        logprobs, entropy = self.policy.head.evaluate(self.policy(obs), batch["actions"])
        loss = bc_loss({"logprobs": logprobs})["loss"]
        descend((self.optimizer, loss))
        known = {} if entropy is None else {"entropy": entropy.detach().mean()}
        return {"loss": loss.detach(), "logprob_mean": logprobs.detach().mean(), **known}
