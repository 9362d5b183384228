"""Managed classes, one per registered algorithm: ``from rl_training.api import PPO``."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from rl_training.api import algorithms

    if name not in algorithms.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(algorithms, name)
