"""Generative Adversarial Imitation Learning (Ho & Ermon, 2016), with PPO in place of TRPO.

The discriminator gives the probability that a pair is the expert's; the policy is paid by its logit, in one of three ways:
``softplus`` (-log(1 - D), always positive: pays for surviving), ``logsigmoid`` (log D, always negative: pays for ending) or
``logit`` (their sum, zero where the two cannot be told apart).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.ppo import PPO
from rl_training.models.overrides import redefined
from rl_training.optim.flat import FlatAdam, descend

RewardType = Literal["softplus", "logsigmoid", "logit"]
ROWS = ("obs", "actions", "absorbed")


def imitation_reward(logits: torch.Tensor, kind: RewardType = "softplus") -> torch.Tensor:
    if kind == "softplus":
        return F.softplus(logits)
    return F.logsigmoid(logits) if kind == "logsigmoid" else logits


def gail_discriminator_loss(
    expert_logits: torch.Tensor, policy_logits: torch.Tensor, smoothing: float = 0.0
) -> Tensors:
    """Cross-entropy of expert rows being told as such and policy rows not, the sum of the two means; with ``smoothing``, the
    labels are that far from one and zero."""
    expert = F.binary_cross_entropy_with_logits(expert_logits, torch.full_like(expert_logits, 1 - smoothing))
    policy = F.binary_cross_entropy_with_logits(policy_logits, torch.full_like(policy_logits, smoothing))
    return {
        "gail_discriminator_loss": expert + policy,
        "gail_discriminator_expert_loss": expert,
        "gail_discriminator_policy_loss": policy,
        "gail_discriminator_expert_accuracy": (expert_logits > 0).float().mean(),
        "gail_discriminator_policy_accuracy": (policy_logits < 0).float().mean(),
        "gail_discriminator_expert_logit_mean": expert_logits.mean(),
        "gail_discriminator_policy_logit_mean": policy_logits.mean(),
    }


class GAIL(PPO):
    """``update`` is PPO's, on advantages of the discriminator's rewards. ``discriminator`` maps (obs, actions) to logits (B,);
    a gradient penalty needs the two steps of MLPGAILDiscriminator."""

    PARTS = ("_learn", "_learn_discriminator", "_clone")

    def __init__(
        self,
        *,
        policy: Any,
        discriminator: Any,
        learning_rate: float,
        clip_coef: float,
        ent_coef: float,
        vf_coef: float,
        discriminator_learning_rate: float,
        max_grad_norm: float | None = 0.5,
        reward_type: RewardType = "softplus",
        label_smoothing: float = 0.0,
        gradient_penalty: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(
            policy=policy,
            learning_rate=learning_rate,
            clip_coef=clip_coef,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            **options,
        )
        self.discriminator = discriminator
        self.discriminator_optimizer = FlatAdam(discriminator.parameters(), lr=discriminator_learning_rate)
        self._own_logits = redefined(discriminator, "forward")  # which is what pays the policy
        self._reward_type, self._smoothing, self._penalty = reward_type, label_smoothing, gradient_penalty

    @torch.no_grad()
    def discriminator_logits(
        self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.discriminator(obs, actions) if absorbed is None else self.discriminator(obs, actions, absorbed)

    def discriminator_reward(
        self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What the policy is paid for each row, (B,)."""
        return imitation_reward(self.discriminator_logits(obs, actions, absorbed), self._reward_type)

    def update_discriminator(self, policy_batch: Tensors, expert_batch: Tensors, *, global_step: int) -> UpdateResult:
        """One step on as many rows of each: ``obs``, ``actions`` and, with absorbing states, ``absorbed``."""
        if len(policy_batch["obs"]) != len(expert_batch["obs"]) or ("absorbed" in policy_batch) != (
            "absorbed" in expert_batch
        ):
            raise ValueError(
                "the discriminator takes as many rows of the expert as of the policy, with the same columns"
            )
        rows = {name: torch.cat([expert_batch[name], policy_batch[name]]) for name in ROWS if name in policy_batch}
        if hasattr(self.discriminator, "observe"):
            self.discriminator.observe(rows["obs"])
        if self._penalty:  # where between an expert's and a policy's row the gradient is taken
            rows["place"] = torch.rand(len(policy_batch["obs"]), 1, device=self._device)
        metrics, _ = self.learn(rows, "_learn_discriminator")
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn_discriminator(self, rows: Tensors) -> Tensors:
        given = [rows[name] for name in ROWS if name in rows]
        half = len(given[0]) // 2
        extra: Tensors = {}
        if self._penalty:
            inputs = self.discriminator.inputs(*given)
            logits = self.discriminator(*given) if self._own_logits else self.discriminator.judge(inputs)
            place = rows["place"]
            between = (place * inputs[:half] + (1 - place) * inputs[half:]).detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.discriminator.judge(between).sum(), between, create_graph=True)
            extra["gail_gradient_penalty"] = (slope.norm(dim=-1) - 1).square().mean()
        else:
            logits = self.discriminator(*given)
        terms = gail_discriminator_loss(logits[:half], logits[half:], self._smoothing)
        loss = terms["gail_discriminator_loss"]
        if extra:
            loss = loss + self._penalty * extra["gail_gradient_penalty"]
        descend((self.discriminator_optimizer, loss))
        return {name: term.detach() for name, term in {**terms, **extra}.items()}

    def clone(self, batch: Tensors) -> UpdateResult:
        """One step of behaviour cloning on expert rows, for a warm start; observations as they come."""
        obs = batch["obs"] if self.normalizer is None else self.normalizer(batch["obs"])
        metrics, _ = self.learn({"obs": obs, "actions": batch["actions"]}, "_clone")
        return UpdateResult(metrics, num_gradient_steps=1)

    def _clone(self, batch: Tensors) -> Tensors:
        loss = -self.model.evaluate_actions(batch["obs"], batch["actions"]).logprobs.mean()
        descend((self.optimizer, loss))
        return {"clone_loss": loss.detach()}
