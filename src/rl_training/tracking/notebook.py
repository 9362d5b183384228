"""Progress in a notebook: one output with a bar and a curve, redrawn in its place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rl_training.tracking.curves import Line, draw_curves

__all__ = ["Panel", "notebook_shell"]

SECONDS = 0.5  # between two drawings
MOST_POINTS = 400  # of a curve; beyond, every second one is left out
NAMES = {"episodes": "training episodes", "evaluation": "evaluation"}


def notebook_shell() -> Any:
    """The shell of the notebook that this process is the kernel of; None elsewhere, also in IPython's terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class Panel:
    """An output of a notebook: messages, a bar with its texts, and the curves so far."""

    def __init__(self, title: str, now: Callable[[], float]) -> None:
        self._title, self._now, self._drawn_at = title, now, -math.inf
        self._messages: list[str] = []
        self._curves: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in NAMES}
        self._share, self._parts = 0.0, list[str]()
        self._handle: Any = None

    def say(self, message: str) -> None:
        """Add a line that stays."""
        self._messages.append(message)
        self._draw()

    def point(self, step: float, **values: float | None) -> None:
        """Add points to the curves."""
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                steps, numbers = self._curves[name]
                steps.append(step)
                numbers.append(value)
                if len(steps) > MOST_POINTS:
                    del steps[1:-1:2], numbers[1:-1:2]

    def show(self, share: float, parts: Sequence[str], *, last: bool = False) -> None:
        """Draw the present state, unless that was done a moment ago."""
        self._share, self._parts = share, list(parts)
        if last or self._now() - self._drawn_at >= SECONDS:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn_at = self._now()
        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        """What front ends without HTML show."""
        return "\n".join([*self._messages, f"{self._title}  {' · '.join(self._parts)}"])

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{escape(message)}</div>" for message in self._messages)
        bar = (
            '<div style="height: 8px; max-width: 640px; border-radius: 4px; background: rgba(128, 128, 128, 0.3)">'
            f'<div style="height: 8px; width: {100 * min(max(self._share, 0.0), 1.0):.1f}%; border-radius: 4px; '
            'background: #2ca02c"></div></div>'
        )
        text = f"<div><b>{escape(self._title)}</b> {escape(' · '.join(self._parts))}</div>"
        lines = [Line(NAMES[name], *curve) for name, curve in self._curves.items()]
        drawn = any(len(line.steps) > 1 for line in lines)
        picture = draw_curves(lines, title=f"returns of {self._title}", height=240) if drawn else ""
        return f'<div style="font-size: 13px">{said}{text}{bar}{picture}</div>'
