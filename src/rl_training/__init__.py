"""rl_training: reinforcement learning that is right, fast on a CPU, and resumes bit for bit.

Importing this package loads neither torch nor numpy; every public name is fetched on first use.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rl_training.experiment.registry import ALGORITHMS

if "numpy" not in sys.modules:  # acting multiplies tiny matrices: BLAS threads only get in each other's way
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    from rl_training.api.algorithms import BC as BC
    from rl_training.api.algorithms import CQL as CQL
    from rl_training.api.algorithms import DQN as DQN
    from rl_training.api.algorithms import FQF as FQF
    from rl_training.api.algorithms import GAIL as GAIL
    from rl_training.api.algorithms import IQL as IQL
    from rl_training.api.algorithms import IQN as IQN
    from rl_training.api.algorithms import MBPO as MBPO
    from rl_training.api.algorithms import MOPO as MOPO
    from rl_training.api.algorithms import PETS as PETS
    from rl_training.api.algorithms import PPG as PPG
    from rl_training.api.algorithms import PPO as PPO
    from rl_training.api.algorithms import QRDQN as QRDQN
    from rl_training.api.algorithms import RLPD as RLPD
    from rl_training.api.algorithms import SAC as SAC
    from rl_training.api.algorithms import TD3BC as TD3BC
    from rl_training.api.algorithms import Dreamer as Dreamer
    from rl_training.api.algorithms import ManagedAlgorithm as ManagedAlgorithm
    from rl_training.cli import load_config as load_config
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.environment_check import check_env as check_env
    from rl_training.tracking.loggers import Logger as Logger

__version__ = "0.1.0"

_HOMES = {
    "TrainConfig": "rl_training.experiment.config",
    "load_config": "rl_training.cli",
    "Callback": "rl_training.runtime.callbacks",
    "check_env": "rl_training.runtime.environment_check",
    "Logger": "rl_training.tracking.loggers",
    "ManagedAlgorithm": "rl_training.api.algorithms",
    **{entry.public: "rl_training.api.algorithms" for entry in ALGORITHMS.values()},
}
_PACKAGES = (
    "algorithms", "analysis", "api", "artifacts", "base", "cli", "data", "envs", "experiment", "models", "optim",
    "runtime", "serving", "sweeps", "tracking",
)  # fmt: skip
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:  # rl_training.api.PPO after ``import rl_training`` alone, whatever else has been imported
        return import_module(f"{__name__}.{name}")
    if name.isupper():  # like an algorithm: A2C, DDPG, TD3
        from rl_training.experiment.registry import get_entry

        try:
            get_entry(name)
        except ValueError as error:
            raise AttributeError(str(error)) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
