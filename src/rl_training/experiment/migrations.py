"""Checkpoints of older formats, brought up to the present one while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FORMAT = 2


def _terminations_move_to_the_agent(tree: dict[str, Any]) -> None:
    """Format 1 kept the learned terminations of model-based algorithms beside the buffers, out of reach of a loaded agent."""
    if tree["config"].get("algo") in ("pets", "mbpo", "mopo"):
        buffers = tree["buffer_state"]
        tree["algorithm_state"]["terminations"] = buffers.pop("ends", None) if isinstance(buffers, dict) else None


STEPS: dict[int, Callable[[dict[str, Any]], None]] = {
    1: _terminations_move_to_the_agent
}  # from each format to the next


def upgrade(tree: dict[str, Any], number: int) -> None:
    """Change a checkpoint's tree of format ``number``, in place, into one of the present format."""
    for older in range(number, FORMAT):
        STEPS[older](tree)
    tree["metadata"]["format"] = FORMAT
