"""Numbers and time spans as a person would write them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def short(value: float) -> str:
    """Four significant figures, as a person would write them."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def spread(mean: float, deviation: float) -> str:
    """``mean ± deviation``, with as many decimals as their scale needs: 487.3 ± 21.4, 0.955 ± 0.012."""
    return " ± ".join(_alike(mean, deviation))


def figure(value: float) -> str:
    """A single result, in the digits of ``spread``."""
    return _alike(value, 0.0)[0]


def _alike(mean: float, deviation: float) -> tuple[str, str]:
    scale = max(abs(mean), abs(deviation))
    if not math.isfinite(scale) or 0 < scale < 1e-4:
        return f"{mean:.3g}", f"{deviation:.2g}"
    if scale >= 10_000:
        return f"{mean:,.0f}", f"{deviation:,.0f}"
    three, two, six = _decimals(scale, 3), _decimals(abs(deviation), 2), _decimals(scale, 6)
    decimals = min(max(1, three, two), six)
    while decimals > 1 and round(mean, decimals - 1) == mean and round(deviation, decimals - 1) == deviation:
        decimals -= 1  # 9.0 ± 1.0, where that is exactly so
    return f"{mean:.{decimals}f}", f"{deviation:.{decimals}f}"


def _decimals(value: float, figures: int) -> int:
    """How many decimals show so many significant figures of a number."""
    return figures - 1 - math.floor(math.log10(value)) if value > 0 else 1


def clock(seconds: float) -> str:
    """A time span as h:mm:ss; what is over takes no time."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
