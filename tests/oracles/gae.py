"""Generalised advantage estimation (Schulman et al., 2016), as the sum that defines it."""

from __future__ import annotations

import numpy as np


def advantages_and_targets(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    *, gamma: float, gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Arrays (T, N). ``next_values`` are those of each step's true successor, which a termination makes worthless.

    The advantage at t is the sum of (γλ)^k δ_{t+k} up to the end of the episode or of the rollout; the value's target is
    the advantage plus the value.
    """
    deltas = rewards + gamma * np.where(terminated, 0.0, next_values) - values
    ended, advantages = (terminated > 0) | (truncated > 0), np.zeros_like(deltas)
    for env in range(deltas.shape[1]):
        for t in range(len(deltas)):
            for k in range(t, len(deltas)):
                advantages[t, env] += (gamma * gae_lambda) ** (k - t) * deltas[k, env]
                if ended[k, env]:
                    break
    return advantages, advantages + values
