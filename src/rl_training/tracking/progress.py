"""Progress of a run in the terminal: a bar, or a line every few seconds."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rl_training.base.streams import LOST, say
from rl_training.tracking.figures import clock, short
from rl_training.tracking.notebook import Panel, notebook_shell

__all__ = ["Progress", "bar_line", "can_redraw"]

SECONDS_BETWEEN_LINES = 5.0  # seconds between lines where there is no terminal


class Progress:
    """The progress of a run: a live bar in a terminal, bar and curve in a notebook, a line every few seconds elsewhere,
    or nothing. Where nobody reads any more, it falls silent."""

    def __init__(
        self,
        mode: str,
        *,
        title: str,
        total: int,
        start: int,
        stream: TextIO | None = None,
        unit: str = "steps",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = stream if stream is not None else sys.stderr
        panel = mode in ("auto", "bar") and stream is None and notebook_shell() is not None
        self._mode = "notebook" if panel else mode if mode != "auto" else "bar" if can_redraw(self._out) else "lines"
        self._now, self._began = now, now()
        self._total, self._start, self._unit = total, start, unit
        self._title = title
        self._notes: dict[str, str] = {}
        self._at, self._at_time = start, self._began  # step and time of the last report
        self._last_line, self._line_step = -math.inf, start
        self._live: Any = None
        self._panel = Panel(title, now) if panel else None
        if self._mode == "bar":
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._out)
            self._live = Live(
                console=console, get_renderable=self._drawn, refresh_per_second=4, vertical_overflow="crop"
            )
            self._draw(self._live.start)

    def note(self, **notes: str) -> None:
        """Set texts to show beside the bar, by name: ``episodes``, ``evaluation``."""
        self._notes.update(notes)

    def point(self, step: int, **values: float | None) -> None:
        """Add points to the curves, by name: ``episodes``, ``evaluation``. Only a notebook shows them."""
        if self._panel is not None:
            self._panel.point(step, **values)

    def say(self, message: str) -> None:
        """Print one line that stays."""
        if self._live is not None:
            self._draw(lambda: self._live.console.print(message, highlight=False, markup=False))
        elif self._panel is not None:
            self._panel.say(message)
        elif self._mode == "lines":
            say(message, self._out)

    def _draw(self, draw: Callable[[], None]) -> None:
        """Draw in the terminal, if it is still there; rich would end the process by SystemExit."""
        try:
            draw()
        except (*LOST, SystemExit):
            live, self._live, self._mode = self._live, None, "off"
            with contextlib.suppress(*LOST, SystemExit):
                live.stop()

    def tick(self, step: int) -> None:
        """Record the present step, often and cheaply; a thread redraws the bar a few times a second."""
        self._at, self._at_time = step, self._now()
        if self._panel is not None:
            self._panel.show(self._at / self._total, self._parts(step, self._at_time))

    def log(self, step: int) -> None:
        """Print a line, unless one was printed a moment ago; the last step always gets one."""
        if step >= self._total:
            self._last_line = -math.inf
        self._line(step, self._text(step))

    def stage(self, name: str, done: int, total: int, step: int) -> None:
        """Show work between steps (a model fit, pretraining) until it is done."""
        text = f"{name} {done:,}/{total:,}"
        if done >= total:
            self._notes.pop("stage", None)
        else:
            self._notes["stage"] = text
        if done:
            self._line(step, text)
        self.tick(step)

    def _line(self, step: int, text: str) -> None:
        now = self._now()
        if self._mode == "lines" and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line, self._line_step = now, step
            say(f"{self._title}  {text}", self._out)

    def _parts(self, step: int, now: float) -> list[str]:
        """List steps, speed, remaining time, and the notes."""
        elapsed = max(now - self._began, 1e-9)
        rate = (step - self._start) / elapsed
        parts = [f"{step:,}/{self._total:,}"]
        if rate > 0:
            left = (self._total - step) / rate
            parts += [f"{short(rate)} {self._unit}/s", f"{clock(left)} left" if left > 0 else f"took {clock(elapsed)}"]
        return [*parts, *(note for note in tuple(self._notes.values()) if note)]

    def _text(self, step: int) -> str:
        return SEPARATOR.join(self._parts(step, self._now()))

    def _drawn(self) -> Any:
        from rich.text import Text

        width = self._live.console.width if self._live is not None else 80
        title, done, rest = bar_line(self._title, self._parts(self._at, self._at_time), self._at / self._total, width)
        return Text.assemble(
            title, (done[0], "green"), (done[1], "bright_black"), rest, no_wrap=True, overflow="ellipsis"
        )

    def close(self, step: int | None = None) -> None:
        """Print or keep the last state, and stop the bar."""
        self._notes.pop("stop", None)
        if step is not None:
            self.tick(step)
            if step > self._line_step:
                self._last_line = -math.inf
                self._line(step, self._text(step))
        if self._live is not None:
            self._draw(self._live.stop)
            self._live = None
        if self._panel is not None:
            self._panel.show(self._at / self._total, self._parts(self._at, self._at_time), last=True)


SEPARATOR = " · "
LONGEST_BAR, SHORTEST_BAR = 24, 8


def bar_line(title: str, parts: Sequence[str], share: float, width: int) -> tuple[str, tuple[str, str], str]:
    """Split one line into title, the two halves of a bar, and as many parts as fit, with room for ``^C`` at its end.

    Where width is short, the bar is left out first, then the speed (the second part), then parts from the end.
    """
    room, kept = width - 4 - len(title) - 1, list(parts)
    if len(SEPARATOR.join(kept)) > room and len(kept) > 1:
        kept.pop(1)
    while len(SEPARATOR.join(kept)) > room and len(kept) > 1:
        kept.pop()
    text = SEPARATOR.join(kept)
    cells = min(LONGEST_BAR, room - len(text) - 1)
    if cells < SHORTEST_BAR:
        return f"{title} ", ("", ""), text
    filled = int(cells * min(max(share, 0.0), 1.0))
    return f"{title} ", ("━" * filled, "─" * (cells - filled)), f" {text}"


def can_redraw(stream: Any) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    terminal = hasattr(stream, "isatty") and stream.isatty()
    return terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
