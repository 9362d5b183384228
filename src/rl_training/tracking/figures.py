"""Format numbers and time spans for people."""

from __future__ import annotations

import math

__all__ = ["clock", "figure", "short", "spread"]


def short(value: float) -> str:
    """Format a number with four significant figures, or with thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def spread(mean: float, deviation: float) -> str:
    """Format ``mean ± deviation`` with as many decimals as their scale needs: 487.3 ± 21.4, 0.955 ± 0.012."""
    return " ± ".join(_alike(mean, deviation))


def figure(value: float) -> str:
    """Format a single result with the decimals that ``spread`` would choose."""
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
    """Count the decimals that show so many significant figures of a number."""
    return figures - 1 - math.floor(math.log10(value)) if value > 0 else 1


def clock(seconds: float) -> str:
    """Format a time span as h:mm:ss or m:ss; a negative one is zero."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
