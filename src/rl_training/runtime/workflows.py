"""What can be done with a checkpoint: evaluate, predict, resume. Nothing here knows any algorithm."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint, run_dir_of
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainResult


def config_of(state: CheckpointState) -> TrainConfig:
    return TrainConfig(**state.config)


def find_checkpoint(path: str | Path, *, buffers: bool) -> tuple[Path, CheckpointState]:
    """A checkpoint file, or the newest whole one of a run directory."""
    path = Path(path)
    if not path.is_dir():
        return path, load_checkpoint(path, buffers=buffers)
    found, state, problems = newest_checkpoint(path, buffers=buffers)
    for problem in problems:
        warnings.warn(f"{problem}; going back to {found.name}", stacklevel=2)
    return found, state


def evaluate_checkpoint(
    path: str | Path, num_episodes: int | None = None, device: str = "auto", deterministic: bool = True
) -> dict[str, float]:
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return get_algorithm_spec(config.algo).evaluate_fn(config, state, device, num_episodes, deterministic)


def predict_checkpoint(path: str | Path, obs: Any, deterministic: bool = True, device: str = "auto") -> Any:
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return get_algorithm_spec(config.algo).predict_fn(config, state, device, obs, deterministic)


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    eval_episodes: int | None = None,
    run_suffix: str | None = None,
    callbacks: list[Callback] | None = None,
    **context: Any,
) -> TrainResult:
    """Go on from a checkpoint or the newest one of a run, in the same directory unless another is asked for.

    ``context`` passes again what the run was started with: ``env=``, ``network=``, ``loggers=``.
    """
    found, state = find_checkpoint(path, buffers=True)
    wanted = {"total_timesteps": total_timesteps, "output_dir": output_dir, "eval_episodes": eval_episodes}
    config = config_of(state).replace(**{name: value for name, value in wanted.items() if value is not None})
    same = run_dir_of(found) if output_dir is None and run_suffix is None else None
    return get_algorithm_spec(config.algo).train(
        config, run_suffix=run_suffix, checkpoint_state=state, callbacks=callbacks, run_dir=same, **context
    )
