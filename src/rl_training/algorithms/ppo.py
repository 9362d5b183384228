"""Proximal Policy Optimization (Schulman et al., 2017), with a clipped surrogate.

Beyond the paper, as every strong implementation has it: advantages are normalised per minibatch, weights start orthogonal with a
small policy head, gradients are clipped by norm, and a truncated episode bootstraps from its true last observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, Tensors, UpdateResult, stream
from rl_training.models.host import HostFunction, device_of, redefined, with_arrays
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, descend

EPS = 1e-5  # of Adam


def ppo_loss(
    minibatch: Tensors,
    *,
    clip_coef: float | torch.Tensor,
    ent_coef: float | torch.Tensor,
    vf_coef: float | torch.Tensor,
    clip_values: bool = False,
) -> Tensors:
    """Clipped surrogate, value regression and entropy bonus; every tensor has shape (B,)."""
    log_ratio = minibatch["new_logprobs"] - minibatch["logprobs"]
    ratio, advantages = log_ratio.exp(), minibatch["advantages"]
    clipped = torch.minimum(torch.maximum(ratio, torch.as_tensor(1 - clip_coef)), torch.as_tensor(1 + clip_coef))
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()

    errors = (minibatch["new_values"] - minibatch["returns"]).square()
    if clip_values:
        change = minibatch["new_values"] - minibatch["values"]
        limited = torch.minimum(torch.maximum(change, torch.as_tensor(-clip_coef)), torch.as_tensor(clip_coef))
        errors = torch.maximum(errors, (minibatch["values"] + limited - minibatch["returns"]).square())
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


class PPO(Learner):
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
    ) -> None:
        self.model, self.normalizer = policy, normalizer
        self.optimizer = self._optimizer(learning_rate, max_grad_norm)
        self._device = device_of(policy)
        self._clip_coef, self._ent_coef = (torch.tensor(float(x), device=self._device) for x in (clip_coef, ent_coef))
        self._vf_coef, self._clip_values, self._normalize = vf_coef, clip_values, normalize_advantages
        # a model's own ``act`` acts; ``evaluate_actions`` is what is learned, and the inherited ``act`` asks it for log-probabilities
        ours = isinstance(policy, MLPActorCritic) and not redefined(policy, "act", "evaluate_actions")
        self._forward: HostFunction | None = policy.host() if ours else None

    def _optimizer(self, learning_rate: float, max_grad_norm: float | None) -> FlatAdam:
        return FlatAdam(self.model.parameters(), lr=learning_rate, eps=EPS, max_grad_norm=max_grad_norm)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        if self._forward is not None:
            outputs, values = self._forward(obs)
            actions, logprobs = self.model.head.sample(outputs, stream(rng), deterministic)
        else:  # a custom policy draws from torch's generator
            actions, logprobs, values, *_ = with_arrays(
                self.model, lambda x: tuple(self.model.act(x, deterministic=deterministic)), obs
            )
        return Acting(actions, {"logprobs": logprobs, "values": values, "obs": obs})

    def policy_module(self) -> nn.Module:
        head = getattr(self.model, "head", None)
        if head is None:
            return super().policy_module()
        if redefined(self.model, "act"):
            return Greedy(self.model, lambda model, obs: head.scores(model.act(obs, deterministic=True).actions))
        return Greedy(self.model, lambda model, obs: head.best(model(obs)[0]))

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Value of each observation, (N,)."""
        if self._forward is None:
            return self.act(obs, deterministic=True).extras["values"]
        return self._forward(obs if self.normalizer is None else self.normalizer.host(obs))[1]

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One minibatch: obs (as ``act`` returned them), actions, logprobs, advantages, returns, values."""
        return UpdateResult(self.learn(batch)[0], num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        advantages = batch["advantages"]
        if self._normalize and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        _, logprobs, values, entropy = self.model.evaluate_actions(batch["obs"], batch["actions"])
        now = {"advantages": advantages, "new_logprobs": logprobs, "new_values": values, "entropy": entropy}
        terms = ppo_loss(
            {**batch, **now},
            clip_coef=self._clip_coef,
            ent_coef=self._ent_coef,
            vf_coef=self._vf_coef,
            clip_values=self._clip_values,
        )
        descend((self.optimizer, terms["loss"]))
        return {name: term.detach() for name, term in terms.items()}
