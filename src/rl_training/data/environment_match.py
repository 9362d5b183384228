"""Whether a dataset belongs to an environment, and its transitions in the agent's units."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.data.dataset_options import Units
from rl_training.data.offline_dataset import (
    REFERENCES,
    DatasetError,
    TransitionDataset,
)
from rl_training.envs.factory import EnvFactory, parse_env_kwargs
from rl_training.envs.spaces import Spaces

OUTSIDE = 1e-3  # how far beyond its bounds, in agent units, an action may lie before it is worth a word


def time_limits(factory: EnvFactory) -> set[int]:
    """After how many steps episodes are cut, in this run and by the environment's own limit; empty if neither is known."""
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


def is_of(meta: dict[str, Any], factory: EnvFactory) -> bool:
    """Whether data with these facts was recorded in the run's environment, as far as either of them says."""
    theirs = meta.get("env_id")
    if theirs is None:
        return True
    ours = environment_id(factory)
    return ours is None or str(theirs).rpartition(":")[2] == ours


def of_environment(data: TransitionDataset, factory: EnvFactory, where: str, *, allow: bool) -> TransitionDataset:
    """The data, if it names the run's environment or none. That of another one is refused unless allowed, that of another
    version has a warning, and the reference returns of neither are kept: they would be those of other scores."""
    if is_of(data.meta, factory):
        if data.meta.get("env_id") is not None and environment_id(factory) is None:
            warnings.warn(
                f"{where} was recorded in {data.meta['env_id']}; whether that is the run's environment, which has no id, cannot be told",
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
        f"{where} was recorded in {theirs}, the run's environment is {ours}, {what}; its reference returns are not used",
        stacklevel=2,
    )
    return replace(data, meta={name: value for name, value in data.meta.items() if name not in REFERENCES})


def _compare_options(meta: dict[str, Any], factory: EnvFactory, where: str) -> None:
    """Warn where the environment was made with other arguments than the run's; how long and how it is wrapped is left aside."""
    recorded = meta.get("env_kwargs")
    if meta.get("env_id") is None or not isinstance(recorded, dict) or not isinstance(factory.source, str):
        return
    theirs, ours = (parse_env_kwargs(kwargs, training=False)[1] for kwargs in (recorded, factory.env_kwargs))
    names = [name for name in {**theirs, **ours} if name != "render_mode" and theirs.get(name) != ours.get(name)]
    if names:
        differ = ", ".join(f"{name}={theirs.get(name)!r} (the run: {ours.get(name)!r})" for name in names)
        warnings.warn(f"{where} was recorded in an environment of other options: {differ}", stacklevel=3)


def in_agent_units(
    data: TransitionDataset,
    spaces: Spaces,
    where: str,
    *,
    check_rewards: bool = True,
    units: Units = "environment",
) -> TransitionDataset:
    """Observations, successors and actions as the agent has them; refuses data that is not of this environment.

    ``units`` says what a box's actions are in: the environment's units, [-1, 1], or (auto) the former unless they look like the latter.
    """
    if len(data) == 0:
        raise DatasetError(f"{where} is empty")
    obs, next_obs = (_layout(column.numpy(), spaces, where) for column in (data.obs, data.next_obs))
    given = data.actions.numpy()
    for name, column in (("obs", obs), ("next_obs", next_obs), ("rewards", data.rewards.numpy()), ("actions", given)):
        if name == "rewards" and not check_rewards:
            continue
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            bad = ~np.isfinite(column).reshape(len(column), -1).all(1)
            raise DatasetError(
                f"{where}: {name} holds numbers that are not finite, in {int(bad.sum()):,} rows, the first of them row {int(bad.argmax()):,}"
            )
    if spaces.action_kind == "box":
        actions = _box_actions(data, spaces, where, units)
    else:
        if given.dtype.kind == "f" and not np.array_equal(given, np.round(given)):
            raise DatasetError(f"{where}: actions are not whole numbers, but the environment's are choices")
        if given.size != len(given) * int(np.prod(spaces.action_shape)):
            raise DatasetError(
                f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.action_shape}"
            )
        actions = spaces.from_env(given.reshape(len(given), *spaces.action_shape))
        upper = np.asarray(2 if spaces.action_kind == "multi_binary" else spaces.choices)
        if (actions < 0).any() or (actions >= upper).any():
            raise DatasetError(f"{where}: actions lie beyond those of the environment ({spaces.describe()})")
    return replace(data, obs=obs, next_obs=next_obs, actions=actions)


def _box_actions(data: TransitionDataset, spaces: Spaces, where: str, units: Units) -> np.ndarray:
    given = data.actions.numpy()
    if int(np.prod(given.shape[1:])) != spaces.action_dim:
        raise DatasetError(f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.env_shape}")
    rows = given.reshape(len(given), spaces.action_dim).astype(np.float32)
    recorded = "behaviour" in data.meta or "minari_id" in data.meta  # by us or Minari: as the environment took them
    if units == "auto" and not recorded and _look_scaled(rows, spaces):
        raise DatasetError(
            f"{where}: every action lies within [-1, 1] and some at its edge, but the environment's bounds are wider; say whether "
            "they are scaled (dataset_action_units: unit) or in the environment's own units (environment)"
        )
    actions = rows if units == "unit" else spaces.from_env(given)
    beyond = float(np.abs(actions).max())
    if beyond > 1 + OUTSIDE:
        stated = "scaled to [-1, 1], as was said" if units == "unit" else "in the environment's own units"
        raise DatasetError(
            f"{where}: actions lie up to {beyond:.3g} times as far out as the environment's bounds (where it has none: as 1); "
            f"they should be {stated}"
        )
    return np.clip(actions, -1, 1)


def _look_scaled(rows: np.ndarray, spaces: Spaces) -> bool:
    """Whether (N, A) actions seem to be in [-1, 1] although the bounds lie further out: they come close to 1, never beyond it."""
    wider = np.isfinite(spaces.low) & np.isfinite(spaces.high) & (spaces.low < -1.05) & (spaces.high > 1.05)
    if not wider.any() or len(rows) < 100:
        return False
    return 0.98 < float(np.abs(rows[:, wider]).max()) <= 1 + OUTSIDE


def _layout(column: np.ndarray, spaces: Spaces, where: str) -> np.ndarray:
    shape = column.shape[1:]
    if shape != spaces.obs_shape and spaces.channels_last and shape[-1:] + shape[:-1] == spaces.obs_shape:
        column = np.moveaxis(column, -1, 1)
    elif shape != spaces.obs_shape:
        raise DatasetError(f"{where}: observations have shape {shape}, the environment's {spaces.obs_shape}")
    if spaces.image and column.dtype != np.uint8:
        low, high = float(column.min()), float(column.max())
        whole = column.dtype.kind != "f" or np.array_equal(column, np.round(column))
        if low < 0 or high > 255 or not whole:
            raise DatasetError(
                f"{where}: pictures must be whole numbers from 0 to 255, got {column.dtype} from {low:g} to {high:g}"
            )
    return column.astype(spaces.obs_dtype, copy=False)
