"""A replay memory of dicts in a list: windows over several steps, and priorities (Schaul et al., 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Row = dict[str, Any]


def windows(steps: list[Row], n: int, gamma: float) -> list[Row]:
    """What one environment's first steps make: a row for each, over up to ``n`` of them within its episode.

    A row is there once its last step is; ``at`` is that step's number.
    """
    rows = []
    for start, first in enumerate(steps):
        reward, discount, last = 0.0, 1.0, None
        for k, step in enumerate(steps[start : start + n]):
            reward += gamma**k * step["rewards"]
            discount = gamma ** (k + 1)
            if step["dones"] or step["truncations"] or k == n - 1:
                last = step
                break
        if last is not None:
            ending = {name: last[name] for name in ("next_obs", "dones", "truncations", "at")}
            rows.append({**first, **ending, "rewards": reward, "discounts": discount})
    return rows


class Memory:
    """The newest ``capacity`` rows, row k at place k modulo the capacity; draws come from ``rng``."""

    def __init__(self, capacity: int, rng: np.random.Generator, alpha: float | None = None) -> None:
        self.capacity, self.rng, self.alpha = capacity, rng, alpha
        self.places: list[Row] = []
        self.written, self.highest = 0, 1.0
        self.priorities = np.zeros(capacity)

    def add(self, row: Row) -> None:
        place = self.written % self.capacity
        self.places[place : place + 1] = [row]
        self.priorities[place] = self.highest
        self.written += 1

    def sample(self, n: int, beta: float) -> dict[str, torch.Tensor]:
        if self.alpha is None:
            drawn, weights = self.rng.integers(len(self.places), size=n), None
        else:
            mass = self.priorities[: len(self.places)] ** self.alpha
            points = (np.arange(n) + self.rng.random(n)) / n * mass.sum()  # one in each n-th of the mass
            drawn = np.array([next(i for i in range(len(mass)) if mass[: i + 1].sum() > point) for point in points])
            weights = (len(mass) * mass[drawn] / mass.sum()) ** -beta
        self.drawn = drawn
        names = [name for name in self.places[0] if name not in ("truncations", "at")]
        columns = {name: np.stack([self.places[i][name] for i in drawn]) for name in names}
        if weights is not None:
            columns["weights"] = weights / weights.max()
        kept = {name: c if c.dtype.kind in "iu" else c.astype("f4") for name, c in columns.items()}
        return {name: torch.from_numpy(column) for name, column in kept.items()}

    def learned(self, td_errors: torch.Tensor) -> None:
        for place, error in zip(self.drawn, td_errors.abs().double().numpy() + 1e-6):
            self.priorities[place] = error
            self.highest = max(self.highest, error)
