"""Returns and advantages, as pure functions of arrays."""

from __future__ import annotations

import numpy as np

__all__ = ["explained_variance", "gae"]


def gae(
    *,
    rewards: np.ndarray,
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    final_values: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantage estimates (Schulman et al., 2016); arrays (T, N), ``last_values`` (N,).

    A terminated step does not bootstrap. A truncated one bootstraps from ``final_values``, the value of the episode's
    true last observation. The sum over later steps stops at both.
    """
    following = np.concatenate([values[1:], last_values[None]])
    successor = np.where(truncated > 0, final_values, following) * (1 - terminated)
    deltas = rewards + np.float32(gamma) * successor - values
    decay = np.float32(gamma * gae_lambda) * (1 - np.maximum(terminated, truncated))
    advantages: np.ndarray = deltas
    running = np.zeros_like(last_values)
    for t in range(len(deltas) - 1, -1, -1):
        running *= decay[t]
        running += deltas[t]
        advantages[t] = running
    return advantages


def explained_variance(predicted: np.ndarray, observed: np.ndarray) -> float:
    """1 - Var[returns - values] / Var[returns]: 1 for a perfect value function, 0 for a constant."""
    variance = float(np.var(observed))
    return float("nan") if variance == 0 else 1.0 - float(np.var(observed - predicted)) / variance
