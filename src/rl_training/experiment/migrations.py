"""Upgrade checkpoints of older formats while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["FORMAT", "STEPS", "upgrade"]

FORMAT = 2


def _terminations_move_to_the_agent(tree: dict[str, Any]) -> None:
    """Format 1 kept the termination classifiers of model-based algorithms with the buffers, not with the agent."""
    if tree["config"].get("algo") in ("pets", "mbpo", "mopo"):
        buffers = tree["buffer_state"]
        tree["algorithm_state"]["terminations"] = buffers.pop("ends", None) if isinstance(buffers, dict) else None


# from each format to the next
STEPS: dict[int, Callable[[dict[str, Any]], None]] = {1: _terminations_move_to_the_agent}


def upgrade(tree: dict[str, Any], number: int) -> None:
    """Change a checkpoint's tree of format ``number`` into one of the present format, in place."""
    for older in range(number, FORMAT):
        STEPS[older](tree)
    tree["metadata"]["format"] = FORMAT
