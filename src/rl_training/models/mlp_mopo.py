"""An ensemble of probabilistic networks that predicts what follows an observation and an action (Chua et al., 2018)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.base.devices import HostBuffers
from rl_training.models.mlp import EnsembleLinear, ensemble_mlp, mlp
from rl_training.models.overrides import overridden

__all__ = [
    "MLPMOPOEnsembleModel",
    "TerminationNetwork",
    "clamped_std",
    "disagreement",
    "sample_by_one_member",
    "sample_from_rows",
    "soft_clamp",
    "truncated_normal_",
]

TRUNCATION = 2.0  # deviations


def truncated_normal_(module: nn.Module) -> None:
    """Initialise every ensemble layer: normal weights of deviation 1 / (2 sqrt(fan-in)), truncated at two; no bias."""
    for layer in module.modules():
        if isinstance(layer, EnsembleLinear):
            std = 1 / (2 * math.sqrt(layer.weight.shape[1]))
            nn.init.trunc_normal_(layer.weight, std=std, a=-TRUNCATION * std, b=TRUNCATION * std)
            nn.init.zeros_(layer.bias)


def soft_clamp(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Between ``low`` and ``high``, with a gradient everywhere; near the middle it is ``x``."""
    x = high - F.softplus(high - x)
    return low + F.softplus(x - low)


