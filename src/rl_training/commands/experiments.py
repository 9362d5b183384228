"""Many runs: sweep, tune."""

from __future__ import annotations

from collections.abc import Callable


def add(command: Callable) -> None:
    """Add the commands of this module."""
