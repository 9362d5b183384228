"""The network of Phasic Policy Gradient: policy, value, and an auxiliary value computed from the policy's features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import nn

from rl_training.models.mlp import orthogonal_
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.overrides import overridden

__all__ = ["Architecture", "MLPPPGModel"]

Architecture = Literal["detach", "dual"]


class MLPPPGModel(MLPActorCritic):
    """``detach``: one trunk, which gets no gradient from the value head. ``dual``: a trunk each for policy and value.

    In both, it is the gradient of the auxiliary value that distils the value function into the policy's features.
    """

    REPLACED: ClassVar[tuple[str, ...]] = MLPActorCritic.REPLACED  # its own ``features`` have the same values

    def __init__(self, *, architecture: Architecture = "detach", **shape: Any) -> None:
        super().__init__(**shape, towers=1 if architecture == "detach" else 2)
        self._detached = architecture == "detach"
        self.aux_head = nn.Linear(self.value_head.in_features, 1)
        orthogonal_(self.aux_head, 1.0)

    def features(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        policy, value = super().features(obs)
        return policy, value.detach() if self._detached else value

    def all_outputs(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Distribution outputs (B, head.size), values (B,) and auxiliary values (B,), from one pass."""
        if overridden(self, "forward"):  # acting goes by ``forward``, so the auxiliary phase must not bypass it
            return *self(obs), self.aux_head(self.features(obs)[0]).squeeze(-1)
        policy, value = self.features(obs)
        return (
            self.masked(self.outputs(policy), obs),
            self.value_head(value).squeeze(-1),
            self.aux_head(policy).squeeze(-1),
        )

    def policy_logits(self, obs: torch.Tensor) -> torch.Tensor:
        """Distribution outputs (B, head.size)."""
        outputs: torch.Tensor = self(obs)[0]
        return outputs

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """Values (B,)."""
        values: torch.Tensor = self(obs)[1]
        return values

    def auxiliary_values(self, obs: torch.Tensor) -> torch.Tensor:
        """Auxiliary values (B,)."""
        return self.all_outputs(obs)[2]
