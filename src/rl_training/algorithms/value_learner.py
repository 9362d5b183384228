"""What learners of action values share: temporal-difference targets and ε-greedy acting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, Tensors, stream
from rl_training.models.action_values import ActionValues
from rl_training.models.host import redefined, with_arrays

__all__ = ["ValueLearner", "of_actions", "td_target", "weighted_mean"]


def td_target(batch: Tensors, next_values: torch.Tensor, gamma: torch.Tensor | float) -> torch.Tensor:
    """r + γ V(s'), without the bootstrap after a termination; ``next_values`` is (B,), or (B, M) for M samples of the
    return.

    Rows over several steps bring their own power of γ as ``discounts``.
    """
    factor = batch.get("discounts", gamma) * (1 - batch["dones"])
    if next_values.ndim == 1:
        return batch["rewards"] + factor * next_values
    return batch["rewards"][:, None] + factor[:, None] * next_values


def weighted_mean(losses: torch.Tensor, batch: Tensors) -> torch.Tensor:
    """The mean over a batch's losses (B,), multiplied by importance ``weights`` if the batch has them."""
    return (losses * batch["weights"] if "weights" in batch else losses).mean()


def of_actions(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The entries of each row's action: (B, A) -> (B,), (B, A, N) -> (B, N)."""
    index = actions.long().view(-1, *([1] * (values.ndim - 1)))
    return values.gather(1, index.expand(-1, 1, *values.shape[2:])).squeeze(1)


class ValueLearner(Learner):
    """ε-greedy acting by ``values``, the action values of ``q_network``.

    A network of this package whose ``act`` is overridden chooses the greedy action by it.
    """

    CONTROLS = ("epsilon",)

    def __init__(self, q_network: Any, values: ActionValues) -> None:
        self.q_network, self._values, self._epsilon = q_network, values, 0.0
        self._own_act = redefined(q_network, "act")

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        rng = None if deterministic else stream(rng)
        q_values = self._values.on_arrays(obs, rng)
        actions = q_values.argmax(-1)
        if self._own_act:
            actions = with_arrays(self.q_network, self.q_network.act, obs)
        if rng is not None and self._epsilon > 0:
            for i, uniform in enumerate(rng.random(len(actions)).tolist()):
                if uniform < self._epsilon:
                    actions[i] = rng.integers(q_values.shape[-1])
        return Acting(actions)

    def policy_module(self) -> nn.Module:
        values = self._values.on_tensors
        if not self._own_act:
            return Greedy(self.q_network, lambda network, obs: values(network, obs))

        def chosen(network: Any, obs: torch.Tensor) -> torch.Tensor:
            choices = torch.arange(values(network, obs).shape[-1], device=obs.device)
            actions: torch.Tensor = network.act(obs)
            return (choices == actions[:, None]).float()

        return Greedy(self.q_network, chosen)
