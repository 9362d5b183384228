"""PETS (Chua et al., 2018) once more: the value of a plan, particle by particle, and acting by it.

Torch's random numbers, in the learner's order and shape: with TS1, at each step the order in which particles change members; then
the noise (members, plans x particles of a member, entries) of the predictions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from oracles.ensemble import EnsembleReference


class PETSReference:
    """Plans through the reference of the ensemble; ``search(value, low, high, mean)`` is one of ``oracles.planning``."""

    def __init__(
        self, ensemble: EnsembleReference, search: Callable[..., torch.Tensor], *, horizon: int, particles: int, propagation: str,
        rewards: Any = None, terminated: Any = None,
    ) -> None:  # fmt: skip
        self.ensemble, self.search, self.horizon = ensemble, search, horizon
        self.each = -(-particles // len(ensemble.members))  # of every member
        self.propagation, self.rewards, self.terminated = propagation, rewards, terminated

    @torch.no_grad()
    def values(self, obs: torch.Tensor, plans: torch.Tensor) -> torch.Tensor:
        """The mean, over particles, of what each earns until it terminates."""
        members, (count, horizon, _), each = len(self.ensemble.members), plans.shape, self.each
        places = [(k, p) for k in range(members) for p in range(each)]
        particles = [[{"obs": obs, "earned": 0.0, "alive": True} for _ in places] for _ in range(count)]
        for t in range(horizon):
            if self.propagation == "ts1":
                orders = torch.rand(count, members * each).argsort(1).tolist()
                particles = [[plan[j] for j in order] for plan, order in zip(particles, orders)]
            noise = torch.randn(members, count * each, len(obs) + 1)
            for i, plan in enumerate(particles):
                for (k, p), particle in zip(places, plan):
                    self.move(particle, k, plans[i, t], noise[k, i * each + p])
        return torch.tensor([sum(float(x["earned"]) for x in plan) / len(plan) for plan in particles])

    def move(self, particle: dict[str, Any], member: int, action: torch.Tensor, noise: torch.Tensor) -> None:
        predicted = self.ensemble.predict(member, particle["obs"][None], action[None])
        drawn = predicted.mean[0] + predicted.stddev[0] * noise
        before, after = particle["obs"], particle["obs"] + drawn[:-1]
        rows = (before[None].numpy(), action[None].numpy(), after[None].numpy())
        reward = drawn[-1] if self.rewards is None else self.rewards(*rows)[0]
        if particle["alive"]:
            particle["earned"] = particle["earned"] + reward
        if self.terminated is not None and self.terminated(*rows)[0]:
            particle["alive"] = False
        particle["obs"] = after

    def act(self, obs: np.ndarray, start: np.ndarray, rng: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """The first action of a plan in the box [-1, 1], and the rest of it, with zeros at its end, as the next start."""
        own = zlib.crc32(np.asarray(obs, np.float16).tobytes())  # deterministic: a seed made of the observation
        torch.manual_seed(own if rng is None else int(rng.integers(2**62)))
        high = torch.ones(start.shape)
        seen = torch.from_numpy(obs)
        plan = self.search(lambda plans: self.values(seen, plans), -high, high, torch.from_numpy(start)).numpy()
        return plan[0], np.concatenate([plan[1:], 0 * plan[:1]])
