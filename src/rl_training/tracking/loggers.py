"""Loggers: the protocol, and the set that a run writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rl_training.base.options import ConfigError
from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from rl_training.experiment.runs import RunContext

from rl_training.tracking.csv import CSVFile
from rl_training.tracking.jsonl import MetricsFile
from rl_training.tracking.tensorboard import EventFile
from rl_training.tracking.wandb import WandB


class Logger:
    """Hears every line of metrics of a run. Override what you need, or give any object with ``write``."""

    def open(self, context: RunContext, config: TrainConfig, resume_step: int | None) -> None:
        """The run begins; or goes on from ``resume_step``, and what was written after that step will be written again."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics at an environment step: training's at every log interval, an evaluation's at its own."""

    def close(self) -> None:
        """The run has ended, whichever way."""


class Loggers:
    """What a run writes to: metrics.jsonl always, which resuming and reports read; the config's loggers; and one's own."""

    def __init__(
        self, context: RunContext, config: TrainConfig, resume_step: int | None, more: Sequence[Logger] = ()
    ) -> None:
        kinds: dict[str, Callable[[], Any]] = {
            "tensorboard": lambda: EventFile(context.tensorboard_dir),
            "csv": lambda: CSVFile(context.run_dir / "metrics.csv", resume_step),
            "wandb": lambda: WandB(context, config),
        }
        self._all: list[Any] = [MetricsFile(context.metrics_path, resume_step)]
        self._all += [kinds[name]() for name in dict.fromkeys(config.loggers)]
        for logger in more:
            if hasattr(logger, "open"):
                logger.open(context, config, resume_step)
            self._all.append(logger)

    @staticmethod
    def check(config: TrainConfig, more: Sequence[Any] = ()) -> None:
        """Refuse, before anything is made, what could not be written to."""
        if "wandb" in config.loggers and find_spec("wandb") is None:
            raise ConfigError([(("loggers",), "wandb is not installed: pip install 'rl_training[wandb]'")])
        for logger in more:
            if not callable(getattr(logger, "write", None)):
                raise ValueError(f"a logger needs write(step, values), and {type(logger).__name__} has none")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for logger in self._all:
            logger.write(step, values)

    def close(self) -> None:
        for logger in self._all:
            if hasattr(logger, "close"):
                logger.close()
