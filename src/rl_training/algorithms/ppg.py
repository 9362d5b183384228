"""Phasic Policy Gradient (Cobbe et al., 2020): PPO whose value loss does not shape the policy's features, and an
auxiliary phase, every so many rollouts, that distils the value into them while a divergence keeps the policy where it
is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.ppo import PPO, ppo_loss
from rl_training.base.metrics import both
from rl_training.models.heads import Categorical, Head
from rl_training.models.mlp_ppg import MLPPPGModel
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["PPG", "ppg_auxiliary_loss", "ppg_loss"]

ppg_loss = ppo_loss  # of the policy phase: what differs is which gradients the network lets through


def ppg_auxiliary_loss(
    batch: Tensors,
    *,
    aux_value_coef: float,
    behavior_clone_coef: float,
    value_clone_coef: float,
    head: Head | None = None,
) -> Tensors:
    """Regression of the auxiliary and of the true value on returns, and KL(teacher || student).

    ``policy_logits`` and ``teacher_logits`` (B, size) are outputs for ``head`` (None: a Categorical); ``values``,
    ``auxiliary_values`` and ``returns`` are (B,).
    """
    head = Categorical(batch["policy_logits"].shape[-1]) if head is None else head
    aux_value_loss = 0.5 * (batch["auxiliary_values"] - batch["returns"]).square().mean()
    clone_loss = head.divergence(batch["teacher_logits"], batch["policy_logits"]).mean()
    value_loss = 0.5 * (batch["values"] - batch["returns"]).square().mean()
    total = aux_value_coef * aux_value_loss + behavior_clone_coef * clone_loss + value_clone_coef * value_loss
    return {
        "auxiliary_loss": total,
        "aux_value_loss": aux_value_loss,
        "behavior_clone_loss": clone_loss,
        "value_clone_loss": value_loss,
    }


class PPG(PPO):
    """``model`` is an MLPPPGModel or a module with its methods. ``update`` is PPO's."""

    PARTS = ("_learn", "_learn_auxiliary")
    STATE = ("policy_updates", "auxiliary_updates")

    def __init__(
        self,
        *,
        model: Any,
        aux_learning_rate: float,
        aux_value_coef: float,
        behavior_clone_coef: float,
        value_clone_coef: float,
        **options: Any,
    ) -> None:
        """``options``: PPO's."""
        super().__init__(policy=model, **options)
        # Both optimizers step the same weights; the auxiliary head has no gradient in the policy phase.
        shared = self.optimizer
        self.aux_optimizer = options.get("optimizer", FlatAdam)(
            shared.params, lr=aux_learning_rate, eps=1e-5, max_grad_norm=shared.max_grad_norm
        )
        self.aux_optimizer.share_memory_of(shared)
        self._coefs = {
            "aux_value_coef": aux_value_coef,
            "behavior_clone_coef": behavior_clone_coef,
            "value_clone_coef": value_clone_coef,
        }
        self.policy_updates = self.auxiliary_updates = 0

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One minibatch of the policy phase."""
        result = super().update(batch, global_step=global_step)
        self.policy_updates += 1
        return UpdateResult(both(result.metrics, {"policy_updates": float(self.policy_updates)}), 1)

    def auxiliary_update(self, batch: Tensors, *, teacher_model: Any = None, global_step: int) -> UpdateResult:
        """One minibatch of the auxiliary phase: ``obs``, ``returns``, and ``teacher_logits`` (or a teacher model)."""
        if "teacher_logits" not in batch:
            if teacher_model is None:
                raise ValueError("the auxiliary phase needs teacher_logits or a teacher_model")
            batch = {**batch, "teacher_logits": self.teacher_logits(batch["obs"], teacher_model)}
        metrics, _ = self.learn({k: batch[k] for k in ("obs", "returns", "teacher_logits")}, "_learn_auxiliary")
        self.auxiliary_updates += 1
        return UpdateResult(both(metrics, {"auxiliary_updates": float(self.auxiliary_updates)}), 1)

    def _learn_auxiliary(self, batch: Tensors) -> Tensors:
        logits, values, auxiliary = self.model.all_outputs(batch["obs"])
        now = {"policy_logits": logits, "values": values, "auxiliary_values": auxiliary}
        terms = ppg_auxiliary_loss({**batch, **now}, **self._coefs, head=getattr(self.model, "head", None))
        descend((self.aux_optimizer, terms["auxiliary_loss"]))
        return {name: term.detach() for name, term in terms.items()}

    @torch.no_grad()
    def teacher_logits(self, obs: torch.Tensor, teacher_model: Any = None) -> torch.Tensor:
        """The policy's outputs for observations (as ``act`` saw them), from which the auxiliary phase may not stray."""
        logits: torch.Tensor = (self.model if teacher_model is None else teacher_model).policy_logits(obs)
        return logits

    def snapshot_teacher_model(self) -> MLPPPGModel:
        """A frozen copy of the network as it is now."""
        teacher: MLPPPGModel = copy.deepcopy(self.model).requires_grad_(False).eval()
        return teacher
