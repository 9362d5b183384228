"""Finding good action sequences by sampling: the cross-entropy method, its improved form, and random shooting.

A planner searches the box between ``low`` and ``high`` (H, A) for what maximises ``objective``: sequences (N, H, A) to
values (N,). It holds no state: ``mean`` is where the search starts, and the result is where the next one may.

On another device than a CPU nothing is read before the plan: a number that the host decides by would make it wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["CEM", "ICEM", "Objective", "Planner", "RandomShooting", "best_of", "ranked"]

Objective = Callable[[torch.Tensor], torch.Tensor]
TRUNCATION = 2.0  # deviations


class Planner(Protocol):
    """A search for the sequence of actions that maximises an objective."""

    def __call__(
        self, objective: Objective, low: torch.Tensor, high: torch.Tensor, mean: torch.Tensor | None = None
    ) -> torch.Tensor: ...


def middle(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The centre of the box."""
    return (low + high) / 2


def truncated_deviation(
    mean: torch.Tensor, variance: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    """The deviation, lowered until two of them around the mean lie in the box: truncated samples need no clipping."""
    room = torch.minimum(mean - low, high - mean) / 2
    return torch.minimum(variance, room.square()).sqrt()


def truncated_noise(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Standard normal noise, truncated at two deviations: by rejection on a CPU, elsewhere by the inverse of the
    cumulative distribution, which draws once."""
    noise = torch.empty(shape, device=device)
    if device.type == "cpu":
        return torch.nn.init.trunc_normal_(noise, a=-TRUNCATION, b=TRUNCATION)
    mass = math.erf(TRUNCATION / math.sqrt(2))
    return noise.uniform_(-mass, mass).erfinv_().mul_(math.sqrt(2)).clamp_(-TRUNCATION, TRUNCATION)


def best_of(plans: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` plans of highest value, best first; fewer, but at least one, if fewer have a finite value.

    On another device than a CPU, those that have one are repeated instead.
    """
    order, finite = ranked(values).argsort(descending=True, stable=True), torch.isfinite(values).sum().clamp(min=1)
    if plans.device.type == "cpu":
        return plans[order[: min(count, int(finite))]]
    return plans[order[torch.arange(min(count, len(plans)), device=plans.device) % finite]]


def ranked(values: torch.Tensor) -> torch.Tensor:
    """Values to compare plans by: one that is not finite, +inf included, is of a diverged model and the worst."""
    return torch.where(torch.isfinite(values), values, -torch.inf)


@dataclass(frozen=True)
class CEM:
    """Chua et al.'s: a Gaussian moved towards its elites; ``alpha`` is how much of the old mean and variance stays."""

    candidates: int = 400
    elites: int = 40
    iterations: int = 5
    alpha: float = 0.1
    smallest_variance: float = 1e-3

    def __call__(
        self, objective: Objective, low: torch.Tensor, high: torch.Tensor, mean: torch.Tensor | None = None
    ) -> torch.Tensor:
        mean = middle(low, high) if mean is None else mean.clamp(low, high)
        variance = ((high - low) / 4).square()
        for _ in range(self.iterations):
            found = variance.max() < self.smallest_variance
            if found.device.type == "cpu" and found:
                break
            noise = truncated_noise((self.candidates, *mean.shape), mean.device)
            plans = mean + truncated_deviation(mean, variance, low, high) * noise
            elite = best_of(plans, objective(plans), self.elites)
            moved = self.moved(mean, variance, elite)
            mean, variance = (torch.where(found, old, new) for old, new in zip((mean, variance), moved))
        return mean

    def moved(
        self, mean: torch.Tensor, variance: torch.Tensor, elite: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance moved towards those of the elites (K, H, A)."""
        new_mean, new_variance = elite.mean(0), elite.var(0, correction=0)
        return mean.lerp(new_mean, 1 - self.alpha), variance.lerp(new_variance, 1 - self.alpha)


@dataclass(frozen=True)
class ICEM(CEM):
    """Pinneri et al. (2020): noise that is coloured in time, fewer candidates each iteration, elites that are kept."""

    alpha: float = 0.1
    colour: float = 2.0  # exponent of the noise's spectrum: 0 white, 2 a random walk
    decay: float = 1.25  # candidates of an iteration over those of the next
    kept: float = 0.3  # share of the elites that are candidates again

    def __call__(
        self, objective: Objective, low: torch.Tensor, high: torch.Tensor, mean: torch.Tensor | None = None
    ) -> torch.Tensor:
        mean = middle(low, high) if mean is None else mean.clamp(low, high)
        variance = ((high - low) / 4).square()
        kept = mean[None][:0]
        best, best_value = mean, torch.full((), -torch.inf, device=mean.device)
        for i in range(self.iterations):
            count = max(int(self.candidates / self.decay**i), 2 * self.elites)
            plans = (mean + variance.sqrt() * self.noise(count, mean)).clamp(low, high)
            if i == self.iterations - 1:
                plans[0] = mean
            plans = torch.cat([plans, kept])
            values = objective(plans)
            elite = best_of(plans, values, self.elites)
            highest = ranked(values).max()
            best = torch.where(highest > best_value, elite[0], best)
            best_value = torch.maximum(best_value, highest)
            kept = elite[: int(self.kept * self.elites)]
            mean, variance = self.moved(mean, variance, elite)
        return best

    def noise(self, count: int, mean: torch.Tensor) -> torch.Tensor:
        """(N, H, A) of unit deviation, coloured along H."""
        horizon, dim = mean.shape
        white = torch.randn(count, dim, horizon, device=mean.device)
        if horizon == 1:
            return white.transpose(1, 2)
        frequencies = torch.fft.rfftfreq(horizon, device=mean.device)
        frequencies[0] = frequencies[1]
        gains = frequencies ** (-self.colour / 2)
        coloured = torch.fft.irfft(torch.fft.rfft(white) * gains, n=horizon)
        # the process's deviation: every frequency counts twice, but for the first and, if the horizon is even, the last
        counts = torch.full_like(gains, 2.0)
        counts[0] = 1.0
        if horizon % 2 == 0:
            counts[-1] = 1.0
        std: torch.Tensor = ((counts * gains.square()).sum() / horizon).sqrt()
        noise: torch.Tensor = coloured / std
        return noise.transpose(1, 2)


@dataclass(frozen=True)
class RandomShooting:
    """The best of uniformly random sequences."""

    candidates: int = 2_000

    def __call__(
        self, objective: Objective, low: torch.Tensor, high: torch.Tensor, mean: torch.Tensor | None = None
    ) -> torch.Tensor:
        plans = low + (high - low) * torch.rand(self.candidates, *low.shape, device=low.device)
        return best_of(plans, objective(plans), 1)[0]
