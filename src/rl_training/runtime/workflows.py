"""What can be done with a checkpoint: evaluate, predict, resume. Nothing here knows any algorithm."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from rl_training.base.errors import reason
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import CheckpointError, CheckpointState, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint, run_dir_of
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainResult

__all__ = [
    "config_of",
    "evaluate_checkpoint",
    "find_checkpoint",
    "predict_checkpoint",
    "resume_training",
]


def config_of(state: CheckpointState) -> TrainConfig:
    """The config of the run that a checkpoint was saved by."""
    try:
        return TrainConfig(**state.config)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's config does not hold: {reason(error)}") from None


def find_checkpoint(path: str | Path, *, buffers: bool) -> tuple[Path, CheckpointState]:
    """Load a checkpoint file, or the newest whole one of a run directory."""
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
    """Evaluate the agent of a checkpoint, or of the newest one of a run."""
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return get_algorithm_spec(config.algo).evaluate_fn(config, state, device, num_episodes, deterministic)


def predict_checkpoint(path: str | Path, obs: Any, deterministic: bool = True, device: str = "auto") -> Any:
    """The action of a checkpoint's agent for an observation, in the environment's units."""
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
    """Resume from a checkpoint or the newest one of a run, in the same directory unless another is given.

    ``context`` passes again what the run was started with: ``env=``, ``network=``, ``loggers=``.
    """
    found, state = find_checkpoint(path, buffers=True)
    given = {"total_timesteps": total_timesteps, "output_dir": output_dir, "eval_episodes": eval_episodes}
    config = config_of(state).replace(**{name: value for name, value in given.items() if value is not None})
    same = run_dir_of(found) if output_dir is None and run_suffix is None else None
    return get_algorithm_spec(config.algo).train(
        config, run_suffix=run_suffix, checkpoint_state=state, callbacks=callbacks, run_dir=same, **context
    )
