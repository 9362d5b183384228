"""What is made of a trained agent: video, export."""

from __future__ import annotations

from collections.abc import Callable


def add(command: Callable) -> None:
    """Add the commands of this module."""
