"""MOPO (Yu et al., 2020): SAC on rollouts of a learned model, with rewards lowered by the model's uncertainty."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Learner, Tensors, UpdateResult
from rl_training.algorithms.dynamics import EnsembleDynamics, gaussian_ensemble_loss
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.terminations import LearnedTerminations, Terminations, deciding
from rl_training.models.mlp_mopo import disagreement, sample_by_one_member
from rl_training.optim.flat import FlatOptimizer

__all__ = ["MOPO", "Penalty", "mopo_model_loss", "uncertainty"]

Penalty = Literal["max_std", "max_deviation", "ensemble_std"]


def mopo_model_loss(batch: Tensors) -> Tensors:
    """``gaussian_ensemble_loss`` under MOPO's name."""
    terms = gaussian_ensemble_loss(batch)
    return {"mopo_model_loss": terms.pop("model_loss"), **terms}


def uncertainty(means: torch.Tensor, logvars: torch.Tensor, kind: Penalty = "max_std") -> torch.Tensor:
    """How unsure the ensemble is of each row, (B,), from its Gaussians (E, B, D + 1).

    max_std (the paper's): the largest norm of a member's deviations, reward included. max_deviation: the largest
    distance of a member's mean observation from the mean of all. ensemble_std: the norm of the spread of the mixture.
    """
    if kind == "max_std":
        norms: torch.Tensor = torch.linalg.vector_norm((0.5 * logvars).exp(), dim=-1)
        return norms.amax(0)
    if kind == "max_deviation":
        return disagreement(means)
    spread: torch.Tensor = torch.linalg.vector_norm((means.var(0, correction=0) + logvars.exp().mean(0)).sqrt(), dim=-1)
    return spread


class MOPO(Learner):
    """A policy (SAC) and the ensemble of dynamics models whose rollouts it learns from."""

    NAME = "mopo"

    def __init__(
        self,
        *,
        policy_model: Any,
        dynamics_model: Any,
        policy_learning_rate: float,
        model_learning_rate: float,
        gamma: float,
        alpha: float | Literal["auto"],
        tau: float,
        penalty_coef: float = 1.0,
        penalty: Penalty = "max_std",
        target_entropy: float | None = None,
        terminated: Terminations | LearnedTerminations | None = None,
    ) -> None:
        """``terminated``: where rollouts terminate, a function of rows with actions in [-1, 1]."""
        self.terminations = terminated
        self.policy = SAC(
            model=policy_model, learning_rate=policy_learning_rate, gamma=gamma, alpha=alpha, tau=tau,
            target_entropy=target_entropy,
        )  # fmt: skip
        self.dynamics = EnsembleDynamics(model=dynamics_model, learning_rate=model_learning_rate, name=self.NAME)
        self._penalty_coef, self._penalty = penalty_coef, penalty

    COMPILE_THRESHOLD = SAC.COMPILE_THRESHOLD

    def optimizers(self) -> list[FlatOptimizer]:
        """The policy's: schedules do not reach the model."""
        return self.policy.optimizers()

    def use_compiled(self, *, safe: bool = False) -> None:
        self.policy.use_compiled(safe=safe)
        self.dynamics.use_compiled(safe=safe)

    @property
    def compiled(self) -> bool:
        return self.policy.compiled and self.dynamics.compiled

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        return self.policy.act(obs, deterministic=deterministic, rng=rng)

    def policy_module(self) -> nn.Module:
        return self.policy.policy_module()

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One update of the policy, from real and imagined transitions alike."""
        return self.policy.update(batch, global_step=global_step)

    def update_model(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One gradient step of the model, on real transitions."""
        return self.dynamics.update(batch, global_step=global_step)

    @torch.no_grad()
    def imagined_actions(self, obs: torch.Tensor) -> torch.Tensor:
        """Actions of the stochastic policy, for rollouts."""
        actions: torch.Tensor = self.policy.model.sample_actions(obs).actions
        return actions

    @torch.no_grad()
    def sample_synthetic_transition(self, obs: torch.Tensor, actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """``next_obs``, penalised ``rewards``, ``raw_rewards`` and ``disagreement``, each row by one random elite."""
        model = self.dynamics.model
        means, logvars = model.predict_distribution(obs, actions)
        elites = getattr(model, "elites", torch.arange(len(means), device=obs.device))
        drawn = sample_by_one_member(means, logvars, elites)
        raw = drawn[:, -1]
        penalty = uncertainty(means, logvars, self._penalty)
        return {
            "next_obs": obs + drawn[:, :-1],
            "rewards": raw - self._penalty_coef * penalty if self._penalty_coef else raw,
            "raw_rewards": raw,
            "disagreement": disagreement(means),
        }

    def terminated(self, obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        """Which imagined transitions terminate their rollout."""
        function = deciding(self.terminations)
        return np.zeros(len(obs), bool) if function is None else function(obs, actions, next_obs)

    def imagined_step(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Next observations and the rewards to learn from, for rollouts."""
        drawn = self.sample_synthetic_transition(obs, actions)
        return drawn["next_obs"], drawn["rewards"]
