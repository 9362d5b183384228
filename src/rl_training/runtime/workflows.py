"""What can be done with a checkpoint: evaluate, predict, resume. Nothing here knows any algorithm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import reason
from rl_training.base.files import lock_folder
from rl_training.base.options import ConfigError
from rl_training.base.trust import require_trusted, trust_modules
from rl_training.experiment.checkpointing import CheckpointError, CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import find_checkpoint, named_checkpoint, run_dir_of
from rl_training.experiment.yaml_config import apply_overrides, full_names
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.saving import refuse_agent_alone
from rl_training.runtime.trainer import TrainResult

if TYPE_CHECKING:
    from rl_training.runtime.spec import AlgorithmSpec

__all__ = [
    "changed_config",
    "config_of",
    "evaluate_checkpoint",
    "find_checkpoint",
    "predict_checkpoint",
    "resume_training",
]


def config_of(state: CheckpointState, *, env: Any = None) -> TrainConfig:
    """The config of the run that a checkpoint was saved by.

    The module that its environment comes from must be trusted, unless the caller has an environment (``env``), and so
    must those of its wrappers.
    """
    try:
        config = TrainConfig(**state.config)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's config does not hold: {reason(error)}") from None
    require_trusted("the checkpoint", config.env_id if env is None else None, config.env_kwargs)
    spaces = state.metadata.get("spaces")
    older = not isinstance(spaces, dict) or (bool(spaces.get("choices")) and "masked" not in spaces)
    if older and "action_masks" not in config.env_kwargs:  # written before masks of actions were looked for
        config = config.replace(env_kwargs={**config.env_kwargs, "action_masks": False})
    return config


def _without_buffers(
    path: str | Path, trust: str | Iterable[str]
) -> tuple[AlgorithmSpec, TrainConfig, CheckpointState]:
    """A checkpoint, or the newest one of a run, as far as an agent that does not learn needs it."""
    trust_modules(trust)
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return get_algorithm_spec(config.algo), config, state


def evaluate_checkpoint(
    path: str | Path,
    num_episodes: int | None = None,
    device: str = "auto",
    deterministic: bool = True,
    *,
    trust: str | Iterable[str] = (),
) -> dict[str, float]:
    """Evaluate the agent of a checkpoint, or of the newest one of a run.

    ``trust`` names modules that the file's environment may be imported from.
    """
    spec, config, state = _without_buffers(path, trust)
    return spec.evaluate_fn(config, state, device, num_episodes, deterministic)


def predict_checkpoint(
    path: str | Path,
    obs: Any,
    deterministic: bool = True,
    device: str = "auto",
    *,
    trust: str | Iterable[str] = (),
) -> Any:
    """The action of a checkpoint's agent for an observation, in the environment's units; ``trust`` as above."""
    spec, config, state = _without_buffers(path, trust)
    return spec.predict_fn(config, state, device, obs, deterministic)


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    eval_episodes: int | None = None,
    set: Mapping[str, Any] | None = None,
    run_suffix: str | None = None,
    callbacks: list[Callback] | None = None,
    trust: str | Iterable[str] = (),
    **context: Any,
) -> TrainResult:
    """Resume from a checkpoint or the newest one of a run, in the same directory unless another is given.

    ``set`` changes options by their names in a config (``{"algo_kwargs.eval_interval": 500}``): those on which nothing
    depends that is learned, ``CHANGEABLE`` of TrainConfig and of AlgorithmOptions. Any other change is refused.
    A checkpoint that lies in no run directory needs ``output_dir``: what it names itself is not written to.
    ``context`` passes again what the run was started with: ``env=``, ``network=``, ``loggers=``. ``trust`` names
    modules that the file's environment may be imported from.
    """
    trust_modules(trust)
    given = {"total_timesteps": total_timesteps, "output_dir": output_dir, "eval_episodes": eval_episodes}
    same = _run_dir(named_checkpoint(path)) if output_dir is None and run_suffix is None else None
    # locked before the checkpoint is chosen: another process may be about to write a newer one
    with lock_folder(same) if same is not None else contextlib.nullcontext():
        found, state = find_checkpoint(path, buffers=True)
        config = config_of(state, env=context.get("env"))
        config = changed_config(config, set or {})
        config = config.replace(**{name: value for name, value in given.items() if value is not None})
        refuse_agent_alone(state)
        if output_dir is None and run_dir_of(found) is None:
            raise CheckpointError(
                f"{found} lies in no run directory: say where the resumed run shall be, "
                "with --output-dir (output_dir=...)"
            )
        return get_algorithm_spec(config.algo).train(
            config,
            run_suffix=run_suffix,
            checkpoint_state=state,
            callbacks=callbacks,
            run_dir=same,
            **context,
        )


def changed_config(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of a run that goes on with other values of options, given by dotted name.

    A run whose learning would change is another run: such changes are refused, and so are unknown names.
    """
    if not changes:
        return config
    values, spec = config.plain(), get_algorithm_spec(config.algo)
    before = deepcopy(values)
    changes = full_names(values, changes)
    apply_overrides(values, changes)
    new = TrainConfig(**values)
    spec.options(new)
    may = (*TrainConfig.CHANGEABLE, *(f"algo_kwargs.{name}" for name in spec.config.CHANGEABLE))
    for name in changes:
        within = any(name == known or name.startswith(f"{known}.") for known in may)
        if not within and _at(values, name) != _at(before, name):
            raise ConfigError([((name,), _cannot_change(may))])
    return new


def _at(values: Mapping[str, Any], dotted: str) -> Any:
    for part in dotted.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None  # type: ignore[assignment]
    return values


def _cannot_change(may: Iterable[str]) -> str:
    return (
        "cannot change while a run goes on, because what it learns would no longer be one run's; start a new run with "
        f"its networks instead (train --init-from RUN, or init_from=). These can change: {', '.join(may)}"
    )


def _run_dir(path: Path) -> Path | None:
    """The run directory that a path is or lies in, if there is one."""
    if path.is_dir():
        return run_dir_of(path / "checkpoints" / "any")
    return run_dir_of(path) if path.exists() else None
