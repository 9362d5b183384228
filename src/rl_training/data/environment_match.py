"""Whether a dataset was recorded in a run's environment."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import REFERENCES, TransitionDataset
from rl_training.envs.factory import EnvFactory
from rl_training.envs.options import parse_env_kwargs

__all__ = ["environment_id", "match_environment", "recorded_in", "time_limits"]


def time_limits(factory: EnvFactory) -> set[int]:
    """The time limits of episodes in steps: the run's and the environment's own, where they are known."""
    own = replace(factory, env_kwargs=_without_limit(factory.env_kwargs))
    return {limit for limit in (factory.time_limit(), own.time_limit()) if limit is not None}


def _without_limit(kwargs: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    return {name: _without_limit(value) if name == "training" else value for name, value in rest.items()}


def environment_id(factory: EnvFactory) -> str | None:
    """The registered name of the run's environment; None if it was given as an object that has none."""
    if isinstance(factory.source, str):
        return factory.source.rpartition(":")[2]  # without the module that registers it
    env = factory.make(training=False)
    try:
        return env.spec.id if env.spec is not None else None
    finally:
        env.close()


def recorded_in(factory: EnvFactory, meta: dict[str, Any]) -> bool:
    """Whether data with this ``meta`` was recorded in the run's environment; also if one of the two has no id."""
    theirs = meta.get("env_id")
    if theirs is None:
        return True
    ours = environment_id(factory)
    return ours is None or str(theirs).rpartition(":")[2] == ours


def match_environment(data: TransitionDataset, factory: EnvFactory, where: str, *, allow: bool) -> TransitionDataset:
    """The data, if it names the run's environment or none. Data of another one is refused unless ``allow``, data of
    another version leads to a warning, and both lose their reference returns, which belong to other rewards."""
    if recorded_in(factory, data.meta):
        if data.meta.get("env_id") is not None and environment_id(factory) is None:
            warnings.warn(
                f"{where} was recorded in {data.meta['env_id']}; whether that is the run's environment, "
                "which has no id, cannot be seen",
                stacklevel=2,
            )
        _compare_options(data.meta, factory, where)
        return data
    theirs, ours = str(data.meta["env_id"]).rpartition(":")[2], str(environment_id(factory))
    version = re.compile(r"-v\d+$")
    same_name = version.sub("", theirs) == version.sub("", ours)
    if not same_name and not allow:
        raise DatasetError(
            f"{where} was recorded in {theirs}, not in {ours}; dataset_env_mismatch: allow learns from it all the same"
        )
    what = "another version: rewards and terminations may differ" if same_name else "another environment"
    warnings.warn(
        f"{where} was recorded in {theirs}, the run's environment is {ours}, {what}; "
        "its reference returns are not used",
        stacklevel=2,
    )
    return replace(data, meta={name: value for name, value in data.meta.items() if name not in REFERENCES})


def _compare_options(meta: dict[str, Any], factory: EnvFactory, where: str) -> None:
    """Warn where the environment was made with other arguments than the run's, time limits and wrappers aside."""
    recorded = meta.get("env_kwargs")
    if meta.get("env_id") is None or not isinstance(recorded, dict) or not isinstance(factory.source, str):
        return
    theirs, ours = (parse_env_kwargs(kwargs, training=False)[1] for kwargs in (recorded, factory.env_kwargs))
    names = [name for name in {**theirs, **ours} if name != "render_mode" and theirs.get(name) != ours.get(name)]
    if names:
        differ = ", ".join(f"{name}={theirs.get(name)!r} (the run: {ours.get(name)!r})" for name in names)
        warnings.warn(f"{where} was recorded in an environment of other options: {differ}", stacklevel=3)
