"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["stop_signals"]


@contextlib.contextmanager
def stop_signals(stop: Callable[[signal.Signals], None], stopping: Callable[[], bool]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call ``stop``; a Ctrl-C while already ``stopping`` interrupts at once.

    Python delivers signals to the main thread alone; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if stopping() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
