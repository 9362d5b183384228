"""Prepare a run now and train it later, for programs that manage many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import resume_training

__all__ = ["DefaultExperimentManager"]


class DefaultExperimentManager:
    """One run that is new or resumed: ``setup(config).train()`` or ``resume(path).train()``."""

    def __init__(self) -> None:
        self._job: Callable[[], TrainResult] | None = None

    def setup(self, config: TrainConfig, callbacks: list[Callback] | None = None) -> DefaultExperimentManager:
        """Prepare a new run; its options are checked now."""
        spec = get_algorithm_spec(config.algo)
        spec.options(config)
        self._job = lambda: spec.train(config, callbacks=callbacks)
        return self

    def resume(
        self,
        checkpoint_path: str | Path,
        total_timesteps: int | None = None,
        output_dir: str | Path | None = None,
        eval_episodes: int | None = None,
        callbacks: list[Callback] | None = None,
        trust: str | Iterable[str] = (),
    ) -> DefaultExperimentManager:
        """Prepare to resume from a checkpoint; its environment may be imported from the modules in ``trust``."""
        self._job = lambda: resume_training(
            checkpoint_path,
            total_timesteps=total_timesteps,
            output_dir=output_dir,
            eval_episodes=eval_episodes,
            callbacks=callbacks,
            trust=trust,
        )
        return self

    def train(self) -> TrainResult:
        """Train what was prepared."""
        if self._job is None:
            raise ValueError("nothing to train yet: call setup(config) or resume(checkpoint_path) first")
        return self._job()
