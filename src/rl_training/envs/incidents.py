"""What led to the failure of an environment: its seed and the actions of its episode, by which it can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["History", "incident"]

MOST_NUMBERS = 200_000  # in the actions of a report; of a longer episode it has the last ones
History = dict[str, Any]  # episode, seed, actions; exact: whether they alone lead to where the episode is


def incident(history: History, *, training: bool, index: int = 0) -> dict[str, Any]:
    """The plain values of a report; ``index``: which of several environments it was."""
    actions: Sequence[Any] = history["actions"]
    size = max(1, int(np.size(actions[0]))) if len(actions) else 1
    kept = actions[-max(1, MOST_NUMBERS // size) :]
    left_out = len(actions) - len(kept)
    return {
        "training": training,
        "index": index,
        "episode": history["episode"],
        "seed": history["seed"],
        "actions": [np.asarray(action).tolist() for action in kept],
        "actions_left_out": left_out,
        "exact": bool(history["exact"]) and not left_out,
        **({"env_kwargs_changed": history["env_kwargs"]} if history.get("env_kwargs") else {}),
    }
