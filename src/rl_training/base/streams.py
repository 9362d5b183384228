"""Output that may lose its reader: a closed pipe or terminal falls silent, and stops nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["LOST", "Forgiving", "flush_or_silence", "say", "silence"]

LOST = (OSError, ValueError)  # what writing to a stream raises that is closed, broken or full


def say(text: str, stream: Any) -> bool:
    """Print a line at once; False if it could not be written."""
    try:
        print(text, file=stream, flush=True)
    except LOST as error:
        if isinstance(error, BrokenPipeError | ValueError):
            silence(stream)
        return False
    return True


def silence(stream: Any) -> None:
    """Let whatever is still written to a stream that has no reader go nowhere, also at the end of the process."""
    with contextlib.suppress(*LOST, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


class Forgiving:
    """A stream that falls silent where writing to it fails: what an environment prints must not end a run."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except LOST:
            silence(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except LOST:
            silence(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def flush_or_silence() -> None:
    """Write out what the process has printed; if that fails at its very end, Python makes another exit code of it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (*LOST, AttributeError):
            silence(stream)
