"""Stopping a run before its total."""

from __future__ import annotations

import math
from signal import Signals

from rl_training.base.stop_kind import StopKind
from rl_training.runtime.counters import Counters
from rl_training.runtime.trainer import TrainerState

__all__ = ["Stopping"]


class Stopping:
    """Requests a stop when a budget is spent or a signal arrives, and names the kind of the run's end.

    Callbacks request stops of the same ``TrainerState`` themselves.
    """

    def __init__(self, trainer: TrainerState, max_updates: int | None = None, max_epochs: int | None = None) -> None:
        self._trainer = trainer
        self.max_updates: float = math.inf if max_updates is None else max_updates
        self.max_epochs: float = math.inf if max_epochs is None else max_epochs

    @property
    def urgent(self) -> bool:
        """Whether a signal has come, whose sender waits for the end."""
        return self._trainer.urgent

    def check_budgets(self, counters: Counters) -> bool:
        """Request a stop if as many updates or epochs as are allowed have been made; True if so."""
        if counters.update_count >= self.max_updates:
            self._trainer.request_stop(f"max_updates={self.max_updates} reached", StopKind.BUDGET)
        if counters.epoch >= self.max_epochs:
            self._trainer.request_stop(f"max_epochs={self.max_epochs} reached", StopKind.BUDGET)
        return counters.update_count >= self.max_updates or counters.epoch >= self.max_epochs

    def on_signal(self, number: Signals) -> None:
        self._trainer.urgent = True
        self._trainer.request_stop(f"received {number.name}", StopKind.SIGNAL)

    @property
    def requested_kind(self) -> StopKind:
        """The kind of the stop that was requested; a callback may have set ``should_stop`` alone."""
        return self._trainer.stop_kind or StopKind.REQUESTED

    def kind(self, counters: Counters, total_steps: int, *, complete: bool = True) -> StopKind:
        """How the run ended, if it did not fail; ``complete``: nothing of its last step is left to do."""
        if counters.step < total_steps or not complete:
            return self.requested_kind
        return StopKind.UNTRAINED if counters.untrained else StopKind.FINISHED
