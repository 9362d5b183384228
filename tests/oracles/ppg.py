"""Phasic Policy Gradient (Cobbe et al., 2020): PPO's steps, and those of the auxiliary phase."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oracles.policies import ActorCritic, divergence
from oracles.ppo import PPO, adam, minibatches, step


class PPG(PPO):
    """The auxiliary phase has an Adam of its own. The policy that it may not leave is the one at its beginning."""

    def __init__(
        self, network: ActorCritic, *, aux_learning_rate: float, aux_value_coef: float, behavior_clone_coef: float,
        value_clone_coef: float, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(network, **options)
        self.aux_optimizer = adam(network, aux_learning_rate, eps=1e-5)
        self._coefs = (aux_value_coef, behavior_clone_coef, value_clone_coef)

    def auxiliary_phase(self, obs: Tensor, returns: Tensor, orders: Any, *, epochs: int, size: int) -> list[dict]:
        """Passes over all rows that were kept, with their value targets as they were when collected."""
        old = ActorCritic(self.network.state_dict(), self.network._actions, self.network._choices)
        return [
            self.auxiliary_update(obs[index], returns[index], old)
            for _ in range(epochs)
            for index in minibatches(next(orders), size)
        ]

    def auxiliary_update(self, obs: Tensor, returns: Tensor, old: ActorCritic) -> dict[str, float]:
        """L_joint = L_aux + β KL(π_old || π), and the value's own regression."""
        network, (auxiliary, clone, value) = self.network, self._coefs
        with torch.no_grad():
            before = old.policies(obs)
        aux_values = network.linear("aux_head", network.features(obs)[0])[:, 0]
        aux_loss = ((aux_values - returns) ** 2).mean() / 2
        kl = divergence(before, network.policies(obs)).mean()
        value_loss = ((network.values(obs) - returns) ** 2).mean() / 2
        loss = auxiliary * aux_loss + clone * kl + value * value_loss
        step(self.aux_optimizer, loss, self.max_grad_norm)
        return {
            "auxiliary_loss": loss.item(), "aux_value_loss": aux_loss.item(), "behavior_clone_loss": kl.item(),
            "value_clone_loss": value_loss.item(),
        }  # fmt: skip
