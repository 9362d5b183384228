"""Running mean and variance, and what is scaled by them: observations (with the agent) and rewards (with the loop)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


def merge_moments(
    count: float, mean: np.ndarray, square: np.ndarray, rows: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Count, mean and summed squared deviation after seeing ``rows`` (B, ...) too (Chan et al., 1979)."""
    n, batch_mean = len(rows), rows.mean(0)
    delta, total = batch_mean - mean, count + n
    square = square + ((rows - batch_mean) ** 2).sum(0) + delta**2 * (count * n / total)
    return total, mean + delta * (n / total), square


class ObservationNormalizer(nn.Module):
    """(x - mean) / deviation, clipped, with statistics of all observations seen in training; frozen while evaluating.

    The statistics are buffers of the agent, so they are saved, loaded and applied wherever the agent goes.
    """

    mean: torch.Tensor
    inverse_std: torch.Tensor
    square: torch.Tensor
    exact_mean: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("inverse_std", torch.ones(shape))
        self.register_buffer("square", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("exact_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def observe(self, rows: np.ndarray) -> None:
        if not self.training:
            return
        count, mean, square = merge_moments(
            float(self.count), self.exact_mean.cpu().numpy(), self.square.cpu().numpy(), rows.astype(np.float64)
        )
        self.count.fill_(count)
        self.exact_mean.copy_(torch.as_tensor(mean))
        self.square.copy_(torch.as_tensor(square))
        self.mean.copy_(self.exact_mean)
        self.inverse_std.copy_((self.square / count + 1e-8).rsqrt())

    def fit(self, rows: np.ndarray, *, epsilon: float = 1e-3) -> None:
        """The statistics of a fixed dataset: (x - mean) / (deviation + epsilon)."""
        exact = rows.astype(np.float64)
        self.mean.copy_(torch.as_tensor(exact.mean(0)))
        self.inverse_std.copy_(torch.as_tensor(1 / (exact.std(0) + epsilon)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.mean) * self.inverse_std).clamp(-self.clip, self.clip)

    def host(self, x: np.ndarray) -> np.ndarray:
        scaled = (x - self.mean.cpu().numpy()) * self.inverse_std.cpu().numpy()
        return np.clip(scaled, -self.clip, self.clip, out=scaled)


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
        self.returns = state["returns"].numpy().copy()
        self.count, self.mean, self.square = state["count"], np.array(state["mean"]), np.array(state["square"])
