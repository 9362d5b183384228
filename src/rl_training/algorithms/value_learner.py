"""What learners of action values share: temporal-difference targets and ε-greedy acting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, Tensors, stream
from rl_training.base.parts import drawn_allowed
from rl_training.models.action_values import ActionValues
from rl_training.models.host import redefined, with_arrays
from rl_training.models.masks import ActionMasks

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

    A network of this package whose ``act`` is overridden chooses the greedy action by it. With ``masks``, those of the
    observations, no other than allowed actions are taken, or bootstrapped from.
    """

    CONTROLS = ("epsilon",)

    def __init__(self, q_network: Any, values: ActionValues, masks: ActionMasks | None = None) -> None:
        self.q_network, self._values, self._masks, self._epsilon = q_network, values, masks, 0.0
        self._own_act = redefined(q_network, "act")
        if self._own_act and masks is not None:
            raise ValueError(
                f"{type(q_network).__name__} chooses by its own act, which may take what the environment's masks of "
                "actions forbid: override forward (FQF: values), or set env_kwargs.action_masks: false"
            )

    def allowed(self, values: torch.Tensor, obs: torch.Tensor) -> torch.Tensor:
        """Action values (B, A), of allowed actions where observations have masks."""
        return values if self._masks is None else self._masks.values(values, obs)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        rng = None if deterministic else stream(rng)
        q_values = self._values.on_arrays(obs, rng)
        if self._masks is not None:
            return Acting(self._among_allowed(q_values, self._masks.allowed_on_host(obs), rng))
        actions = q_values.argmax(-1)
        if self._own_act:
            actions = with_arrays(self.q_network, self.q_network.act, obs)
        if rng is not None and self._epsilon > 0:
            for i, uniform in enumerate(rng.random(len(actions)).tolist()):
                if uniform < self._epsilon:
                    actions[i] = rng.integers(q_values.shape[-1])
        return Acting(actions)

    def _among_allowed(self, q_values: np.ndarray, allowed: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """ε-greedy actions (N,) of those that masks (N, A) allow."""
        actions: np.ndarray = np.where(allowed, q_values, -np.inf).argmax(-1)
        if rng is not None and self._epsilon > 0:
            random = drawn_allowed(allowed, (allowed.shape[-1],), rng)[:, 0]
            actions = np.where(rng.random(len(actions)) < self._epsilon, random, actions)
        return actions

    def policy_module(self) -> nn.Module:
        values = self._values.on_tensors
        if not self._own_act:
            return Greedy(self.q_network, lambda network, obs: self.allowed(values(network, obs), obs))

        def chosen(network: Any, obs: torch.Tensor) -> torch.Tensor:
            choices = torch.arange(values(network, obs).shape[-1], device=obs.device)
            actions: torch.Tensor = network.act(obs)
            return (choices == actions[:, None]).float()

        return Greedy(self.q_network, chosen)
