"""Conservative Q-learning (Kumar et al., 2020): SAC that pushes down the values of actions outside the data.

The variant is CQL(H). The soft maximum over actions is estimated from uniform and policy actions, each weighted by its
density. Where actions are choices, it is exact: ``discrete_cql``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.algorithms.actor_critic import LogCoefficient, critic_metrics
from rl_training.algorithms.base import Tensors, UpdateResult
from rl_training.algorithms.discrete_cql import DiscreteCQL, check_cql_alpha
from rl_training.algorithms.sac import SAC, actor_loss, actor_metrics, critic_loss, sac_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.models.heads import LOG_2, SquashedGaussian
from rl_training.models.mlp_sac import many_values, sample_many
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["CQL", "DiscreteCQL", "candidate_actions", "conservative_gap", "cql_loss", "many_values"]


def conservative_gap(
    q_values: torch.Tensor, log_densities: torch.Tensor, data_q_values: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """How far the soft maximum over actions lies above the data's actions, for each critic: (C,).

    ``q_values`` (C, B, M) of M sampled actions, ``log_densities`` (B, M) of those, ``data_q_values`` (C, B).
    """
    soft_maximum = temperature * (q_values / temperature - log_densities).logsumexp(-1)
    return (soft_maximum - data_q_values).mean(1)


def candidate_actions(uniform: torch.Tensor, drawn: torch.Tensor, logprobs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Actions (B, 3N, A): N uniform, N of the policy, N of the policy at the next observation; log-densities (B, 3N).

    ``uniform`` (B, N, A) lies in [0, 1]; ``drawn`` (2B, N, A) and ``logprobs`` (2B, N) are of the policy at both
    observations.
    """
    constant = uniform.new_full(uniform.shape[:2], -uniform.shape[-1] * LOG_2)
    return torch.cat([2 * uniform - 1, *drawn.chunk(2)], 1), torch.cat([constant, *logprobs.chunk(2)], 1)


def cql_loss(batch: Mapping[str, Any]) -> Tensors:
    """SAC's losses, the critics' with ``cql_alpha`` times (``cql_penalty_q1`` + ``cql_penalty_q2``)."""
    terms = sac_loss(dict(batch))
    penalty = torch.as_tensor(batch["cql_alpha"] * (batch["cql_penalty_q1"] + batch["cql_penalty_q2"])).mean()
    return {**terms, "critic_loss": terms["critic_loss"] + penalty, "cql_penalty": penalty}


class CQL(SAC):
    """SAC whose critics' loss has the conservative gap, weighted by ``cql_alpha``.

    ``lagrange``: the gap that the weight is tuned to; None keeps it fixed. In the first ``bc_updates`` the actor
    imitates the data while the critics learn, as in the authors' code.
    """

    COMPILE_THRESHOLD = 1_000

    def __init__(
        self,
        *,
        learning_rate: float,
        cql_alpha: float,
        num_cql_samples: int,
        cql_temperature: float = 1.0,
        lagrange: float | None = None,
        bc_updates: int = 0,
        backup_entropy: bool = False,
        **options: Any,
    ) -> None:
        """Further options: see ``SAC``."""
        check_cql_alpha(cql_alpha)
        if num_cql_samples < 1:
            raise ValueError(f"num_cql_samples must be >= 1, got {num_cql_samples}")
        super().__init__(learning_rate=learning_rate, backup_entropy=backup_entropy, **options)
        self._samples, self._temperature, self._lagrange = num_cql_samples, cql_temperature, lagrange
        self._bc_updates = bc_updates
        self.log_weight = LogCoefficient(cql_alpha, self._device)
        self.weight_optimizer = FlatAdam([self.log_weight.value], lr=learning_rate) if lagrange is not None else None

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        actions, samples = batch["actions"], self._samples
        (rows, dim), device = actions.shape, actions.device
        noise = torch.randn(2 * rows, samples + 1, dim, device=device)
        drawn = {"noise": noise, "uniform": torch.rand(rows, samples, dim, device=device)}
        if self._bc_updates:
            drawn["imitate"] = torch.full((), global_step < self._bc_updates, device=device)
        metrics, _ = self.learn({**batch, **drawn})
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        data_actions, (rows, dim) = batch["actions"], batch["actions"].shape
        alpha, weight = self.log_alpha.coefficient(), self.log_weight.coefficient().clamp(max=1e6)

        # N + 1 actions at both observations, one pass of the actor: (2B, N + 1, A) and (2B, N + 1); the first is SAC's
        both = torch.cat([obs, next_obs])
        gaussian = None if self._policy.own_sampling else self.model.policy(both)
        drawn, logps = sample_many(self.model, both, batch["noise"], gaussian)
        actions, logp, next_actions, next_logp = drawn[:rows, 0], logps[:rows, 0], drawn[rows:, 0], logps[rows:, 0]

        with torch.no_grad():  # r + γ min Q'
            next_q = torch.stack(self.target_model.q_values(next_obs, next_actions)).amin(0)
            target = td_target(batch, next_q - alpha * next_logp if self._backup_entropy else next_q, self._gamma)

        candidates, densities = candidate_actions(batch["uniform"], drawn[:, 1:].detach(), logps[:, 1:].detach())
        values = many_values(self.model, obs, torch.cat([candidates, data_actions[:, None]], 1))
        q_values = values[..., -1]
        gaps = conservative_gap(values[..., :-1], densities, q_values, self._temperature)
        errors = critic_loss(q_values, target)
        surplus = gaps - (self._lagrange or 0.0)
        critics = errors + weight * surplus.sum()  # the Bellman error, and the gap beyond the one that is allowed

        actor = actor_loss(logp, torch.stack(self.model.q_values(obs, actions)).amin(0), alpha)
        if self._bc_updates:
            mean, log_std = self.model.policy(obs) if gaussian is None else (x[:rows] for x in gaussian)
            likelihood, _ = SquashedGaussian(dim).evaluate(torch.cat([mean, log_std], -1), data_actions)
            actor = torch.where(batch["imitate"], actor_loss(logp, likelihood, alpha), actor)

        temperature = self._temperature_steps(logp, dim)
        steps = [(self.critic_optimizer, critics), (self.actor_optimizer, actor), *temperature]
        if self.weight_optimizer is not None:
            steps.append((self.weight_optimizer, -self.log_weight.value.exp() * surplus.detach().mean()))
        descend(*steps)
        self._move_target()

        gap = gaps.detach()
        penalty = {"cql_penalty": weight * gap.sum(), "cql_gap": gap.mean(), "cql_weight": weight}
        metrics = {**critic_metrics(critics, q_values, target), **actor_metrics(actor, logp, alpha, temperature)}
        return {**metrics, **penalty, "td_loss": errors.detach()}