def clamped_std(logvars: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """exp(soft_clamp(logvars) / 2), as the root of e^low + e^high sigmoid(logvars - high), which is faster."""
    return torch.sigmoid(logvars - high).mul_(high.exp()).add_(low.exp()).sqrt_()


class MLPMOPOEnsembleModel(nn.Module):
    """Every member maps (obs, action) to a Gaussian over (next_obs - obs, reward).

    Inputs are standardised by statistics of the data (``standardise``), and so are the network's outputs if
    ``standardise_targets`` is called; predictions are always in the data's own units. Bounds of the log-variances are
    learned. ``elites`` are the members that rollouts use.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("predict_distribution",)  # by ``draw``

    input_mean: torch.Tensor
    input_scale: torch.Tensor
    target_mean: torch.Tensor
    target_scale: torch.Tensor
    elites: torch.Tensor

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (200, 200, 200, 200),
        num_ensembles: int = 7,
        num_elites: int | None = None,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim, self.num_ensembles = obs_dim, action_dim, num_ensembles
        outputs = obs_dim + 1
        self.net = ensemble_mlp(num_ensembles, (obs_dim + action_dim, *hidden_sizes, 2 * outputs), nn.SiLU)
        truncated_normal_(self.net)
        self.max_logvar = nn.Parameter(torch.full((outputs,), 0.5))
        self.min_logvar = nn.Parameter(torch.full((outputs,), -10.0))
        self.register_buffer("input_mean", torch.zeros(obs_dim + action_dim))
        self.register_buffer("input_scale", torch.ones(obs_dim + action_dim))
        self.register_buffer("target_mean", torch.zeros(outputs))
        self.register_buffer("target_scale", torch.ones(outputs))
        self.register_buffer("elites", torch.arange(num_elites or num_ensembles))

    def standardise(self, inputs: torch.Tensor) -> None:
        """Take mean and deviation of the inputs (B, O + A) as the ones to standardise by."""
        std = inputs.double().std(0, correction=0)
        self.input_mean.copy_(inputs.double().mean(0))
        self.input_scale.copy_(torch.where(std < 1e-12, 1.0, 1 / std))

    def standardise_targets(self, targets: torch.Tensor) -> None:
        """Take mean and deviation of the targets (B, D + 1) as the network's units, so that a step of the optimizer
        means as much to a small quantity as to a large one."""
        std = targets.double().std(0, correction=0)
        self.target_mean.copy_(targets.double().mean(0))
        self.target_scale.copy_(torch.where(std < 1e-6, 1.0, std))

    def predict_distribution(
        self, obs: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and log-variances (E, B, D + 1) of (next_obs - obs, reward); inputs are (B, ...) or (E, B, ...).

        With ``members`` (M,), of those alone: M instead of E.
        """
        means, logvars = self.net(self._standardised(obs, actions), members).chunk(2, -1)
        logvars = soft_clamp(logvars, self.min_logvar, self.max_logvar) + 2 * self.target_scale.log()
        return means * self.target_scale + self.target_mean, logvars

    @torch.no_grad()
    def draw(self, obs: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None) -> torch.Tensor:
        """A sample (E, B, D + 1) of the Gaussians of ``predict_distribution``, faster: for plans and rollouts.

        A subclass's own ``predict_distribution`` gets rows (B, ...), which is all that it has to take.
        """
        if overridden(self):
            if obs.ndim == 2:
                each = self.num_ensembles if members is None else len(members)
                obs, actions = (x.expand(each, *x.shape) for x in (obs, actions))
            return sample_from_rows(self, obs, actions, members)
        means, logvars = self.net.infer(self._standardised(obs, actions), members).chunk(2, -1)
        drawn = torch.randn_like(means).mul_(clamped_std(logvars, self.min_logvar, self.max_logvar)).add_(means)
        return drawn.mul_(self.target_scale).add_(self.target_mean)

    def _standardised(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return (torch.cat([obs, actions], -1) - self.input_mean) * self.input_scale

    def sample_member(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Next observations (B, D) and rewards (B,), each row by one elite, drawn at random in equal parts; the
        others are not evaluated."""
        rows, members = len(obs), len(self.elites)
        share = -(-rows // members)
        order = torch.randperm(rows, device=obs.device)
        padded = order.repeat(-(-share * members // rows))[: share * members].view(members, share)
        drawn = self.draw(obs[padded], actions[padded], self.elites)
        result = torch.empty(rows, drawn.shape[-1], device=obs.device)
        result[order] = drawn.flatten(0, 1)[:rows]  # the rest filled the last member's share
        return obs + result[:, :-1], result[:, -1]

    def sample_transition(self, obs: torch.Tensor, actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """``next_obs`` (B, D) and ``rewards`` (B,) by a random elite each, and the members' ``disagreement`` (B,)."""
        means, logvars = self.predict_distribution(obs, actions)
        drawn = sample_by_one_member(means, logvars, self.elites)
        return {
            "next_obs": obs + drawn[:, :-1],
            "rewards": drawn[:, -1],
            "disagreement": disagreement(means),
        }

    def layers(self) -> list[EnsembleLinear]:
        return [layer for layer in self.net if isinstance(layer, EnsembleLinear)]

    def ensemble_parameters(self) -> Iterator[nn.Parameter]:
        return self.parameters()


def sample_from_rows(
    model: Any, obs: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
) -> torch.Tensor:
    """A sample (E, B, D + 1) by any model's ``predict_distribution``, of inputs (E, B, ...) that are each member's own;
    of ``members`` (M,) alone, M instead of E.

    The model gets rows (E * B, ...), and each member's predictions of its own are kept. If it does not return (E, E *
    B, D + 1), it gets (E, B, ...).
    """
    groups, rows, dim = obs.shape
    means, logvars = model.predict_distribution(*(x.reshape(groups * rows, x.shape[-1]) for x in (obs, actions)))
    if means.shape == (model.num_ensembles, groups * rows, dim + 1):
        who = torch.arange(groups, device=means.device) if members is None else members
        place = torch.arange(groups, device=means.device)
        means, logvars = (x.view(len(x), groups, rows, dim + 1)[who, place] for x in (means, logvars))
    else:
        seen = tuple(means.shape)
        means, logvars = model.predict_distribution(obs, actions)
        if means.shape != (groups, rows, dim + 1):
            raise ValueError(
                f"{type(model).__name__}.predict_distribution should give means of shape "
                f"(members, rows, obs_dim + 1) = {(model.num_ensembles, groups * rows, dim + 1)} "
                f"for {groups * rows} rows, but gave {seen}"
            )
    sample: torch.Tensor = means + (0.5 * logvars).exp() * torch.randn_like(means)
    return sample


def sample_by_one_member(means: torch.Tensor, logvars: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """A sample (B, D + 1) of the Gaussians (E, B, D + 1), each row by one of ``members``, drawn at random."""
    rows = torch.arange(means.shape[1], device=means.device)
    chosen = members[torch.randint(len(members), (len(rows),), device=means.device)]
    return means[chosen, rows] + (0.5 * logvars[chosen, rows]).exp() * torch.randn_like(means[0])


class TerminationNetwork(HostBuffers):
    """The learned termination classifier: (obs, action, next_obs) to the logit of a termination. Not to be used
    before it is ``fitted``."""

    ON_HOST = ("fitted",)

    input_mean: torch.Tensor
    input_scale: torch.Tensor
    prior: torch.Tensor
    fitted: torch.Tensor

    def __init__(self, *, obs_dim: int, action_dim: int, hidden_sizes: tuple[int, ...] = (64, 64)) -> None:
        super().__init__()
        inputs = 2 * obs_dim + action_dim
        self.body = mlp((inputs, *hidden_sizes, 1), nn.SiLU)
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_scale", torch.ones(inputs))
        self.register_buffer(
            "prior", torch.zeros(())
        )  # log-odds of a termination in the data; batches are half and half
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.body((inputs - self.input_mean) * self.input_scale)
        return logits.squeeze(-1)


def disagreement(means: torch.Tensor) -> torch.Tensor:
    """How far the members' predicted observations (E, B, D + 1) lie apart: the largest distance to their mean, (B,)."""
    states = means[..., :-1]
    distances: torch.Tensor = torch.linalg.vector_norm(states - states.mean(0), dim=-1)
    return distances.amax(0)
