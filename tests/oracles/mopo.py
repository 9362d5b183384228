"""Rollouts of MBPO (Janner et al., 2019) and MOPO (Yu et al., 2020) once more, row by row.

Torch's random numbers, in the learner's order and shape: noise (B, A) of the policy; then, for MBPO, the order in which rows are dealt out
to elites and noise (elites, rows of each, entries), and for MOPO the elite of every row and noise (B, entries).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from oracles.ensemble import EnsembleReference


def squashed_actions(actor: nn.Module, obs: torch.Tensor) -> torch.Tensor:
    mean, log_std = actor(obs).chunk(2, -1)
    return (mean + log_std.clamp(-20, 2).exp() * torch.randn(len(obs), mean.shape[1])).tanh()


def by_dealt_elites(ensemble: EnsembleReference, obs: torch.Tensor, actions: torch.Tensor) -> list[torch.Tensor]:
    """MBPO: rows in random order are dealt out to the elites in equal parts, of which the last may be smaller."""
    rows, elites = len(obs), ensemble.elites
    share = -(-rows // len(elites))
    order = torch.randperm(rows).tolist()
    noise = torch.randn(len(elites), share, obs.shape[1] + 1)
    drawn: list[Any] = [None] * rows
    for i, row in enumerate(order):
        gaussian = ensemble.predict(elites[i // share], obs[row], actions[row])
        drawn[row] = gaussian.mean + gaussian.stddev * noise[i // share, i % share]
    return drawn


def by_random_elites(ensemble: EnsembleReference, obs: torch.Tensor, actions: torch.Tensor) -> list[torch.Tensor]:
    """MOPO: every row by an elite of its own choice."""
    chosen = torch.randint(len(ensemble.elites), (len(obs),)).tolist()
    noise = torch.randn(len(obs), obs.shape[1] + 1)
    gaussians = [ensemble.predict(ensemble.elites[k], obs[i], actions[i]) for i, k in enumerate(chosen)]
    return [gaussian.mean + gaussian.stddev * noise[i] for i, gaussian in enumerate(gaussians)]


def uncertainty(ensemble: EnsembleReference, obs: torch.Tensor, action: torch.Tensor, kind: str) -> float:
    """Of one transition, by all members, elites or not."""
    gaussians = [ensemble.predict(k, obs, action) for k in range(len(ensemble.members))]
    means, stds = [g.mean.numpy() for g in gaussians], [g.stddev.numpy() for g in gaussians]
    if kind == "max_std":  # of observation and reward
        return max(float(np.sqrt((std**2).sum())) for std in stds)
    if kind == "max_deviation":  # of the observation
        centre = np.mean(means, 0)
        return max(float(np.sqrt(((mean - centre)[:-1] ** 2).sum())) for mean in means)
    mixture = np.mean([std**2 + mean**2 for std, mean in zip(stds, means)], 0) - np.mean(means, 0) ** 2
    return float(np.sqrt(mixture.sum()))


@torch.no_grad()
def rollouts(
    ensemble: EnsembleReference, actor: nn.Module, starts: torch.Tensor, horizon: int, terminated: Any,
    penalty: tuple[str, float] | None,
) -> list[dict[str, np.ndarray]]:  # fmt: skip
    """A transition at a time of every rollout that goes on: (obs, action, reward, next_obs, done), by step. Without a penalty: MBPO's."""
    obs, steps = starts, []
    for _ in range(horizon):
        actions = squashed_actions(actor, obs)
        draw = by_dealt_elites if penalty is None else by_random_elites
        rows: list[dict[str, Any]] = []
        for x, a, drawn in zip(obs, actions, draw(ensemble, obs, actions)):
            reward = float(drawn[-1])
            if penalty is not None:
                reward -= penalty[1] * uncertainty(ensemble, x, a, penalty[0])
            rows.append(
                {"obs": x.numpy(), "actions": a.numpy(), "rewards": reward, "next_obs": (x + drawn[:-1]).numpy()}
            )
            done = (
                terminated is not None and terminated(*(rows[-1][n][None] for n in ("obs", "actions", "next_obs")))[0]
            )
            rows[-1]["dones"] = float(done)
        steps.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})
        going_on = [row["next_obs"] for row in rows if not row["dones"]]
        if not going_on:
            break
        obs = torch.from_numpy(np.stack(going_on))
    return steps
