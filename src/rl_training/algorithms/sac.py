"""Soft Actor-Critic (Haarnoja et al., 2018) with critics in any number and a fixed or tuned temperature.

As in the second paper: no value network, and the next action comes from the current actor. All gradients of an update are taken
before any step, so the actor is improved against the critics it was judged by; the paper's pseudocode steps the critics first.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, BoxLearner, Greedy, Tensors, UpdateResult, stream
from rl_training.algorithms.value_learner import td_target
from rl_training.models.heads import HIGHEST, LOWEST
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    device_of,
    numpy_layers,
    overridden,
    redefined,
    through,
    with_arrays,
)
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, Target, descend


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


def _torch_policy(model: Any, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return with_arrays(model, model.policy, obs)


def _numpy_policy(model: Any) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
    actor = None if overridden(model, "policy", "sample_actions") else numpy_layers(model.actor)
    if actor is None:
        return None

    def policy(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(obs) > MOST_ROWS:
            return _torch_policy(model, obs)
        mean, log_std = np.split(through(actor, obs), 2, axis=-1)
        return mean, np.clip(log_std, LOWEST, HIGHEST)

    return policy


class SAC(BoxLearner):
    """``model`` is an MLPSACModel or a module with its ``sample_actions``, ``q_values`` and two parameter lists.

    What is learned is ``sample_actions``, so a model's own is also what acts; that of an MLPSACModel is its ``policy``, squashed.
    """

    COMPILE_THRESHOLD = 5_000

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
        backup_entropy: bool = True,
        actor_learning_rate: float | None = None,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        """``backup_entropy``: whether targets count the next action's entropy."""
        device = device_of(model)
        self.target_model: Any = copy.deepcopy(model)
        self.model, self.normalizer = model, normalizer
        self.actor_optimizer = FlatAdam(model.actor_parameters(), lr=actor_learning_rate or learning_rate)
        self.critic_optimizer = FlatAdam(model.critic_parameters(), lr=learning_rate)
        self._tuned = alpha == "auto"
        self._log_alpha = nn.Parameter(
            torch.tensor(math.log(initial_alpha if alpha == "auto" else max(alpha, 1e-30)), device=device)
        )
        self.alpha_optimizer = FlatAdam([self._log_alpha], lr=learning_rate) if self._tuned else None
        self._target = Target(model, self.target_model, lambda model: model.critic_parameters())
        self._gamma, self._tau = torch.tensor(gamma, device=device), tau
        self._target_entropy, self._backup_entropy = target_entropy, backup_entropy
        self._own_sampling = not isinstance(model, MLPSACModel) or redefined(model, "sample_actions")
        self._action_dim: int | None = None
        self._policy = HostFunction(model, _numpy_policy, _torch_policy)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        if not self._own_sampling:
            return super()._act(obs, carry, deterministic, rng)
        model = self.model
        if deterministic or self._action_dim is None:
            best = with_arrays(model, lambda x: model.sample_actions(x, deterministic=True).actions, obs)
            self._action_dim = best.shape[-1]
            if deterministic:
                return Acting(best)
        noise = stream(rng).standard_normal((len(obs), self._action_dim), dtype=np.float32)
        return Acting(with_arrays(model, lambda x, noise: model.sample_actions(x, noise=noise).actions, obs, noise))

    def policy_module(self) -> nn.Module:
        if self._own_sampling:
            return Greedy(self.model, lambda model, obs: model.sample_actions(obs, deterministic=True).actions)
        if overridden(self.model, "policy"):
            return Greedy(self.model, lambda model, obs: model.policy(obs)[0].tanh())
        return Greedy(self.model.actor, lambda actor, obs: actor(obs).chunk(2, -1)[0].tanh())

    @property
    def alpha(self) -> float:
        return float(self._log_alpha.detach().exp())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log_alpha": self._log_alpha.detach()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self._log_alpha.data.copy_(state.pop("log_alpha"))
        super().load_state_dict(state)

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        actions = batch["actions"]
        noise = torch.randn(2 * len(actions), *actions.shape[1:], device=actions.device)
        metrics, _ = self.learn({**batch, "noise": noise})
        self._target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        obs, next_obs = self._observations(batch)
        alpha = self._log_alpha.detach().exp()
        new, next_new, logp, next_logp = self._two_policies(obs, next_obs, batch["noise"])
        target = self._target_values(batch, next_obs, next_new, next_logp, alpha)
        q_values = torch.stack(self.model.q_values(obs, batch["actions"]))
        critics = critic_loss(q_values, target)
        losses = self._actor_losses(obs, new, logp, alpha)
        descend((self.critic_optimizer, critics), *self._actor_steps(losses))
        self._follow()
        return {**self._critic_metrics(critics, q_values, target), **self._actor_metrics(losses, logp, alpha)}

    @torch.no_grad()
    def _target_values(
        self, batch: Tensors, next_obs: torch.Tensor, actions: torch.Tensor, logp: torch.Tensor, alpha: torch.Tensor
    ) -> torch.Tensor:
        """What the critics regress on (B,): by the smallest target critic's value of the next action."""
        next_q = torch.stack(self.target_model.q_values(next_obs, actions)).amin(0)
        return td_target(batch, next_q - alpha * logp if self._backup_entropy else next_q, self._gamma)

    def _actor_losses(self, obs: torch.Tensor, new: torch.Tensor, logp: torch.Tensor, alpha: torch.Tensor) -> Tensors:
        """Of the actor at fresh actions and, if it is tuned, of the temperature."""
        losses = {"actor_loss": actor_loss(logp, self._worth(torch.stack(self.model.q_values(obs, new))), alpha)}
        if self._tuned:
            goal = self._goal(new.shape[-1]) if self._target_entropy is None else self._target_entropy
            losses["alpha_loss"] = temperature_loss(self._log_alpha, logp, goal)
        return losses

    def _goal(self, action_dim: int) -> float:
        """The entropy that a tuned temperature aims for unless another is asked for."""
        return -float(action_dim)

    def _worth(self, q_values: torch.Tensor) -> torch.Tensor:
        """Of the critics' opinions (C, B), the one that the actor heeds."""
        return q_values.amin(0)

    def _actor_steps(self, losses: Tensors) -> list[tuple[FlatAdam, torch.Tensor]]:
        steps = [(self.actor_optimizer, losses["actor_loss"])]
        return steps if self.alpha_optimizer is None else [*steps, (self.alpha_optimizer, losses["alpha_loss"])]

    @torch.no_grad()
    def _follow(self) -> None:
        self._target.flat.lerp_(self.critic_optimizer.flat, self._tau)

    def _critic_metrics(self, loss: torch.Tensor, q_values: torch.Tensor, target: torch.Tensor) -> Tensors:
        return {
            "critic_loss": loss.detach(),
            "q_value_mean": q_values.detach().mean(),
            "target_q_mean": target.mean(),
        }

    def _actor_metrics(self, losses: Tensors, logp: torch.Tensor, alpha: torch.Tensor) -> Tensors:
        logp = logp.detach()
        entropies = {"entropy_term": (alpha * logp).mean(), "entropy": -logp.mean(), "alpha": alpha}
        return {**{name: loss.detach() for name, loss in losses.items()}, **entropies}

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
