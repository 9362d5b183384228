"""Upgrade checkpoints of older formats while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FORMAT", "STEPS", "upgrade"]

FORMAT = 3


def _terminations_move_to_the_agent(tree: dict[str, Any]) -> None:
    """Format 1 kept the termination classifiers of model-based algorithms with the buffers, not with the agent."""
    if tree["config"].get("algo") in ("pets", "mbpo", "mopo"):
        buffers = tree["buffer_state"]
        tree["algorithm_state"]["terminations"] = buffers.pop("ends", None) if isinstance(buffers, dict) else None


def _ensembles_know_the_units_of_their_targets(tree: dict[str, Any]) -> None:
    """Format 2 had ensembles whose outputs are in the data's units; PETS planned with other sizes by default."""
    config, state = tree["config"], tree["algorithm_state"]
    if config.get("algo") in ("pets", "mbpo", "mopo"):
        model = state.get("dynamics", state)["model"]
        if "min_logvar" in model:  # not a network of the user's own
            outputs = len(model["min_logvar"])
            model |= {"target_mean": torch.zeros(outputs), "target_scale": torch.ones(outputs)}
    if config.get("algo") == "pets":
        sizes = {"candidates": 200, "topk": 20, "iterations": 4, "particles": 10}
        before = {"standardise_targets": False, **{f"planning_{name}": size for name, size in sizes.items()}}
        config["algo_kwargs"] = {**before, **(config.get("algo_kwargs") or {})}


# from each format to the next
STEPS: dict[int, Callable[[dict[str, Any]], None]] = {
    1: _terminations_move_to_the_agent,
    2: _ensembles_know_the_units_of_their_targets,
}


def upgrade(tree: dict[str, Any], number: int) -> None:
    """Change a checkpoint's tree of format ``number`` into one of the present format, in place."""
    for older in range(number, FORMAT):
        STEPS[older](tree)
    tree["metadata"]["format"] = FORMAT
