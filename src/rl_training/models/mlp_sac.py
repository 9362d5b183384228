"""Actors and ensembles of critics for boxes of actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from rl_training.models.heads import HIGHEST, LOWEST, squash
from rl_training.models.mlp import EnsembleLinear, EnsembleMLP, ensemble_mlp, mlp
from rl_training.models.overrides import ordinary, overridden

NARROWEST = -5.0  # log-deviation of IQL's actor


class SampledActions(NamedTuple):
    actions: torch.Tensor  # (B, A) in [-1, 1]
    logprobs: torch.Tensor  # (B,)


class ActorAndCritics(nn.Module):
    """An actor with ``actor_outputs`` numbers per action dimension, and ``num_critics`` independent critics.

    Everything happens in the box [-1, 1]; the map to the environment's units is not the network's business.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("q_values",)  # by ``q_values_of_many``

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (256, 256),
        num_critics: int = 2,
        layer_norm: bool = False,
        actor_outputs: int,
    ) -> None:
        super().__init__()
        hidden_sizes = tuple(hidden_sizes)
        self.num_critics = num_critics
        self.actor = mlp((obs_dim, *hidden_sizes, actor_outputs * action_dim))
        self.critics = ensemble_mlp(num_critics, (obs_dim + action_dim, *hidden_sizes, 1), layer_norm=layer_norm)

    def q_values(
        self, obs: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """One (B,) tensor per critic, or per critic of ``members``."""
        return self.critics(torch.cat([obs, actions], -1), members).squeeze(-1).unbind(0)

    def q_values_of_many(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """M actions for each observation, (B, O) and (B, M, A) -> (C, B, M); what depends on the observation alone is
        computed once, unless the critics are others than those built here."""
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
        return x.view(critics, rows, many)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return self.actor.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return self.critics.parameters()


def many_q_values(model: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Values (C, B, M) of M actions for each observation, (B, O) and (B, M, A), by any model's ``q_values``."""
    rows, many = actions.shape[:2]
    return torch.stack(model.q_values(obs.repeat_interleave(many, 0), actions.flatten(0, 1))).view(-1, rows, many)


class MLPSACModel(ActorAndCritics):
    """A squashed-Gaussian actor."""

    REPLACED: ClassVar[tuple[str, ...]] = ("policy", "sample_actions", "q_values")  # the first two by numpy, in acting

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (256, 256),
        num_critics: int = 2,
        layer_norm: bool = False,
    ) -> None:
        sizes = {"obs_dim": obs_dim, "action_dim": action_dim, "num_critics": num_critics}
        super().__init__(**sizes, hidden_sizes=hidden_sizes, layer_norm=layer_norm, actor_outputs=2)

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

    def __init__(self, **sizes: int | tuple[int, ...]) -> None:
        super().__init__(**sizes, actor_outputs=1)  # type: ignore[arg-type]

    def actions(self, obs: torch.Tensor) -> torch.Tensor:
        """(B, A) in [-1, 1]."""
        return self.actor(obs).tanh()


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
        return self.log_std.clamp(NARROWEST, HIGHEST)

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.value(obs).squeeze(-1)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.actor.parameters()
        yield self.log_std

    def value_parameters(self) -> Iterator[nn.Parameter]:
        return self.value.parameters()
