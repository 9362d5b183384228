"""The learners, one module each.

``rl_training.algorithms.ppo.PPO`` is the learner; at package level, ``PPO`` is the managed class (the same object as
``rl_training.PPO``) and ``PPOAlgorithm`` the learner. Both are fetched on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl_training.experiment.registry import ALGORITHMS

_MODULES = {entry.public: name for name, entry in ALGORITHMS.items()}
__all__ = [*_MODULES, *(f"{public}Algorithm" for public in _MODULES)]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module("rl_training.api.algorithms"), name)
    public = name.removesuffix("Algorithm")
    if public != name and public in _MODULES:
        return getattr(import_module(f"rl_training.algorithms.{_MODULES[public]}"), public)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
