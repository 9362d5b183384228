"""How a run ended, as a value. Programs decide by the kind; the sentences that people read are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["RESUMABLE", "StopKind", "recorded_stop_kind"]

RESUMABLE = 3  # the exit code of work that was stopped and goes on where it was


class StopKind(str, Enum):
    """How a run ended; recorded as ``stop_kind`` in its metadata.json."""

    __str__ = str.__str__  # as StrEnum, which Python 3.10 lacks

    FINISHED = "finished"  # reached its total number of steps
    UNTRAINED = "untrained"  # reached it without a single update
    EARLY = "early"  # early stopping
    BUDGET = "budget"  # max_updates or max_epochs
    REQUESTED = "requested"  # a callback called request_stop
    SIGNAL = "signal"  # SIGINT, SIGTERM or SIGHUP
    FAILED = "failed"  # an error

    @property
    def reached_total(self) -> bool:
        """Whether all steps of the run were taken."""
        return self in (StopKind.FINISHED, StopKind.UNTRAINED)

    @property
    def conclusive(self) -> bool:
        """Whether the run ended by its own rules; a sweep resumes the others."""
        return self not in (StopKind.SIGNAL, StopKind.FAILED)

    @property
    def exit_code(self) -> int:
        """What a command that trains returns: 0 ended by its own rules, 3 stopped and can be resumed, 1 failed."""
        return {StopKind.REQUESTED: RESUMABLE, StopKind.SIGNAL: RESUMABLE, StopKind.FAILED: 1}.get(self, 0)

    @property
    def outcome(self) -> str:
        """The kind in words: finished, finished without an update, failed or stopped."""
        words = {StopKind.FINISHED: "finished", StopKind.FAILED: "failed"}
        return "finished without an update" if self is StopKind.UNTRAINED else words.get(self, "stopped")

    def status(self, reason: str | None) -> str:
        """The line that metadata.json shows to people; only stopped runs have a reason."""
        return f"stopped: {reason}" if self.outcome == "stopped" else self.outcome


def recorded_stop_kind(metadata: Mapping[str, Any]) -> StopKind | None:
    """The kind in a run's metadata; None while it runs, or if it is no known kind.

    Older files have no such field, but a status line.
    """
    if "stop_kind" in metadata:
        return next((kind for kind in StopKind if kind == metadata["stop_kind"]), None)
    status = str(metadata.get("status", ""))
    for kind in (StopKind.FINISHED, StopKind.UNTRAINED, StopKind.FAILED):
        if status == kind.outcome:
            return kind
    if not status.startswith("stopped: "):
        return None
    parts = {
        StopKind.SIGNAL: ("received SIG",),
        StopKind.BUDGET: ("max_updates=", "max_epochs=", "the budget of"),
        StopKind.EARLY: ("has not improved for", "reached its target"),
    }
    return next((kind for kind, texts in parts.items() if any(t in status for t in texts)), StopKind.REQUESTED)
