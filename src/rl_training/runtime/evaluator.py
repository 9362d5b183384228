"""Evaluations on a run's way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.base.saved import Saved
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film, video_suffix
from rl_training.experiment.checkpointing import raise_on_mismatch
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.counters import Counters
from rl_training.runtime.evaluation import evaluate, scored

__all__ = ["Evaluator"]


Announce = Callable[[str], None]
Stop = Callable[[], bool]


class Evaluator:
    """Evaluates a run's agent, films it if the config says so, and knows the best mean return so far."""

    def __init__(
        self, config: TrainConfig, factory: EnvFactory, videos_dir: Path, announce: Announce, stop: Stop | None = None
    ) -> None:
        """``stop`` is asked before every step whether the evaluation is to be given up."""
        self._stop = stop
        self._config, self._factory, self._videos_dir, self._announce = config, factory, videos_dir, announce
        self.best: float | None = None  # mean return of the best evaluation so far
        self.metrics: dict[str, float] = {}  # of the last evaluation
        self.step = -1  # of the last evaluation

    def recall(self, metadata: dict[str, Any]) -> None:
        """Take over what a checkpoint says of the evaluations before it."""
        with raise_on_mismatch():
            saved = Saved({"best_eval": None, "last_eval": None, **metadata}, (), ("best_eval", "last_eval", *metadata))
            last = saved["last_eval"] or {}
            metrics = Saved(last, (), last)
            self.metrics = {name: metrics.number(name, finite=False) for name in last}
            self.best = None if saved["best_eval"] is None else saved.number("best_eval", finite=False)

    def evaluate(self, agent: Learner, run: Counters) -> bool:
        """Replace ``metrics`` by those of the agent as it is; True if it is the best so far. An evaluation that is
        given up raises ``EvaluationStopped`` and changes nothing."""
        film = self._film(run.step)
        factory = self._factory if film is None else replace(self._factory, render=True)
        with film or contextlib.nullcontext():
            metrics = evaluate(
                agent,
                factory,
                episodes=self._config.eval_episodes,
                seed=self._config.seed,
                watch=film,
                stop=self._stop,
                log_info=self._config.log_info,
            )
        self.metrics, self.step = scored(metrics, run.references), run.step
        improved = self.best is None or metrics["eval_return_mean"] > self.best
        if improved:
            self.best = metrics["eval_return_mean"]
        return improved

    def _film(self, step: int) -> Film | None:
        if not self._config.record_video:
            return None
        path = self._videos_dir / f"step_{step:010d}{video_suffix()}"
        return Film(path, episodes=self._config.record_video, on_failure=self._announce)
