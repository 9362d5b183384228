"""Generative Adversarial Imitation Learning (Ho & Ermon, 2016), with PPO in place of TRPO.

The discriminator D gives the probability that a pair of observation and action is the expert's. The policy's reward is
a function of D's logit: ``softplus`` (-log(1 - D), always positive: it rewards survival), ``logsigmoid`` (log D, always
negative: it rewards termination) or ``logit`` (their sum, zero where D cannot tell the two apart).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.ppo import PPO
from rl_training.base.devices import to_device
from rl_training.models.overrides import redefined
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["GAIL", "RewardType", "gail_discriminator_loss", "imitation_reward"]

RewardType = Literal["softplus", "logsigmoid", "logit"]
COLUMNS = ("obs", "actions", "absorbed")


def imitation_reward(logits: Tensor, kind: RewardType = "softplus") -> Tensor:
    """Rewards of the policy from the discriminator's logits."""
    if kind == "softplus":
        return F.softplus(logits)
    return F.logsigmoid(logits) if kind == "logsigmoid" else logits


def gail_discriminator_loss(expert_logits: Tensor, policy_logits: Tensor, smoothing: float = 0.0) -> Tensors:
    """Cross-entropy with label one for expert rows and zero for policy rows, or ``smoothing`` away from these: the sum
    of the two means."""
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
    """``update`` is PPO's, on advantages of the discriminator's rewards. ``discriminator`` maps (obs, actions) to
    logits (B,); a gradient penalty needs the methods of MLPGAILDiscriminator."""

    PARTS = ("_learn", "_learn_discriminator", "_clone")

    def __init__(
        self, *, discriminator: Any, discriminator_learning_rate: float, reward_type: RewardType = "softplus",
        label_smoothing: float = 0.0, gradient_penalty: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        """``options``: PPO's."""
        super().__init__(**options)
        self.discriminator = discriminator
        self.discriminator_optimizer = FlatAdam(discriminator.parameters(), lr=discriminator_learning_rate)
        self._own_logits = redefined(discriminator, "forward")  # rewards are computed by ``forward``
        self._reward_type, self._smoothing, self._penalty = reward_type, label_smoothing, gradient_penalty

    @torch.no_grad()
    def discriminator_logits(self, obs: Tensor, actions: Tensor, absorbed: Tensor | None = None) -> Tensor:
        """Logits (B,), positive for the expert; ``absorbed`` (B,) is 1 where a row stands for an absorbing state."""
        logits: Tensor = self.discriminator(*((obs, actions) if absorbed is None else (obs, actions, absorbed)))
        return logits

    def discriminator_reward(self, obs: Tensor, actions: Tensor, absorbed: Tensor | None = None) -> Tensor:
        """The policy's reward for each row, (B,)."""
        return imitation_reward(self.discriminator_logits(obs, actions, absorbed), self._reward_type)

    def update_discriminator(self, policy_batch: Tensors, expert_batch: Tensors, *, global_step: int) -> UpdateResult:
        """One step on as many rows of each: ``obs``, ``actions`` and, with absorbing states, ``absorbed``; best on the
        host, where they are observed."""
        policy, expert = ((len(batch["obs"]), "absorbed" in batch) for batch in (policy_batch, expert_batch))
        if policy != expert:
            raise ValueError("batches need as many rows of the expert as of the policy, with the same columns")
        rows = {name: torch.cat([expert_batch[name], policy_batch[name]]) for name in COLUMNS if name in policy_batch}
        if hasattr(self.discriminator, "observe"):
            self.discriminator.observe(rows["obs"])
        rows = to_device(rows, self._device)
        if self._penalty:
            rows["place"] = torch.rand(len(policy_batch["obs"]), 1, device=self._device)
        return UpdateResult(self.learn(rows, "_learn_discriminator")[0], num_gradient_steps=1)

    def _learn_discriminator(self, rows: Tensors) -> Tensors:
        columns, half = [rows[name] for name in COLUMNS if name in rows], len(rows["obs"]) // 2
        inputs = self.discriminator.inputs(*columns) if self._penalty else None
        forward = inputs is None or self._own_logits
        logits = self.discriminator(*columns) if forward else self.discriminator.logits(inputs)
        terms = gail_discriminator_loss(logits[:half], logits[half:], self._smoothing)
        loss = terms["gail_discriminator_loss"]

        if inputs is not None:
            penalty = self.discriminator.gradient_penalty(inputs[:half], inputs[half:], rows["place"])
            loss = loss + self._penalty * penalty
            terms["gail_gradient_penalty"] = penalty

        descend((self.discriminator_optimizer, loss))
        return {name: term.detach() for name, term in terms.items()}

    def clone(self, batch: Tensors) -> UpdateResult:
        """One step of behaviour cloning on expert rows, as a warm start; observations as the environment gave them.

        The deviation of Box actions stays: that of an expert's greedy actions is nearly zero, and a policy that hardly
        explores learns nothing from the discriminator.
        """
        obs = batch["obs"] if self.normalizer is None else self.normalizer(batch["obs"])
        deviation = getattr(self.model, "log_std", None)
        before = None if deviation is None else deviation.detach().clone()
        metrics, _ = self.learn({"obs": obs, "actions": batch["actions"]}, "_clone")
        if deviation is not None:
            with torch.no_grad():
                deviation.copy_(before)
        return UpdateResult(metrics, num_gradient_steps=1)

    def end_cloning(self) -> None:
        """Forget the averages of cloning's gradients: those of the policy's updates are of another size."""
        self.optimizer.reset()

    def _clone(self, batch: Tensors) -> Tensors:
        loss = -self.model.evaluate_actions(batch["obs"], batch["actions"]).logprobs.mean()
        descend((self.optimizer, loss))
        return {"clone_loss": loss.detach()}
