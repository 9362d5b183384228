"""Curves of a run as a picture that notebooks, browsers and papers show: SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Line", "draw_curves"]

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 30, 40  # of the frame around the curves


class Line(NamedTuple):
    """One curve: its name, and its values at environment steps."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]


def draw_curves(lines: Sequence[Line], *, title: str = "", width: int = 640, height: int = 320) -> str:
    """An SVG picture of the curves over environment steps. Texts have the colour of the page; the picture has no
    background, so that it suits light and dark ones."""
    drawn = [line for line in (_finite(line) for line in lines) if line.steps]
    most = max((step for line in drawn for step in line.steps), default=1.0) or 1.0
    values = [value for line in drawn for value in line.values]
    low, high = _around(min(values, default=0.0), max(values, default=1.0))

    def place(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (width - LEFT - RIGHT) * step / most
        return round(x, 1), round(height - BOTTOM - (height - TOP - BOTTOM) * (value - low) / (high - low), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="max-width: 100%; height: auto" font-family="sans-serif" font-size="12" fill="currentColor" '
        'role="img">',
        f"<title>{escape(title or 'curves')}</title>",
    ]
    for value in ticks(low, high):
        y = place(0, value)[1]
        parts.append(f'<path d="M{LEFT} {y}H{width - RIGHT}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_label(value)}</text>')
    for step in ticks(0.0, most):
        parts.append(
            f'<text x="{place(step, low)[0]}" y="{height - BOTTOM + 16}" text-anchor="middle">{_label(step)}</text>'
        )
    middle = (LEFT + width - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{height - 6}" text-anchor="middle">environment steps</text>')
    for line, colour in zip(drawn, COLOURS):
        points = [place(step, value) for step, value in zip(line.steps, line.values)]
        path = "L".join(f"{x} {y}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>')
        if len(points) <= 40:
            parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points]
    at = float(LEFT)
    for line, colour in zip(drawn, COLOURS):
        parts.append(f'<path d="M{at} {TOP - 14}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{at + 24}" y="{TOP - 10}">{escape(line.name)}</text>')
        at += 44 + 7 * len(line.name)
    return "".join([*parts, "</svg>"])


def _finite(line: Line) -> Line:
    pairs = [(s, v) for s, v in zip(line.steps, line.values) if math.isfinite(s) and math.isfinite(v)]
    return Line(line.name, [s for s, _ in pairs], [v for _, v in pairs])


def _around(low: float, high: float) -> tuple[float, float]:
    """A range with some air around its values."""
    margin = 0.05 * (high - low) or max(1.0, 0.05 * abs(high))
    return low - margin, high + margin


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two bounds, about so many."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    """A number on an axis: 0, 2.5, 40k, 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (letter == "M" and abs(value) >= size):
            return f"{value / size:g}{letter}"
    return f"{value:.6g}" if abs(value) > 1e-12 else "0"
