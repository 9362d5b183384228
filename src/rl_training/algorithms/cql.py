"""Conservative Q-learning (Kumar et al., 2020): values of actions that the data does not show are pushed down.

CQL(H) for boxes, on SAC: the soft maximum over actions is estimated from uniform and policy actions, each by its density. For
choices, on double DQN, it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.sac import SAC, actor_loss, critic_loss, sac_loss
from rl_training.algorithms.value_learner import of_actions
from rl_training.models.heads import LOG_2, SquashedGaussian, squash
from rl_training.models.mlp_sac import ActorAndCritics, many_q_values
from rl_training.optim.flat import FlatAdam, descend


def conservative_gap(
    q_values: torch.Tensor, log_densities: torch.Tensor, data_q_values: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """How far the soft maximum over actions lies above the data's actions, for each critic: (C,).

    ``q_values`` (C, B, M) of M sampled actions, ``log_densities`` (B, M) of their distributions, ``data_q_values`` (C, B).
    """
    soft_maximum = temperature * (q_values / temperature - log_densities).logsumexp(-1)
    return (soft_maximum - data_q_values).mean(1)


def cql_loss(batch: Mapping[str, Any]) -> Tensors:
    """SAC's losses, from its keys, with ``cql_alpha`` times (``cql_penalty_q1`` + ``cql_penalty_q2``) in the critics'."""
    terms = sac_loss(batch)  # type: ignore[arg-type]
    penalty = torch.as_tensor(batch["cql_alpha"] * (batch["cql_penalty_q1"] + batch["cql_penalty_q2"])).mean()
    return {**terms, "critic_loss": terms["critic_loss"] + penalty, "cql_penalty": penalty}


def _checked(cql_alpha: float) -> float:
    if cql_alpha <= 0:
        raise ValueError(f"cql_alpha must be > 0, got {cql_alpha}")
    return cql_alpha


class CQL(SAC):
    """``lagrange``: the gap that ``cql_alpha`` is tuned to; None keeps it fixed. In the first ``bc_updates`` the actor imitates the
    data while the critics learn, as in the authors' code."""

    WORTH_COMPILING = 1_000

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        cql_alpha: float,
        num_cql_samples: int,
        cql_temperature: float = 1.0,
        lagrange: float | None = None,
        backup_entropy: bool = False,
        bc_updates: int = 0,
        **options: Any,
    ) -> None:
        """Further options: see ``SAC``."""
        _checked(cql_alpha)
        if num_cql_samples < 1:
            raise ValueError(f"num_cql_samples must be >= 1, got {num_cql_samples}")
        super().__init__(model=model, learning_rate=learning_rate, backup_entropy=backup_entropy, **options)
        self._samples, self._temperature, self._lagrange = num_cql_samples, cql_temperature, lagrange
        self._bc_updates = bc_updates
        self._log_weight = nn.Parameter(torch.tensor(math.log(cql_alpha), device=self.critic_optimizer.flat.device))
        self.weight_optimizer = FlatAdam([self._log_weight], lr=learning_rate) if lagrange is not None else None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log_weight": self._log_weight.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self._log_weight.data.copy_(state.pop("log_weight"))
        super().load_state_dict(state)

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        actions = batch["actions"]
        (rows, dim), samples, device = actions.shape, self._samples, actions.device
        noise = torch.randn(2 * rows, samples + 1, dim, device=device)
        uniform = torch.rand(rows, samples, dim, device=device)
        drawn = {"noise": noise, "uniform": uniform}
        if self._bc_updates:
            drawn["imitate"] = torch.tensor(global_step < self._bc_updates, device=device)
        metrics, _ = self.learn({**batch, **drawn})
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        actions, rows, alpha = batch["actions"], len(batch["actions"]), self._log_alpha.detach().exp()
        both = torch.cat([obs, next_obs])
        if self._own_sampling:
            drawn, logps = self._sampled(both, batch["noise"])
        else:  # one pass of the actor for all samples of an observation
            mean, log_std = self.model.policy(both)
            drawn, logps = squash(mean[:, None], log_std[:, None], batch["noise"])  # (2B, N+1, A), (2B, N+1)
        new, logp = drawn[:rows, 0], logps[:rows, 0]
        target = self._target_values(batch, next_obs, drawn[rows:, 0].detach(), logps[rows:, 0].detach(), alpha)

        q_values, sampled, densities = self._opinions(obs, actions, drawn.detach(), logps.detach(), batch["uniform"])
        gaps = conservative_gap(sampled, densities, q_values, self._temperature)
        weight = self._log_weight.detach().exp().clamp(max=1e6)
        errors = critic_loss(q_values, target)
        surplus = gaps - (self._lagrange or 0.0)
        critics = errors + weight * surplus.sum()
        losses = self._actor_losses(obs, new, logp, alpha)
        if self._bc_updates:
            outputs = torch.cat(self.model.policy(obs) if self._own_sampling else (mean[:rows], log_std[:rows]), -1)
            likelihood, _ = SquashedGaussian(actions.shape[-1]).evaluate(outputs, actions)
            imitation = actor_loss(logp, likelihood, alpha)
            losses["actor_loss"] = torch.where(batch["imitate"], imitation, losses["actor_loss"])
        steps = [(self.critic_optimizer, critics), *self._actor_steps(losses)]
        if self.weight_optimizer is not None:
            steps.append((self.weight_optimizer, -self._log_weight.exp() * surplus.detach().mean()))
        descend(*steps)
        self._follow()
        return {
            **self._critic_metrics(critics, q_values, target),
            **self._actor_metrics(losses, logp, alpha),
            "cql_penalty": (weight * gaps.detach().sum()),
            "cql_gap": gaps.detach().mean(),
            "cql_weight": weight,
            "td_loss": errors.detach(),
        }

    def _sampled(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions (B, M, A) and log-densities (B, M) by a model's own ``sample_actions``, for noise (B, M, A)."""
        rows, many = noise.shape[:2]
        sampled = self.model.sample_actions(obs.repeat_interleave(many, 0), noise=noise.flatten(0, 1))
        return sampled.actions.view(rows, many, -1), sampled.logprobs.view(rows, many)

    def _opinions(
        self, obs: torch.Tensor, actions: torch.Tensor, drawn: torch.Tensor, logps: torch.Tensor, uniform: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values (C, B) of the data's actions, values (C, B, 3N) of N uniform actions, N of the policy's here and N of the
        policy's at the next observation, all judged here, and the log-densities (B, 3N) of those."""
        rows, samples, dim = len(actions), self._samples, actions.shape[-1]
        candidates = torch.cat([2 * uniform - 1, drawn[:rows, 1:], drawn[rows:, 1:], actions[:, None]], 1)
        flat = uniform.new_full((rows, samples), -dim * LOG_2)
        densities = torch.cat([flat, logps[:rows, 1:], logps[rows:, 1:]], 1)
        values = many_values(self.model, obs, candidates)
        return values[..., -1], values[..., :-1], densities


def many_values(model: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Values (C, B, M) of M actions for each observation, whatever the model."""
    return (model.q_values_of_many if isinstance(model, ActorAndCritics) else partial(many_q_values, model))(
        obs, actions
    )


class DiscreteCQL(DQN):
    """The sum over actions is exact."""

    def __init__(self, *, cql_alpha: float, **options: Any) -> None:
        """Further options: see ``ValueLearner``."""
        super().__init__(**options)
        self._cql_alpha = torch.tensor(_checked(cql_alpha), device=self.optimizer.flat.device)

    def _terms(self, batch: Tensors, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
        terms = dqn_loss({**batch, "q_values": q_values, "target_q_values": target})
        gap = (q_values.logsumexp(1) - of_actions(q_values, batch["actions"])).mean()
        penalty = self._cql_alpha * gap
        return {
            **terms,
            "loss": terms["loss"] + penalty,
            "td_loss": terms["loss"],
            "cql_penalty": penalty,
            "cql_gap": gap,
        }
