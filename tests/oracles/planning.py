"""Searches for action sequences once more, candidate by candidate: CEM (Chua et al., 2018), iCEM (Pinneri et al., 2020), random shooting.

``value`` is of all candidates at once, since a model draws its noise for all of them. Random numbers are torch's, in the learner's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Value = Callable[[torch.Tensor], torch.Tensor]


def elites_of(plans: torch.Tensor, values: list[float], count: int) -> list[torch.Tensor]:
    """The plans of highest value, best first, among those that have a finite one."""
    finite = [i for i in range(len(values)) if math.isfinite(values[i])]
    return [plans[i] for i in sorted(finite, key=lambda i: -values[i])[:count]]


def moved(old: torch.Tensor, new: torch.Tensor, alpha: float) -> torch.Tensor:
    return alpha * old + (1 - alpha) * new


def statistics(elites: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    mean = sum(elites) / len(elites)
    return torch.as_tensor(mean), torch.as_tensor(sum((plan - mean) ** 2 for plan in elites) / len(elites))


def cem(
    value: Value, low: Any, high: Any, mean: Any, *, candidates: int, elites: int, iterations: int, alpha: float
) -> Any:
    """Samples are normal, truncated at two deviations, with deviations that keep them in the box; the result is the last mean."""
    mean = (low + high) / 2 if mean is None else torch.minimum(torch.maximum(mean, low), high)
    variance = (high - low) ** 2 / 16
    for _ in range(iterations):
        if variance.max() < 1e-3:
            break
        noise = torch.nn.init.trunc_normal_(torch.empty(candidates, *low.shape), a=-2, b=2)
        room = torch.minimum((mean - low) / 2, (high - mean) / 2) ** 2
        plans = torch.stack([mean + torch.minimum(variance, room).sqrt() * noise[i] for i in range(candidates)])
        best_mean, best_variance = statistics(elites_of(plans, value(plans).tolist(), elites))
        mean, variance = moved(mean, best_mean, alpha), moved(variance, best_variance, alpha)
    return mean


def coloured(white: torch.Tensor, colour: float = 2.0) -> torch.Tensor:
    """White noise (..., H) with a power spectrum of f^-colour and a deviation of one, by the sums of a Fourier transform."""
    h = white.shape[-1]
    if h == 1:
        return white
    result, power = torch.zeros_like(white), 0.0
    for k in range(h):  # every frequency, with those above the middle the mirror images of those below
        f = max(min(k, h - k), 1) / h
        gain = f ** (-colour / 2)
        power += gain**2 / h
        angles = torch.arange(h) * (2 * math.pi * k / h)
        real, imaginary = (white * angles.cos()).sum(-1, keepdim=True), -(white * angles.sin()).sum(-1, keepdim=True)
        result += gain / h * (real * angles.cos() - imaginary * angles.sin())
    return result / math.sqrt(power)


def icem(
    value: Value, low: Any, high: Any, mean: Any, *, candidates: int, elites: int, iterations: int, alpha: float
) -> Any:
    """Coloured noise, clipped; a fifth fewer candidates each time; three tenths of the elites come along; the result is the best ever seen."""
    mean = (low + high) / 2 if mean is None else torch.minimum(torch.maximum(mean, low), high)
    variance, kept = (high - low) ** 2 / 16, []
    best, best_value = mean, -math.inf
    for i in range(iterations):
        count = max(int(candidates / 1.25**i), 2 * elites)
        noise = coloured(torch.randn(count, low.shape[1], low.shape[0])).transpose(1, 2)
        plans = [torch.minimum(torch.maximum(mean + variance.sqrt() * noise[j], low), high) for j in range(count)]
        if i == iterations - 1:
            plans[0] = mean
        all_plans = torch.stack([*plans, *kept])
        values = value(all_plans).tolist()
        elite = elites_of(all_plans, values, elites)
        highest = max(v for v in values if math.isfinite(v))
        if highest > best_value:
            best, best_value = elite[0], highest
        kept = elite[: int(0.3 * elites)]
        best_mean, best_variance = statistics(elite)
        mean, variance = moved(mean, best_mean, alpha), moved(variance, best_variance, alpha)
    return best


def random_shooting(value: Value, low: Any, high: Any, mean: Any, *, candidates: int) -> Any:
    plans = torch.stack([low + (high - low) * uniform for uniform in torch.rand(candidates, *low.shape)])
    return elites_of(plans, value(plans).tolist(), 1)[0]
