"""Merging of running means and variances."""

from __future__ import annotations

import numpy as np

__all__ = ["merge_moments"]


def merge_moments(
    count: float, mean: np.ndarray, square: np.ndarray, rows: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Count, mean and summed squared deviation of earlier rows and ``rows`` (B, ...) together (Chan et al., 1979)."""
    n, batch_mean = len(rows), rows.mean(0)
    delta, total = batch_mean - mean, count + n
    square = square + ((rows - batch_mean) ** 2).sum(0) + delta**2 * (count * n / total)
    return total, mean + delta * (n / total), square
