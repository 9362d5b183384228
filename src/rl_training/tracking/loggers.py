"""The protocol of a logger, and the set of loggers that a run writes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rl_training.base.options import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import dump_yaml
from rl_training.tracking.csv import CSVFile
from rl_training.tracking.jsonl import MetricsFile
from rl_training.tracking.mlflow import MLflow
from rl_training.tracking.tensorboard import EventFile
from rl_training.tracking.wandb import WandB

if TYPE_CHECKING:
    import numpy as np

    from rl_training.experiment.runs import RunContext

__all__ = ["Logger", "Loggers"]


class Logger:
    """Base class of loggers, which receive every line of metrics of a run; any object with ``write`` serves as well."""

    def open(self, context: RunContext, config: TrainConfig, resume_step: int | None) -> None:
        """Called when a run starts, or resumes at ``resume_step``: lines after that step will be written again."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Called with metrics of training at every log interval, and with those of every evaluation."""

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Called with all values (N,) of what a callback logs by ``trainer.log_histogram``."""

    def text(self, step: int, name: str, text: str) -> None:
        """Called with the config at the start, and with what a callback logs by ``trainer.log_text``."""

    def close(self) -> None:
        """Called when a run ends, also when it fails."""


class Loggers:
    """The loggers of one run: metrics.jsonl (always), those of the config, and objects given to ``learn``."""

    def __init__(
        self, context: RunContext, config: TrainConfig, resume_step: int | None, more: Sequence[Logger] = ()
    ) -> None:
        kinds: dict[str, Callable[[], Any]] = {
            "tensorboard": lambda: EventFile(context.tensorboard_dir),
            "csv": lambda: CSVFile(context.run_dir / "metrics.csv", resume_step),
            "wandb": lambda: WandB(context, config),
            "mlflow": lambda: MLflow(context, config),
        }
        self._all: list[Any] = [MetricsFile(context.metrics_path, resume_step)]
        self._all += [kinds[name]() for name in dict.fromkeys(config.loggers)]
        for logger in more:
            if hasattr(logger, "open"):
                logger.open(context, config, resume_step)
            self._all.append(logger)

    @staticmethod
    def check(config: TrainConfig, more: Sequence[Any] = ()) -> None:
        """Refuse loggers that cannot be used, before the run directory is made."""
        for name in ("wandb", "mlflow"):
            if name in config.loggers and find_spec(name) is None:
                raise ConfigError([(("loggers",), f"{name} is not installed: pip install 'rl_training[{name}]'")])
        for logger in more:
            if not callable(getattr(logger, "write", None)):
                raise ValueError(f"a logger needs write(step, values), and {type(logger).__name__} has none")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for logger in self._all:
            logger.write(step, values)

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        for logger in self._all:
            if hasattr(logger, "histogram"):
                logger.histogram(step, name, values)

    def text(self, step: int, name: str, text: str) -> None:
        for logger in self._all:
            if hasattr(logger, "text"):
                logger.text(step, name, text)

    def show_config(self, step: int, config: TrainConfig) -> None:
        """Write the config as a text."""
        self.text(step, "config", f"```yaml\n{dump_yaml(config.plain())}```")

    def close(self) -> None:
        for logger in self._all:
            if hasattr(logger, "close"):
                logger.close()
