"""Statistics over few runs, after Agarwal et al. (2021), "Deep RL at the Edge of the Statistical Precipice".

Scores are a mapping from each task to the scores of its runs, a matrix (runs, tasks), or the runs of a single task. A
statistic works over leading axes: its tasks are arrays (..., runs), of which the last axis is one sample, so that a
bootstrap is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Efficiency",
    "Interval",
    "Scores",
    "Statistic",
    "iqm",
    "mean",
    "median",
    "performance_profile",
    "probability_of_improvement",
    "sample_efficiency",
    "stratified_bootstrap",
    "tasks",
]

Scores = Mapping[str, Any] | Sequence[Any] | np.ndarray
Statistic = Callable[..., Any]
RESAMPLES = 2000


class Interval(NamedTuple):
    """A statistic with the bounds of its bootstrap interval; a single run has no bounds."""

    value: Any
    low: Any
    high: Any


class Efficiency(NamedTuple):
    """A statistic over runs at environment steps, with the bounds of its bootstrap intervals."""

    steps: np.ndarray
    value: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def tasks(scores: Scores) -> dict[str, np.ndarray]:
    """Bring scores into one form: the runs of each task, (..., runs)."""
    if isinstance(scores, Mapping):
        found = {str(name): np.asarray(runs, float) for name, runs in scores.items()}
    else:
        matrix = np.asarray(scores, float)
        found = {"": matrix} if matrix.ndim == 1 else {str(i): matrix[:, i] for i in range(matrix.shape[1])}
    if not found or any(runs.shape[-1:] in ((), (0,)) for runs in found.values()):
        raise ValueError("statistics need at least one score of each task")
    if not all(np.isfinite(runs).all() for runs in found.values()):
        raise ValueError("statistics need finite scores")
    return found


def mean(scores: Scores) -> Any:
    """The mean over tasks of each task's mean."""
    return np.mean([runs.mean(-1) for runs in tasks(scores).values()], 0)


def median(scores: Scores) -> Any:
    """The median over tasks of each task's mean; of a single task, the median of its runs."""
    found = list(tasks(scores).values())
    return np.median(found[0], -1) if len(found) == 1 else np.median([runs.mean(-1) for runs in found], 0)


def iqm(scores: Scores) -> Any:
    """The interquartile mean: of all runs of all tasks together, a quarter is cut off at either end, rounded down."""
    runs = np.sort(np.concatenate(list(tasks(scores).values()), -1), -1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(-1)


def probability_of_improvement(x: Scores, y: Scores) -> Any:
    """The probability that a run of x beats one of y on the same task; ties count half; the mean over tasks."""
    xs, ys = tasks(x), tasks(y)
    if xs.keys() != ys.keys():
        raise ValueError(f"both sides need the same tasks, got {sorted(xs)} and {sorted(ys)}")
    probabilities = []
    for name in xs:
        a, b = xs[name][..., :, None], ys[name][..., None, :]
        probabilities.append((a > b).mean((-2, -1)) + (a == b).mean((-2, -1)) / 2)
    return np.mean(probabilities, 0)


def performance_profile(scores: Scores, taus: Any) -> Any:
    """The share of runs with a score above each tau, (..., taus); the mean over tasks."""
    levels = np.asarray(taus, float)
    return np.mean([(runs[..., None, :] > levels[:, None]).mean(-1) for runs in tasks(scores).values()], 0)


def stratified_bootstrap(
    statistic: Statistic, *scores: Scores, resamples: int = RESAMPLES, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Compute ``statistic(*scores)`` with a percentile interval; runs are resampled within each task and side."""
    sides = [tasks(side) for side in scores]
    value = statistic(*sides)
    most = max(runs.size for side in sides for runs in side.values())
    if most == 1:
        return Interval(value, None, None)
    rng, drawn = np.random.default_rng(seed), []
    chunk = max(1, 2**22 // most**2)  # keeps the pairs of two large sides within memory
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        again = [
            {name: runs[rng.integers(runs.size, size=(count, runs.size))] for name, runs in side.items()}
            for side in sides
        ]
        drawn.append(statistic(*again))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail], axis=0)
    return Interval(value, low, high)


def sample_efficiency(
    curves: Sequence[tuple[Any, Any]],
    *,
    steps: Any = None,
    points: int = 200,
    statistic: Statistic = iqm,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> Efficiency:
    """Compute a statistic over runs at each step. Each curve is (steps, values), interpolated linearly.

    Without ``steps`` the grid is where every run has values: the runs' own steps, or ``points`` evenly spaced ones if
    they are more.
    """
    if not curves:
        raise ValueError("sample efficiency needs at least one curve")
    grid = (
        np.asarray(steps, float)
        if steps is not None
        else _common_steps([np.asarray(s, float) for s, _ in curves], points)
    )
    aligned = np.stack([np.interp(grid, np.asarray(x, float), np.asarray(y, float)) for x, y in curves], -1)
    runs = len(curves)
    if runs == 1:
        return Efficiency(grid, aligned[:, 0], None, None)
    index = np.random.default_rng(seed).integers(runs, size=(resamples, runs))
    tail, bounds = (1 - confidence) / 2, []
    chunk = max(1, 2**22 // index.size)
    for start in range(0, len(grid), chunk):
        again = statistic({"": aligned[start : start + chunk][:, index]})  # (points, resamples)
        bounds.append(np.quantile(again, [tail, 1 - tail], axis=-1))
    low, high = np.concatenate(bounds, -1)
    return Efficiency(grid, statistic({"": aligned}), low, high)


def _common_steps(steps: list[np.ndarray], points: int) -> np.ndarray:
    start, end = max(s[0] for s in steps), min(s[-1] for s in steps)
    if start > end:
        raise ValueError("the curves have no steps in common")
    union = np.unique(np.concatenate([*steps, [start, end]]))
    union = union[(union >= start) & (union <= end)]
    return union if len(union) <= points else np.linspace(start, end, points)
