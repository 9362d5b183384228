"""Soft Actor-Critic (Haarnoja et al., 2018) with twin critics and a fixed or tuned temperature.

As in the second paper: no value network, and the next action comes from the current actor. All gradients of an update are taken
before any step, so the actor is improved against the critics it was judged by; the paper's pseudocode steps the critics first.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Learner, Tensors, UpdateResult, stream
from rl_training.algorithms.dqn import td_target
from rl_training.algorithms.normalizer import ObservationNormalizer
from rl_training.algorithms.optim import FlatAdam, Target, descend
from rl_training.models.host import device_of, host_forward, torch_forward
from rl_training.models.mlp_sac import LOG_STD_MAX, LOG_STD_MIN, MLPSACModel


def critic_loss(q_values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Squared error of every critic (C, B) against one target (B,): mean over the batch, sum over critics."""
    return (q_values - target).square().mean(1).sum()


def actor_loss(logprobs: torch.Tensor, q_values: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Prefer actions of high value and high entropy; ``q_values`` (B,) is already reduced over critics."""
    return (alpha * logprobs - q_values).mean()


def temperature_loss(log_alpha: torch.Tensor, logprobs: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """Its descent raises the temperature while the policy's entropy is below the target."""
    return -(log_alpha * (logprobs.detach() + target_entropy)).mean()


def sac_loss(batch: Tensors) -> Tensors:
    """Both losses from precomputed values: q1_values q2_values target_q_values sampled_logprobs sampled_q1 sampled_q2 alpha."""
    q_values = torch.stack([batch["q1_values"], batch["q2_values"]])
    sampled = torch.minimum(batch["sampled_q1"], batch["sampled_q2"])
    return {
        "critic_loss": critic_loss(q_values, batch["target_q_values"]),
        "actor_loss": actor_loss(batch["sampled_logprobs"], sampled, torch.as_tensor(batch["alpha"])),
        "target_q_mean": batch["target_q_values"].mean(),
        "entropy_term": (batch["alpha"] * batch["sampled_logprobs"]).mean(),
    }


class SAC(Learner):
    """``model`` is an MLPSACModel or a module with its ``policy``, ``q_values`` and two parameter lists."""

    WORTH_COMPILING = 5_000

    def __init__(
        self,
        *,
        model: Any,
        learning_rate: float,
        gamma: float,
        alpha: float | Literal["auto"],
        tau: float,
        target_entropy: float | None = None,
        initial_alpha: float = 1.0,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        device = device_of(model)
        self.target_model: Any = copy.deepcopy(model)
        self.model, self.normalizer = model, normalizer
        self.actor_optimizer = FlatAdam(model.actor_parameters(), lr=learning_rate)
        self.critic_optimizer = FlatAdam(model.critic_parameters(), lr=learning_rate)
        self._tuned = alpha == "auto"
        self._log_alpha = nn.Parameter(
            torch.tensor(math.log(initial_alpha if alpha == "auto" else max(alpha, 1e-30)), device=device)
        )
        self.alpha_optimizer = FlatAdam([self._log_alpha], lr=learning_rate) if self._tuned else None
        self._target = Target(model, self.target_model, lambda model: model.critic_parameters())
        self._gamma, self._tau = torch.tensor(gamma, device=device), tau
        self._target_entropy = target_entropy
        self._actor = self._host_policy(device)

    def _host_policy(self, device: torch.device) -> Any:
        """Observations to (mean, log-deviation), on arrays."""
        if getattr(type(self.model), "policy", None) is not MLPSACModel.policy:  # a custom one
            return torch_forward(self.model.policy, device)
        actor = host_forward(self.model.actor)

        def forward(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, log_std = np.split(actor(obs), 2, axis=-1)
            return mean, np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

        return forward

    @property
    def alpha(self) -> float:
        return float(self._log_alpha.detach().exp())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log_alpha": self._log_alpha.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self._log_alpha.data.copy_(state.pop("log_alpha"))
        super().load_state_dict(state)

    def act(
        self,
        obs: np.ndarray,
        *,
        carry: Any = None,
        deterministic: bool = False,
        step: int = 0,
        rng: np.random.Generator | None = None,
    ) -> Acting:
        if self.normalizer is not None:
            obs = self.normalizer.host(obs)
        mean, log_std = self._actor(obs)
        if not deterministic:
            mean = mean + np.exp(log_std) * stream(rng).standard_normal(mean.shape, dtype=np.float32)
        return Acting(np.tanh(mean))

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        actions = batch["actions"]
        noise = torch.randn(2 * len(actions), *actions.shape[1:], device=actions.device)
        metrics, _ = self.learn({**batch, "noise": noise})
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs, actions = batch["obs"], batch["next_obs"], batch["actions"]
        if self.normalizer is not None:
            obs, next_obs = self.normalizer(obs), self.normalizer(next_obs)
        alpha = self._log_alpha.detach().exp()
        new, next_new, logp, next_logp = self._two_policies(obs, next_obs, batch["noise"])
        with torch.no_grad():
            next_q = torch.stack(self.target_model.q_values(next_obs, next_new)).amin(0)
            target = td_target(batch, next_q - alpha * next_logp, self._gamma)

        q_values = torch.stack(self.model.q_values(obs, actions))
        losses = {
            "critic_loss": critic_loss(q_values, target),
            "actor_loss": actor_loss(logp, torch.stack(self.model.q_values(obs, new)).amin(0), alpha),
        }
        steps = [(self.critic_optimizer, losses["critic_loss"]), (self.actor_optimizer, losses["actor_loss"])]
        if self.alpha_optimizer is not None:
            entropy_goal = -float(actions.shape[-1]) if self._target_entropy is None else self._target_entropy
            losses["alpha_loss"] = temperature_loss(self._log_alpha, logp, entropy_goal)
            steps.append((self.alpha_optimizer, losses["alpha_loss"]))
        descend(*steps)
        with torch.no_grad():
            self._target.flat.lerp_(self.critic_optimizer.flat, self._tau)
        return {
            **{name: loss.detach() for name, loss in losses.items()},
            "q_value_mean": q_values.detach().mean(),
            "target_q_mean": target.mean(),
            "entropy_term": (alpha * logp.detach()).mean(),
            "entropy": -logp.detach().mean(),
            "alpha": alpha,
        }

    def _two_policies(self, obs: torch.Tensor, next_obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Fresh actions at both observations from one pass of the actor."""
        sampled = self.model.sample_actions(torch.cat([obs, next_obs]), noise=noise)
        size = len(obs)
        return (
            sampled.actions[:size],
            sampled.actions[size:].detach(),
            sampled.logprobs[:size],
            sampled.logprobs[size:].detach(),
        )
