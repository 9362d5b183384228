"""RLPD (Ball et al., 2023): SAC made fit for prior data.

Ten critics with layer normalisation, targets by the smaller of a random pair, an actor on the mean of all, and many
critic steps for one of the actor. The other half of the method, batches that are half prior data, is the trainer's.
"""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.actor_critic import critic_metrics
from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.sac import SAC, actor_loss, actor_metrics, critic_loss, sac_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.base.metrics import Metrics, both
from rl_training.optim.flat import descend

__all__ = ["RLPD", "rlpd_loss"]

rlpd_loss = sac_loss


class RLPD(SAC):
    """SAC with an ensemble of critics and many critic steps for one of the actor.

    ``update`` takes the rows of ``updates_per_batch`` critic steps, one slice each; the actor's step is on the last.
    """

    PARTS = ("_learn_critics", "_learn_actor")
    ENTROPY_PER_DIMENSION = -0.5

    def __init__(self, *, model: Any, updates_per_batch: int = 1, target_subset: int = 2, **options: Any) -> None:
        """``target_subset``: how many target critics, drawn anew each step, give the target. Else: see ``SAC``."""
        super().__init__(model=model, **options)
        self._critics = getattr(model, "num_critics", 2)
        if not 1 <= target_subset <= self._critics:
            raise ValueError(f"target_subset must lie between 1 and the {self._critics} critics, got {target_subset}")
        self._updates_per_batch, self._subset = updates_per_batch, target_subset

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        critics, last = self._critic_steps(batch)
        noise = torch.randn_like(last["actions"])
        actor, _ = self.learn({"obs": last["obs"], "noise": noise}, "_learn_actor")
        self._target.copy_buffers()
        return UpdateResult(both(critics, actor), num_gradient_steps=self._updates_per_batch)

    def update_critics(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """``update`` without the step of actor and temperature: the critics learn the values of the policy as it is."""
        critics, _ = self._critic_steps(batch)
        self._target.copy_buffers()
        return UpdateResult(critics, num_gradient_steps=self._updates_per_batch)

    def _critic_steps(self, batch: Tensors) -> tuple[Metrics, Tensors]:
        """One step of the critics on each slice of a batch; the last step's metrics, and the last slice."""
        actions, count = batch["actions"], self._updates_per_batch
        size, rest = divmod(len(actions), count)
        if rest:
            raise ValueError(f"{len(actions)} rows cannot be cut into {count} equal batches")
        device, shape = actions.device, (size, actions.shape[-1])
        for i in range(count):
            part = {name: column[i * size : (i + 1) * size] for name, column in batch.items()}
            members = torch.randperm(self._critics, device=device)[: self._subset]
            drawn = {"noise": torch.randn(shape, device=device), "members": members}
            critics, _ = self.learn({**part, **drawn}, "_learn_critics")
        return critics, part

    def _learn_critics(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        alpha = self.log_alpha.coefficient()

        with (
            torch.no_grad()
        ):  # r + γ (min Q' - α log π), the minimum over the drawn critics; the others are not evaluated
            next_actions, next_logp = self.model.sample_actions(next_obs, noise=batch["noise"])
            members = () if self._subset == self._critics else (batch["members"],)
            next_q = torch.stack(self.target_model.q_values(next_obs, next_actions, *members)).amin(0)
            target = td_target(batch, next_q - alpha * next_logp if self._backup_entropy else next_q, self._gamma)

        q_values = torch.stack(self.model.q_values(obs, batch["actions"]))
        loss = critic_loss(q_values, target) / self._critics

        descend((self.critic_optimizer, loss))
        self._move_target()
        return {**critic_metrics(loss, q_values, target), "q_value_max": q_values.detach().abs().amax()}

    def _learn_actor(self, batch: Tensors) -> Tensors:
        obs = self._normalized(batch["obs"])
        alpha = self.log_alpha.coefficient()

        actions, logp = self.model.sample_actions(obs, noise=batch["noise"])
        loss = actor_loss(logp, torch.stack(self.model.q_values(obs, actions)).mean(0), alpha)
        temperature = self._temperature_steps(logp, actions.shape[-1])

        descend((self.actor_optimizer, loss), *temperature)
        return actor_metrics(loss, logp, alpha, temperature)
