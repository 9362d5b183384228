"""Scaling of rewards by the running deviation of returns, a part of the loop's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.moments import merge_moments
from rl_training.base.saved import Saved

__all__ = ["RewardScaler"]


class RewardScaler:
    """Divides rewards by the deviation of the discounted return so far, and clips; never subtracts a mean."""

    def __init__(self, num_envs: int, gamma: float, *, clip: float = 10.0) -> None:
        self.gamma, self.clip = gamma, clip
        self.returns = np.zeros(num_envs)
        self.count, self.mean, self.square = 0.0, np.zeros(()), np.zeros(())

    def __call__(self, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Rewards (N,) of one step, and where an episode ended with it."""
        self.observe(rewards, ended)
        return self.scaled(rewards)

    def observe(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        self.returns = self.returns * self.gamma + rewards
        self.count, self.mean, self.square = merge_moments(self.count, self.mean, self.square, self.returns)
        self.returns[ended > 0] = 0.0

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        scale = 1.0 / np.sqrt(self.square / self.count + 1e-8)
        return np.clip(rewards * scale, -self.clip, self.clip).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {
            "returns": torch.from_numpy(self.returns.copy()),
            "count": self.count,
            "mean": float(self.mean),
            "square": float(self.square),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("returns", "count", "mean", "square"))
        self.returns = saved.array("returns", np.float64, self.returns.shape, finite=True).copy()
        self.count, self.mean = saved.number("count", least=0), np.array(saved.number("mean"))
        self.square = np.array(saved.number("square", least=0))
