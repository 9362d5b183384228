"""Absorbing states for adversarial imitation (Kostrikov et al., 2019): states for the time after a termination.

These states are not stepped through. The discriminator sees them as often as they would occur up to the time limit, and
their reward for ever is added to the terminating step.
"""

from __future__ import annotations

import numpy as np
import torch

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.collector import Step

__all__ = ["AbsorbingStates"]


class AbsorbingStates:
    """How many absorbing states follow the expert's and the rollout's steps."""

    def __init__(
        self, expert: TransitionDataset, rollout_shape: tuple[int, int], gamma: float, limit: int | None
    ) -> None:
        """``rollout_shape``: (T, N); ``limit``: the time limit of episodes, if there is one."""
        self._gamma, self._limit = gamma, limit
        self.after_step = np.zeros(rollout_shape, np.float32)  # absorbing states that follow each step of the rollout
        self._rows, self._expert_rows = self.after_step.size, len(expert)
        terminated = [rows for rows in expert.episodes() if expert.dones[rows.stop - 1] > 0]
        self.after_expert = sum(self.remaining(rows.stop - rows.start) for rows in terminated)

    def remaining(self, length: int) -> float:
        """Absorbing states after an episode of this length: up to the time limit; without one, 1 / (1 - γ)."""
        return max(0, self._limit - length) if self._limit is not None else 1 / (1 - self._gamma)

    def record(self, t: int, step: Step, lengths: list[int]) -> None:
        """Record row ``t`` of the rollout, and update the ``lengths`` of the episodes under way."""
        for i in range(len(lengths)):
            lengths[i] += 1
            self.after_step[t, i] = self.remaining(lengths[i]) if step.terminated[i] else 0
            if step.terminated[i] or step.truncated[i]:
                lengths[i] = 0

    def policy_mask(self, size: int, rng: np.random.Generator) -> torch.Tensor:
        """A random mask (size,), one for absorbing states, by their share of the rollout and them."""
        after = self.after_step.sum()
        return _mask(size, after / (after + self._rows), rng)

    def expert_mask(self, size: int, rng: np.random.Generator) -> torch.Tensor:
        """A random mask (size,), one for absorbing states, by their share of the expert's data and them."""
        return _mask(size, self.after_expert / (self.after_expert + self._expert_rows), rng)

    def bonus(self, reward: float) -> float:
        """The discounted sum of this reward in every absorbing state after a termination: γ / (1 - γ) times it."""
        return reward * self._gamma / (1 - self._gamma)


def _mask(size: int, share: float, rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy((rng.random(size, dtype=np.float32) < share).astype(np.float32))
