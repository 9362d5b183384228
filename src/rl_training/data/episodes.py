"""Episodes in columns of transitions: where one row does not follow another, step numbers, slices and returns."""

from __future__ import annotations

import numpy as np

__all__ = ["episode_slices", "find_gaps", "in_time_order", "returns_by_row", "step_numbers"]

BLOCK = 65_536  # rows that are compared at once


def find_gaps(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """(N,) booleans: rows whose successor is not the observation of the next row; never the last one."""
    n = len(obs)
    gaps = np.zeros(n, bool)
    exact = obs.dtype.kind != "f" and next_obs.dtype.kind != "f"
    for start in range(0, n - 1, BLOCK):
        stop = min(start + BLOCK, n - 1)
        after, below = (
            next_obs[start:stop].reshape(stop - start, -1),
            obs[start + 1 : stop + 1].reshape(stop - start, -1),
        )
        if exact:
            differ = after != below
        else:  # the same number may have been rounded twice
            size = np.fmax.reduce(np.abs(below), 0)
            differ = ~(np.abs(after - below) <= 1e-5 * np.abs(below) + 1e-6 * size)
        gaps[start:stop] = differ.any(1)
    return gaps


def in_time_order(gaps: np.ndarray, ended: np.ndarray) -> bool:
    """Whether rows with these ``gaps`` (N,) lie in time order: shuffled rows rarely precede their successor."""
    going_on = ~ended[:-1]
    return not going_on.any() or float(gaps[:-1][going_on].mean()) <= 0.5


def step_numbers(ended: np.ndarray) -> np.ndarray:
    """The number of each row within its episode, from 1; ``ended`` (N,) marks last rows."""
    rows = np.arange(len(ended))
    starts = np.zeros(len(ended), np.int64)
    starts[1:] = np.where(ended[:-1], rows[1:], 0)
    return rows - np.maximum.accumulate(starts) + 1


def episode_slices(ended: np.ndarray) -> list[slice]:
    """The rows of each episode; ``ended`` (N,) marks last rows, and the last episode may be unfinished."""
    stops = (np.flatnonzero(ended) + 1).tolist()
    if not stops or stops[-1] != len(ended):
        stops.append(len(ended))
    return [slice(start, stop) for start, stop in zip([0, *stops], stops) if stop > start]


def returns_by_row(rewards: np.ndarray, ended: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """For each row the return of its episode; NaN unless the episode's last row is ``marked`` (N,) as its end."""
    result = np.full(len(rewards), np.nan, np.float32)
    if len(ended) and ended.all() and not marked.all():  # rows are not in time order
        return result
    rewards = rewards.astype(np.float64)
    for rows in episode_slices(ended):
        if marked[rows.stop - 1]:
            result[rows] = rewards[rows].sum()
    return result
