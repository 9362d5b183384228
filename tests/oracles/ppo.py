"""Proximal Policy Optimization (Schulman et al., 2017): one step on a minibatch, and the passes over a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oracles.policies import ActorCritic


class PPO:
    """Adam with an epsilon of 1e-5, on the clipped surrogate, the squared value error and the entropy bonus."""

    def __init__(
        self, network: ActorCritic, *, learning_rate: float, clip_coef: float, ent_coef: float, vf_coef: float,
        max_grad_norm: float | None = 0.5, clip_values: bool = False, normalize_advantages: bool = True,
    ) -> None:  # fmt: skip
        self.network, self.optimizer = network, adam(network, learning_rate, eps=1e-5)
        self.clip_coef, self.ent_coef, self.vf_coef = clip_coef, ent_coef, vf_coef
        self.max_grad_norm, self._clip_values, self._normalize = max_grad_norm, clip_values, normalize_advantages

    def update(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        advantages, epsilon = batch["advantages"], self.clip_coef
        if self._normalize and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

        log_ratio = self.network.log_probs(batch["obs"], batch["actions"]) - batch["logprobs"]
        ratio = log_ratio.exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages).mean()

        values = self.network.values(batch["obs"])
        errors = (values - batch["returns"]) ** 2
        if self._clip_values:
            near = batch["values"] + (values - batch["values"]).clamp(-epsilon, epsilon)
            errors = torch.max(errors, (near - batch["returns"]) ** 2)
        value_loss = errors.mean() / 2

        entropy = self.network.entropy(batch["obs"]).mean()
        loss = -surrogate + self.vf_coef * value_loss - self.ent_coef * entropy
        step(self.optimizer, loss, self.max_grad_norm)
        return {
            "loss": loss.item(), "policy_loss": -surrogate.item(), "value_loss": value_loss.item(),
            "entropy_loss": -entropy.item(), "approx_kl": (ratio - 1 - log_ratio).mean().item(),
            "clip_fraction": ((ratio < 1 - epsilon) | (ratio > 1 + epsilon)).double().mean().item(),
        }  # fmt: skip

    def learn(
        self, rows: Mapping[str, Tensor], orders: Any, *, epochs: int, size: int, target_kl: float | None = None
    ) -> list[dict]:
        """Passes over a rollout's rows, each in the next of ``orders``, until a pass has ended too far from where it began."""
        results: list[dict] = []
        for _ in range(epochs):
            for index in minibatches(next(orders), size):
                results.append(self.update({name: column[index] for name, column in rows.items()}))
            if target_kl is not None and results[-1]["approx_kl"] > target_kl:
                break
        return results


def minibatches(order: Sequence[int], size: int) -> list[Tensor]:
    """Rows by ``size``; the last ones may be fewer."""
    return [torch.as_tensor(order[start : start + size]) for start in range(0, len(order), size)]


def adam(network: Any, learning_rate: float, *, eps: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=learning_rate, eps=eps)


def step(optimizer: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float | None) -> None:
    """A step on the gradients of this loss alone, scaled down to a norm over all of them.

    Adam's parameters are one vector: those that the loss does not depend on have a gradient of zero.
    """
    parameters = optimizer.param_groups[0]["params"]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    loss.backward()
    if max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
