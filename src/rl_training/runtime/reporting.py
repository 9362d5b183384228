"""The metrics of a run, and where they are shown."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rl_training.algorithms.base import UpdateResult
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import option_text
from rl_training.experiment.runs import RunContext, read_metadata, write_metadata
from rl_training.runtime.notes import Notes
from rl_training.tracking.figures import short
from rl_training.tracking.loggers import Logger, Loggers
from rl_training.tracking.progress import Progress

__all__ = ["Reporter"]


RESERVED = {
    *("step", "time", "global_step", "gradient_steps", "update_count", "epoch", "episodes", "episode_return"),
    *("episode_length", "success_rate", "lr_scale", "learning_rate"),
}
CURVES = (  # names begin so
    *("success_rate", "eval_success_rate", "info/", "eval_info/"),
    *("agent_return/", "eval_agent_return/"),
)
EVALUATIONS = ("eval_return_", "eval_length_", "eval_episodes", "eval_score", "eval_success_rate")  # names begin so


def plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as numbers of Python's."""
    return {name: value if type(value) is int else float(value) for name, value in metrics.items()}


class Reporter:
    """Gathers the metrics of learner and loop, and writes them to the run's loggers and the terminal."""

    def __init__(self, config: TrainConfig, loggers: Sequence[Logger] = ()) -> None:
        self._config, self._own_loggers = config, loggers
        self._loggers: Loggers | None = None
        self.progress = Progress("off", title="", total=1, start=0)  # until ``open``
        self._title = f"{config.algo} {config.env_id}"
        self.update: UpdateResult | None = None  # the learner's last one
        self._notes: dict[str, float] = {}
        self._logged: dict[str, float] = {}  # numbers of callbacks that no line has yet
        self._warned: set[str] = set()
        self._context: RunContext | None = None

    def open(self, context: RunContext, step: int, *, logged: int | None) -> None:
        """``logged``: the step up to which a resumed run keeps the lines that there are; None for a new run."""
        config, self._context = self._config, context
        self._loggers = Loggers(context, config, logged, self._own_loggers)
        self._loggers.show_config(step, config)
        self.progress = Progress(config.progress, title=self._title, total=config.total_timesteps, start=step)

    def announce_start(self, context: RunContext, engine: str, chosen: Mapping[str, Any]) -> None:
        """Print where the run's files are, how updates run, and which options were chosen for the task."""
        self.progress.say(f"{self._title}: run directory {context.run_dir}")
        self.progress.say(f"{self._title}: {engine}")
        if chosen:
            options = ", ".join(f"{name} {option_text(value)}" for name, value in chosen.items())
            self.progress.say(f"chosen for this task, unless set: {options}")

    def close(self, step: int) -> None:
        self.progress.close(step)
        if self._loggers is not None:
            self._loggers.close()

    def note(self, **metrics: float) -> None:
        """Metrics of the loop's own, reported with the learner's until they are replaced."""
        self._notes.update(metrics)

    def metrics(self, *more: Mapping[str, float]) -> dict[str, float]:
        """The last update's metrics, the notes, and ``more``; later ones replace earlier ones of the same name."""
        merged = dict(self.update.metrics) if self.update is not None else {}
        for metrics in (self._notes, *more):
            merged.update(metrics)
        return merged

    def note_in(self, notes: Notes) -> None:
        """Add the metrics that lines show until they are replaced to a checkpoint's notes."""
        notes.update_metrics = plain(self.update.metrics) if self.update is not None else {}
        notes.loop_metrics = plain(self._notes)
        notes.logged = dict(self._logged)

    def go_on(self, notes: Notes) -> None:
        """Show the metrics that a checkpoint notes until they are replaced."""
        self.update = UpdateResult(notes.update_metrics, 0) if notes.update_metrics else None
        self._notes = dict(notes.loop_metrics)
        self._logged = dict(notes.logged)

    def log_number(self, name: str, value: Any) -> None:
        """A number of a callback's, for the next line; a later one of the same name replaces it."""
        if not isinstance(name, str) or not name or name in RESERVED or name.startswith(EVALUATIONS):
            raise ValueError(f"trainer.log: a number cannot be called {name!r}, which the run itself uses")
        try:
            self._logged[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"trainer.log: {name} must be a number, got {value!r:.60}") from None

    def flush(self, step: int) -> None:
        """Write callbacks' numbers as a line of their own, if there are any."""
        logged, self._logged = self._apart(self._logged, {}) if self._logged else {}, {}
        if logged:
            self._to_loggers(step, logged, logged)

    @contextlib.contextmanager
    def line_of_its_own(self, step: int, *, write: bool = True) -> Iterator[None]:
        """Write the numbers that are logged within as a line, or drop them; those logged before wait for theirs."""
        waiting, self._logged = self._logged, {}
        yield
        if write:
            self.flush(step)
        self._logged = waiting

    def write_histogram(self, step: int, name: str, values: Any) -> None:
        if hasattr(values, "detach"):
            values = values.detach().cpu().numpy()
        array = np.asarray(values, np.float64).ravel()
        array = array[np.isfinite(array)]
        if self._loggers is not None and array.size:
            self._loggers.histogram(step, name, array)

    def write_text(self, step: int, name: str, text: str) -> None:
        if self._loggers is not None:
            self._loggers.text(step, name, text)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line of training metrics."""
        self._write(step, metrics)
        if "episode_return" in metrics:
            self.progress.note(episodes=f"return {short(metrics['episode_return'])}{_success(metrics, '')}")
        self.progress.point(step, episodes=metrics.get("episode_return"))
        self.progress.log(step)

    def log_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write(step, metrics)
        self.progress.note(evaluation=f"eval {short(metrics['eval_return_mean'])}{_success(metrics, 'eval_')}")
        self.progress.point(step, evaluation=metrics["eval_return_mean"])

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        logged, self._logged = self._logged, {}
        if logged:
            metrics = {**self._apart(logged, metrics), **metrics}
        self._to_loggers(step, metrics, logged)

    def _to_loggers(self, step: int, metrics: Mapping[str, float], logged: Mapping[str, float]) -> None:
        names = {name for name in metrics if name in logged or name.startswith(CURVES)}
        if names and self._context is not None and not names <= self._curves:  # reports draw them
            self._curves |= names
            write_metadata(self._context, {"curves": sorted(self._curves)})
        if self._loggers is not None:
            self._loggers.write(step, metrics)

    @cached_property
    def _curves(self) -> set[str]:
        """Metrics beside returns that have curves of their own, by the run's metadata at first."""
        saved = {} if self._context is None else read_metadata(self._context)
        return {name for name in saved.get("curves") or [] if isinstance(name, str)}

    def _apart(self, logged: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
        """Callbacks' numbers without those that have the name of one of the run's own, which are mentioned once."""
        own = self.metrics(metrics).keys()
        for name in sorted(logged.keys() & own - self._warned):
            self._warned.add(name)
            warnings.warn(f"a callback logs {name!r}, which the run logs itself: the run's own is kept", stacklevel=2)
        return {name: value for name, value in logged.items() if name not in own}


def _success(metrics: Mapping[str, float], prefix: str) -> str:
    rate = metrics.get(f"{prefix}success_rate")
    return "" if rate is None else f", {rate:.0%} succeed"
