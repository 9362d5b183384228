"""Proximal Policy Optimization (Schulman et al., 2017), with a clipped surrogate.

Beyond the paper, as every strong implementation has it: advantages are normalised per minibatch, weights start
orthogonal with a small policy head, gradients are clipped by norm, and a truncated episode bootstraps from its true
last observation.
"""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.on_policy import OnPolicyLearner
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, OptimizerFactory, descend

__all__ = ["PPO", "ppo_loss"]

Coef = float | torch.Tensor


def ppo_loss(
    minibatch: Tensors, *, clip_coef: Coef, ent_coef: Coef, vf_coef: Coef, clip_values: bool = False
) -> Tensors:
    """Clipped surrogate, value regression and entropy bonus; every tensor has shape (B,)."""
    log_ratio = minibatch["new_logprobs"] - minibatch["logprobs"]
    ratio, advantages = log_ratio.exp(), minibatch["advantages"]
    clipped = _clip(ratio, 1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()

    errors = (minibatch["new_values"] - minibatch["returns"]).square()
    if clip_values:
        values = minibatch["values"] + _clip(minibatch["new_values"] - minibatch["values"], -clip_coef, clip_coef)
        errors = torch.maximum(errors, (values - minibatch["returns"]).square())
    value_loss = 0.5 * errors.mean()

    entropy_loss = -minibatch["entropy"].mean()
    return {
        "loss": policy_loss + vf_coef * value_loss + ent_coef * entropy_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > clip_coef).float().mean(),
    }


def _clip(x: torch.Tensor, low: Coef, high: Coef) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, torch.as_tensor(low)), torch.as_tensor(high))


class PPO(OnPolicyLearner):
    """``policy`` is an MLPActorCritic or any module with its ``act`` and ``evaluate_actions``."""

    CONTROLS = ("clip_coef", "ent_coef")
    COMPILE_THRESHOLD = 60_000

    def __init__(
        self,
        *,
        policy: Any,
        learning_rate: float,
        clip_coef: float,
        ent_coef: float,
        vf_coef: float,
        max_grad_norm: float | None = 0.5,
        clip_values: bool = False,
        normalize_advantages: bool = True,
        normalizer: ObservationNormalizer | None = None,
        optimizer: OptimizerFactory = FlatAdam,
    ) -> None:
        super().__init__(policy, normalizer)
        self.optimizer = optimizer(policy.parameters(), lr=learning_rate, eps=1e-5, max_grad_norm=max_grad_norm)
        self._clip_coef, self._ent_coef = (torch.tensor(float(x), device=self._device) for x in (clip_coef, ent_coef))
        self._vf_coef, self._clip_values, self._normalize = vf_coef, clip_values, normalize_advantages

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One step on a minibatch: obs (as ``act`` returned them), actions, logprobs, advantages, returns, values."""
        return UpdateResult(self.learn(batch)[0], num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        advantages = batch["advantages"]
        if self._normalize and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

        _, logprobs, values, entropy = self.model.evaluate_actions(batch["obs"], batch["actions"])
        now = {"advantages": advantages, "new_logprobs": logprobs, "new_values": values, "entropy": entropy}
        coefs: dict[str, Coef] = {"clip_coef": self._clip_coef, "ent_coef": self._ent_coef, "vf_coef": self._vf_coef}
        terms = ppo_loss({**batch, **now}, clip_values=self._clip_values, **coefs)

        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}
