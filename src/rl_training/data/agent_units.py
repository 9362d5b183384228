"""Recorded transitions in the agent's units: observations in the networks' layout, actions in [-1, 1] or as indices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_training.data.dataset_options import Units
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.spaces import Spaces

__all__ = ["in_agent_units"]

OUTSIDE = 1e-3  # how far beyond [-1, 1] an action may lie through rounding


def in_agent_units(
    data: TransitionDataset,
    spaces: Spaces,
    where: str,
    *,
    check_rewards: bool = True,
    units: Units = "environment",
) -> TransitionDataset:
    """Observations, successors and actions as the agent has them; refuses data that does not fit the environment's
    spaces.

    ``units`` is what a box's actions are in: the environment's units, [-1, 1], or (auto) the former unless they look
    like the latter.
    """
    if len(data) == 0:
        raise DatasetError(f"{where} is empty")
    if spaces.mixed:
        _require_parts(data, spaces, where)
    obs, next_obs = (_observations(column.numpy(), spaces, where) for column in (data.obs, data.next_obs))
    numbers = {"obs": obs, "next_obs": next_obs, "rewards": data.rewards.numpy(), "actions": data.actions.numpy()}
    for name, column in numbers.items():
        if name != "rewards" or check_rewards:
            _require_finite(column, name, where)
    if spaces.action_kind == "box":
        actions = _box_actions(data, spaces, where, units)
    else:
        actions = _index_actions(data, spaces, where)
    return replace(data, obs=obs, next_obs=next_obs, actions=actions)


def _require_parts(data: TransitionDataset, spaces: Spaces, where: str) -> None:
    """Refuse rows of parts that were not recorded as this environment's, by ``Recorder``."""
    assert spaces.parts is not None
    if data.meta.get("parts") != spaces.parts.facts():
        raise DatasetError(
            f"{where}: observations that mix images and vectors ({spaces.parts.describe()}) are read only from what "
            "this package recorded in the same environment"
        )
    for column in (data.obs, data.next_obs):
        rows = column.numpy()
        if rows.dtype != spaces.obs_dtype or rows.shape[1:] != spaces.obs_shape:
            raise DatasetError(f"{where}: observations are no rows of {spaces.parts.describe()}")
        _require_finite(spaces.parts.floats_of(np.ascontiguousarray(rows)), "obs", where)


def _require_finite(column: np.ndarray, name: str, where: str) -> None:
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        bad = ~np.isfinite(column).reshape(len(column), -1).all(1)
        raise DatasetError(
            f"{where}: {name} holds numbers that are not finite, in {int(bad.sum()):,} rows, "
            f"the first of them row {int(bad.argmax()):,}"
        )


def _index_actions(data: TransitionDataset, spaces: Spaces, where: str) -> np.ndarray:
    given = data.actions.numpy()
    if given.dtype.kind == "f" and not np.array_equal(given, np.round(given)):
        raise DatasetError(f"{where}: actions are not whole numbers, but the environment's are choices")
    if given.size != len(given) * int(np.prod(spaces.action_shape)):
        raise DatasetError(f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.action_shape}")
    actions = spaces.from_env(given.reshape(len(given), *spaces.action_shape))
    upper = np.asarray(2 if spaces.action_kind == "multi_binary" else spaces.choices)
    if (actions < 0).any() or (actions >= upper).any():
        raise DatasetError(f"{where}: actions lie beyond those of the environment ({spaces.describe()})")
    return actions


def _box_actions(data: TransitionDataset, spaces: Spaces, where: str, units: Units) -> np.ndarray:
    given = data.actions.numpy()
    if int(np.prod(given.shape[1:])) != spaces.action_dim:
        raise DatasetError(f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.env_shape}")
    rows = given.reshape(len(given), spaces.action_dim).astype(np.float32)
    recorded = "behaviour" in data.meta or "minari_id" in data.meta  # by us or Minari: as the environment took them
    if units == "auto" and not recorded and _look_scaled(rows, spaces):
        raise DatasetError(
            f"{where}: every action lies within [-1, 1] and some at its edge, but the environment's bounds are wider; "
            "set dataset_action_units to unit if they are scaled, or to environment if they are in its own units"
        )
    actions = rows if units == "unit" else spaces.from_env(given)
    beyond = float(np.abs(actions).max())
    if beyond > 1 + OUTSIDE:
        stated = (
            "scaled to [-1, 1], as dataset_action_units has it" if units == "unit" else "in the environment's own units"
        )
        raise DatasetError(
            f"{where}: actions lie up to {beyond:.3g} times as far out as the environment's bounds (where it has none: "
            f"as 1); they should be {stated}"
        )
    clipped: np.ndarray = np.clip(actions, -1, 1)
    return clipped


def _look_scaled(rows: np.ndarray, spaces: Spaces) -> bool:
    """Whether actions (N, A) seem to be in [-1, 1] although the bounds lie further out: close to 1, never beyond it."""
    wider = np.isfinite(spaces.low) & np.isfinite(spaces.high) & (spaces.low < -1.05) & (spaces.high > 1.05)
    if not wider.any() or len(rows) < 100:
        return False
    return 0.98 < float(np.abs(rows[:, wider]).max()) <= 1 + OUTSIDE


def _observations(column: np.ndarray, spaces: Spaces, where: str) -> np.ndarray:
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
                f"{where}: images must be whole numbers from 0 to 255, got {column.dtype} from {low:g} to {high:g}"
            )
    return column.astype(spaces.obs_dtype, copy=False)
