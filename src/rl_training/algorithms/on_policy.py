"""Acting by an actor-critic network: what on-policy learners share."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, stream
from rl_training.models.host import HostFunction, device_of, redefined, with_arrays
from rl_training.models.masks import ActionMasks
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.normalizer import ObservationNormalizer

__all__ = ["OnPolicyLearner"]


class OnPolicyLearner(Learner):
    """A learner that samples actions from an actor-critic network, in numpy where the network allows it.

    ``policy`` is an MLPActorCritic, or any module with its ``act`` and ``evaluate_actions``.
    """

    def __init__(self, policy: Any, normalizer: ObservationNormalizer | None) -> None:
        self.model, self.normalizer, self._device = policy, normalizer, device_of(policy)
        # Learning goes by ``evaluate_actions``, and so does the inherited ``act``: overriding either makes ``act`` act.
        ours = isinstance(policy, MLPActorCritic) and not redefined(policy, "act", "evaluate_actions")
        self._forward: HostFunction | None = policy.host() if ours else None
        self._masks: ActionMasks | None = getattr(policy, "masks", None)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        if self._forward is not None:
            outputs, values = self._forward(obs)
            actions, logprobs = self.model.head.sample(outputs, stream(rng), deterministic)
        else:  # a custom policy draws from torch's generator
            actions, logprobs, values, *_ = with_arrays(
                self.model, lambda x: tuple(self.model.act(x, deterministic=deterministic)), obs
            )
        if self._masks is not None:
            self._masks.require(actions, obs, self.model)
        return Acting(actions, {"logprobs": logprobs, "values": values, "obs": obs})

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Value of each observation, (N,)."""
        if self._forward is None:
            return self.act(obs, deterministic=True).extras["values"]
        values: np.ndarray = self._forward(obs if self.normalizer is None else self.normalizer.host(obs))[1]
        return values

    def policy_module(self) -> nn.Module:
        head = getattr(self.model, "head", None)
        if head is None:
            return super().policy_module()
        if redefined(self.model, "act"):
            return Greedy(self.model, lambda model, obs: head.scores(model.act(obs, deterministic=True).actions))
        return Greedy(self.model, lambda model, obs: head.best(model(obs)[0]))
