"""Managed classes, one per registered algorithm: ``from rl_training.api import PPO``. Fetched on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl_training.experiment.registry import ALGORITHMS

__all__ = ["ManagedAlgorithm", *(entry.public for entry in ALGORITHMS.values())]


def __getattr__(name: str) -> Any:
    # import_module, because ``from rl_training.api import algorithms`` would ask this function for ``algorithms`` first
    if name == "algorithms" or name in __all__:
        home = import_module("rl_training.api.algorithms")
        return home if name == "algorithms" else getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "algorithms"])
