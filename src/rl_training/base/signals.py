"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["StoppedAtOnce", "Stops", "stop_signals"]

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
ECHO = 1.0  # seconds in which further signals are the first one's: terminals, shells and supervisors all pass it on
GRACE = 10.0  # seconds that work gets to reach a point where it can be saved


class StoppedAtOnce(KeyboardInterrupt):
    """Raised in the main thread by a second signal, or if work that was to stop did not: nothing more is saved."""

    run_dir: Path | None = None  # of the run that was stopped, if it can be resumed


class Stops:
    """The first signal calls ``stop`` and gives the work ``grace`` seconds (None: any time); a second one raises."""

    def __init__(self, stop: Callable[[signal.Signals], None], grace: float | None) -> None:
        self._stop, self._grace = stop, grace
        self._first: float | None = None  # when the first signal came
        self._timer: threading.Timer | None = None
        self._expired = self._saving = False
        self._error: Exception | None = None
        self._before: dict[int, Any] = {}  # what handled the signals

    @property
    def installed(self) -> bool:
        return bool(self._before)

    def install(self) -> None:
        asked = (signal.SIGINT, signal.SIGTERM)
        taken = [number for number in SIGNALS if number in asked or signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self.handle) for number in taken}

    def remove(self) -> None:
        before, self._before = self._before, {}
        self.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: Any) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._first is None:
            self._first, self._number = time.monotonic(), number
            self._count_down()
            self._stop(signal.Signals(number))
        elif self._expired or time.monotonic() - self._first > ECHO:
            raise StoppedAtOnce

    def _count_down(self) -> None:
        if self._first is not None and self._grace is not None and not self._saving:
            self._timer = threading.Timer(self._grace, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        self._expired = True
        self._signal(self._number)

    def _signal(self, number: int) -> None:
        """Interrupt the main thread by a signal, which ends a wait in a system call too."""
        if not self.installed:
            return
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            signal.raise_signal(number)

    def interrupt(self, error: Exception) -> None:
        """Raise an error in the main thread, from another one; not where signals are left to somebody else."""
        self._error = error
        self._signal(signal.SIGTERM)

    def cancel(self, *, for_good: bool = False) -> None:
        """Take back the deadline, if there is one; ``for_good``: there will be no other."""
        if for_good:
            self._grace = None
        if self._timer is not None:
            self._timer.cancel()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """No deadline within: a save takes as long as it takes. A second signal still ends it at once."""
        self.cancel()
        self._saving = True
        try:
            yield
        finally:
            self._saving = False
            self._count_down()


@contextlib.contextmanager
def stop_signals(stop: Callable[[signal.Signals], None], *, grace: float | None = None) -> Iterator[Stops]:
    """Let SIGINT, SIGTERM and SIGHUP call ``stop``; a second signal, or no end in time, raises ``StoppedAtOnce``.

    Python delivers signals to the main thread alone; in another one this does nothing. A SIGHUP that is ignored (by
    ``nohup``) stays ignored.
    """
    stops = Stops(stop, grace)
    if threading.current_thread() is threading.main_thread():
        stops.install()
    try:
        yield stops
    finally:
        stops.remove()
