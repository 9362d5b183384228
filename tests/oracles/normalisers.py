"""Running normalisers, from lists of everything that they have seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class ObservationStatistics:
    """(x - mean) / deviation of all observations so far, at most 10 in size."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def observe(self, rows: Any) -> None:
        self.seen.extend(np.asarray(rows, np.float64))

    @property
    def mean(self) -> np.ndarray:
        return np.mean(self.seen, axis=0)

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(np.var(self.seen, axis=0) + 1e-8)

    def normalised(self, rows: Any) -> Any:
        if not self.seen:
            return rows
        result = np.clip((np.asarray(rows, np.float64) - self.mean) / self.deviation, -10, 10)
        return torch.as_tensor(result) if isinstance(rows, torch.Tensor) else result


class RewardScale:
    """The deviation of the discounted returns so far, of all environments; a return begins anew with each episode."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma, self._running, self.seen = gamma, [0.0] * num_envs, []

    def observe(self, rewards: Any, ended: Any) -> None:
        for env, reward in enumerate(rewards):
            self._running[env] = self._gamma * self._running[env] + float(reward)
            self.seen.append(self._running[env])
            if ended[env]:
                self._running[env] = 0.0

    def scaled(self, rewards: Any, clip: float = 10.0) -> np.ndarray:
        return np.clip(np.asarray(rewards, np.float64) / np.sqrt(np.var(self.seen) + 1e-8), -clip, clip)
