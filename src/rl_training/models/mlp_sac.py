"""Actors and ensembles of critics for boxes of actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from rl_training.models.heads import HIGHEST, LOWEST, squash
from rl_training.models.mlp import EnsembleLinear, EnsembleMLP, ensemble_mlp, mlp
from rl_training.models.overrides import ordinary, overridden

__all__ = [
    "NARROWEST",
    "ActorAndCritics",
    "MLPIQLModel",
    "MLPSACModel",
    "MLPTD3Model",
    "SampledActions",
    "many_q_values",
    "many_values",
    "sample_many",
]

NARROWEST = -5.0  # log-deviation of IQL's actor


class SampledActions(NamedTuple):
    """Actions of a stochastic policy, differentiable, and their log-densities."""

    actions: torch.Tensor  # (B, A) in [-1, 1]
    logprobs: torch.Tensor  # (B,)


class ActorAndCritics(nn.Module):
    """An actor with ``ACTOR_OUTPUTS`` numbers for each dimension of the action, and ``num_critics`` independent
    critics.

    Actions lie in the box [-1, 1]; the map to the environment's units is at the environment.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("q_values",)  # by ``q_values_of_many``
    ACTOR_OUTPUTS: ClassVar[int] = 1  # numbers for each dimension of the action

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (256, 256),
        num_critics: int = 2,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        hidden_sizes = tuple(hidden_sizes)
        self.num_critics = num_critics
        self.actor = mlp((obs_dim, *hidden_sizes, self.ACTOR_OUTPUTS * action_dim))
        self.critics = ensemble_mlp(num_critics, (obs_dim + action_dim, *hidden_sizes, 1), layer_norm=layer_norm)

    def q_values(
        self, obs: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """One (B,) tensor per critic, or per critic of ``members``."""
        values: torch.Tensor = self.critics(torch.cat([obs, actions], -1), members)
        return values.squeeze(-1).unbind(0)

    def q_values_of_many(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """M actions for each observation, (B, O) and (B, M, A) -> (C, B, M); what depends on the observation alone is
        computed once, unless the critics were replaced by others than those built here."""
        rows, many = actions.shape[:2]
        first: Any = self.critics[0]
        ours = ordinary(self.critics, EnsembleMLP) and ordinary(first, EnsembleLinear)
        if overridden(self, "q_values") or not ours:
            return many_q_values(self, obs, actions)
        of_obs, of_actions = first.weight.split([obs.shape[-1], actions.shape[-1]], 1)
        critics = len(first.weight)
        shared = torch.baddbmm(first.bias, obs.expand(critics, *obs.shape), of_obs)
        own = actions.reshape(1, rows * many, -1).expand(critics, -1, -1) @ of_actions
        x = (own.view(critics, rows, many, -1) + shared[:, :, None]).flatten(1, 2)
        for layer in list(self.critics)[1:]:
            x = layer(x)
        values: torch.Tensor = x.view(critics, rows, many)
        return values

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return self.actor.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return self.critics.parameters()


def many_q_values(model: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Values (C, B, M) of M actions for each observation, (B, O) and (B, M, A), by any model's ``q_values``."""
    rows, many = actions.shape[:2]
    return torch.stack(model.q_values(obs.repeat_interleave(many, 0), actions.flatten(0, 1))).view(-1, rows, many)


def many_values(model: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """``many_q_values``, by the faster ``q_values_of_many`` where a model has it."""
    if isinstance(model, ActorAndCritics):
        return model.q_values_of_many(obs, actions)
    return many_q_values(model, obs, actions)


def sample_many(
    model: Any, obs: torch.Tensor, noise: torch.Tensor, gaussian: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions (B, M, A) and log-densities (B, M) for noise (B, M, A): of the squashed ``gaussian``, mean and
    log-deviation (B, A) each, or of the model's own ``sample_actions`` where that is None."""
    if gaussian is not None:
        mean, log_std = gaussian
        return squash(mean[:, None], log_std[:, None], noise)
    rows, many = noise.shape[:2]
    sampled = model.sample_actions(obs.repeat_interleave(many, 0), noise=noise.flatten(0, 1))
    return sampled.actions.view(rows, many, -1), sampled.logprobs.view(rows, many)


class MLPSACModel(ActorAndCritics):
    """A squashed-Gaussian actor."""

    REPLACED: ClassVar[tuple[str, ...]] = ("policy", "sample_actions", "q_values")  # the first two by numpy, in acting

    ACTOR_OUTPUTS = 2  # mean and log-deviation

    def policy(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log-deviation of the Gaussian before squashing, each (B, A)."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        return mean, log_std.clamp(LOWEST, HIGHEST)

    def sample_actions(
        self, obs: torch.Tensor, *, deterministic: bool = False, noise: torch.Tensor | None = None
    ) -> SampledActions:
        """Reparameterised actions; ``noise`` (B, A) is standard normal and drawn here unless given."""
        mean, log_std = self.policy(obs)
        if noise is None:
            noise = torch.zeros_like(mean) if deterministic else torch.randn_like(mean)
        return SampledActions(*squash(mean, log_std, noise))


class MLPTD3Model(ActorAndCritics):
    """A deterministic actor."""

    REPLACED: ClassVar[tuple[str, ...]] = ("actions", "q_values")  # the first by numpy, in acting

    def actions(self, obs: torch.Tensor) -> torch.Tensor:
        """(B, A) in [-1, 1]."""
        outputs: torch.Tensor = self.actor(obs)
        return outputs.tanh()


class MLPIQLModel(MLPTD3Model):
    """A Gaussian with a bounded mean and a deviation that does not depend on the observation, and a value network."""

    # the first three by numpy, in acting
    REPLACED: ClassVar[tuple[str, ...]] = ("policy", "actions", "policy_log_std", "q_values")

    def __init__(self, *, obs_dim: int, action_dim: int, hidden_sizes: tuple[int, ...] = (256, 256)) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim, hidden_sizes=hidden_sizes)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.value = mlp((obs_dim, *hidden_sizes, 1))

    def policy(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (B, A) and log-deviation (A,)."""
        return self.actions(obs), self.policy_log_std()

    def policy_log_std(self) -> torch.Tensor:
        """The log-deviation (A,), within its bounds."""
        return self.log_std.clamp(NARROWEST, HIGHEST)

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """State values (B,)."""
        values: torch.Tensor = self.value(obs)
        return values.squeeze(-1)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.actor.parameters()
        yield self.log_std

    def value_parameters(self) -> Iterator[nn.Parameter]:
        return self.value.parameters()
