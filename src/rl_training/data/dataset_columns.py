"""Columns of a dataset as files have them, checked: names, types, lengths, and successors where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.data.errors import DatasetError

__all__ = ["REQUIRED", "Columns", "add_successors", "read_columns"]

Columns = dict[str, np.ndarray]

SPELLINGS = {  # our names: other names that are read too
    "obs": ("observations",),
    "next_obs": ("next_observations",),
    "terminations": ("terminals", "terminated"),
    "truncations": ("timeouts", "truncated"),
    "episode_ids": ("episode_id",),
}
FLAGS = ("terminations", "truncations", "dones")
REQUIRED = ("obs", "actions", "rewards", "next_obs", "dones")
KNOWN = (*REQUIRED, "next_actions", "returns_to_go", "terminations", "truncations", "episode_ids")


def read_columns(data: Mapping[str, Any], where: str) -> Columns:
    """The columns that a dataset can use, under our names, as arrays of types that torch has; ``meta`` is left out."""
    columns = {name: _array(value, name, where) for name, value in data.items() if name != "meta"}
    for ours, others in SPELLINGS.items():
        for other in others:
            if other in columns:
                columns.setdefault(ours, columns.pop(other))
    missing = [name for name in ("obs", "actions", "rewards") if name not in columns]
    missing += [] if "terminations" in columns or "dones" in columns else ["terminations (or dones)"]
    if missing:
        raise DatasetError(f"{where} lacks {', '.join(missing)}; it has {', '.join(sorted(columns)) or 'nothing'}")
    columns = {name: _checked(columns[name], name, where) for name in KNOWN if name in columns}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"{where}: every column must have the same length, got {lengths}")
    if "next_obs" in columns and columns["obs"].shape != columns["next_obs"].shape:
        shapes = f"{columns['obs'].shape[1:]} and {columns['next_obs'].shape[1:]}"
        raise DatasetError(f"{where}: obs and next_obs have rows of different shape, {shapes}")
    return columns


def add_successors(columns: Columns) -> Columns:
    """Add ``next_obs`` from the row below. The observation after a truncation is unknown: that row is left out."""
    obs, terminated, truncated = columns["obs"], columns["dones"], columns["truncations"]
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[terminated] = obs[terminated]  # never used: nothing bootstraps there
    lost = truncated & ~terminated
    known = ~lost
    known[-1:] = terminated[-1:]
    # the row before one that is left out ends what is left of its episode
    before = np.zeros(len(obs), bool)
    before[:-1] = lost[1:] & known[:-1] & ~terminated[:-1]
    columns = {**columns, "next_obs": next_obs, "truncations": truncated | before}
    return {name: column[known] for name, column in columns.items()}


def _array(value: Any, name: str, where: str) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError:
        raise DatasetError(f"{where}: {name} holds rows of different length") from None


def _checked(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """Numbers of a type that torch has, a row for each transition; flags are 0 or 1."""
    if column.ndim == 0 or column.dtype.kind not in "buif":
        raise DatasetError(
            f"{where}: {name} must be numbers with a row for each transition, "
            f"got {column.dtype} of shape {column.shape}"
        )
    if 0 in column.shape[1:]:
        raise DatasetError(f"{where}: {name} has rows without any number, of shape {column.shape[1:]}")
    if name == "episode_ids":
        return _scalars(column, name, where)
    if name in ("rewards", "returns_to_go", *FLAGS):
        column = _scalars(column, name, where)
        if name in FLAGS and not np.isin(column, (0, 1)).all():
            odd = column[~np.isin(column, (0, 1))][0]
            raise DatasetError(f"{where}: {name} must be 0 or 1, got {odd:g}")
        return _float32(column)
    return _float32(column) if column.dtype.kind == "f" else _whole(column, name, where)


def _whole(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """Whole numbers in a type that torch has."""
    largest = np.iinfo(np.int64).max
    if column.dtype.kind == "u" and column.dtype.itemsize == 8 and len(column) and column.max() > largest:
        raise DatasetError(f"{where}: {name} holds whole numbers that are too large")
    small = column.dtype.kind == "b" or column.dtype in (np.uint8, np.int8, np.int16, np.int32)
    return column.astype(column.dtype.newbyteorder("=") if small else np.int64, copy=False)


def _float32(column: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what does not fit is infinite, and refused as such
        return column.astype(np.float32, copy=False)


def _scalars(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """One number per row; (N, 1) is that too."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise DatasetError(
            f"{where}: {name} must be one number per transition, got {column.dtype} of shape {column.shape}"
        )
    return column
