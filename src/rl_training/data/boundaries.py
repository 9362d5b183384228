"""Where the episodes of recorded transitions end: by their marks, their successors, or the environment's time limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TimeLimit = int | None | Callable[[], Collection[int]]  # steps, or a function that lists the limits in question
BLOCK = 65_536  # rows that are compared at once


class DatasetError(ValueError):
    """Data that cannot be learned from, and what is wrong with it."""


@dataclass
class Boundaries:
    """Terminated rows and cut rows, (N,) booleans, and what had to be assumed to find them."""

    over: np.ndarray
    cut: np.ndarray
    successors: bool  # next_obs can be used
    assumed_steps: int | None = None  # unmarked episodes were taken to be cut after so many steps
    notes: list[str] = field(default_factory=list)


def find_boundaries(
    columns: Mapping[str, np.ndarray], where: str, time_limit: TimeLimit, facts: Mapping[str, Any]
) -> Boundaries:
    """The ends of episodes in ``columns``, which hold ``obs``, ``terminations`` or ``dones``, and what else there is.

    Marks decide where there are any: ``truncations``, ``dones`` beside ``terminations``, ``episode_ids``. Otherwise a row that
    is not followed by its own successor was cut, and where there are no successors either, an episode ends at the time limit.
    """
    over, cut, vague = _marked(columns, where)
    limits = _Limits(time_limit, facts, where)
    found = Boundaries(over, np.zeros(len(over), bool) if cut is None else cut, successors="next_obs" in columns)
    gaps = find_gaps(columns["obs"], columns["next_obs"]) if found.successors else None
    recorded = "minari_id" in facts or "behaviour" in facts  # step by step, so that successors are the true ones
    shifted = gaps is not None and not gaps.any() and _taken_from_the_row_below(columns["obs"], over, cut, limits)
    if shifted and not recorded:
        found.successors, gaps = False, None
        found.notes.append(
            f"{where}: next_obs is the next row's observation even where an episode ends; "
            "the last transitions of cut episodes are left out"
        )
    if cut is not None:
        return found
    if vague:
        at_limit = over & limits.reached(over)
        if at_limit.any():
            found.over, found.cut = over & ~at_limit, at_limit
            found.assumed_steps = limits.steps
            found.notes.append(
                f"{where} has dones but neither terminations nor truncations: the {int(at_limit.sum()):,} episodes that end "
                f"after {limits.steps:,} steps, the time limit, are taken as cut, the others as terminated"
            )
    ended = found.over | found.cut
    if gaps is not None:
        if in_order(gaps, ended):
            found.cut = found.cut | (gaps & ~found.over)
            found.cut[-1:] |= (limits.reached(found.over | found.cut) & ~found.over)[-1:]
        return found
    if not limits.known:
        raise DatasetError(
            f"{where} has neither truncations (timeouts) nor next_obs, and no time limit is known: where its episodes were cut "
            "cannot be seen; add one of the two (truncations of zeros if none was cut), or give dataset_episode_steps (dataset info: --episode-steps or --env)"
        )
    at_limit = limits.reached(ended) & ~ended
    if at_limit.any():
        found.cut = found.cut | at_limit
        found.assumed_steps = limits.steps
        found.notes.append(
            f"{where} has no truncations (timeouts) and no next_obs: {int(at_limit.sum()):,} episodes were cut after "
            f"{limits.steps:,} steps, the time limit, and their last transitions left out"
        )
    return found


def find_gaps(obs: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """(N,) booleans: rows whose successor is not the observation of the next row; never the last one."""
    n = len(obs)
    gaps = np.zeros(n, bool)
    exact = obs.dtype.kind != "f" and next_obs.dtype.kind != "f"
    for start in range(0, n - 1, BLOCK):
        stop = min(start + BLOCK, n - 1)
        after, below = (
            next_obs[start:stop].reshape(stop - start, -1),
            obs[start + 1 : stop + 1].reshape(stop - start, -1),
        )
        if exact:
            differ = after != below
        else:  # the same number may have been rounded twice
            size = np.fmax.reduce(np.abs(below), 0)
            differ = ~(np.abs(after - below) <= 1e-5 * np.abs(below) + 1e-6 * size)
        gaps[start:stop] = differ.any(1)
    return gaps


def in_order(gaps: np.ndarray, ended: np.ndarray) -> bool:
    """Whether rows lie in time order: shuffled ones are hardly ever followed by their successor."""
    going_on = ~ended[:-1]
    return not going_on.any() or float(gaps[:-1][going_on].mean()) <= 0.5


def step_numbers(ended: np.ndarray) -> np.ndarray:
    """For each row, which step of its episode it is, from 1."""
    rows = np.arange(len(ended))
    starts = np.zeros(len(ended), np.int64)
    starts[1:] = np.where(ended[:-1], rows[1:], 0)
    return rows - np.maximum.accumulate(starts) + 1


def _marked(columns: Mapping[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """What the file says: terminated rows, cut rows (None: it does not say), and whether ``dones`` could be both."""
    marks = {name: columns[name] > 0 for name in ("terminations", "truncations", "dones") if name in columns}
    over, cut, dones = (marks.get(name) for name in ("terminations", "truncations", "dones"))
    vague = over is None
    if over is None:
        assert dones is not None
        over = dones if cut is None else dones & ~cut
    elif dones is not None:
        ends = over if cut is None else over | cut
        if cut is None and not (over & ~dones).any() and (dones & ~over).any():
            cut = dones & ~over
        elif not (np.array_equal(dones, ends) or np.array_equal(dones, over)):
            raise DatasetError(f"{where}: dones contradicts terminations{'' if cut is None else ' and truncations'}")
    if "episode_ids" in columns:
        last = _last_of_each(columns["episode_ids"], where)
        cut = (np.zeros(len(over), bool) if cut is None else cut) | (last & ~over)
    return over, cut, vague and cut is None


def _last_of_each(ids: np.ndarray, where: str) -> np.ndarray:
    """The last row of every episode, by its number. An episode that simply stops was cut."""
    last = np.ones(len(ids), bool)
    last[:-1] = ids[1:] != ids[:-1]
    numbers, counts = np.unique(ids[last], return_counts=True)
    if (counts > 1).any():
        raise DatasetError(
            f"{where}: the rows of episode {numbers[counts > 1][0]} (episode_ids) do not lie together; sort them by episode and time"
        )
    return last


class _Limits:
    """After how many steps episodes are cut; asked only if it matters, as an environment may have to be made."""

    def __init__(self, given: TimeLimit, facts: Mapping[str, Any], where: str) -> None:
        self._given, self._facts, self._where = given, facts, where
        self._values: set[int] | None = None

    def values(self) -> set[int]:
        if self._values is None:
            recorded = None if isinstance(self._given, int) else recorded_limit(self._facts)
            if isinstance(self._given, int):
                self._values = {self._given}
            elif recorded is not None:
                self._values = {recorded}
            else:
                self._values = set(self._given() if callable(self._given) else ())
        return self._values

    @property
    def known(self) -> bool:
        return bool(self.values())

    @property
    def steps(self) -> int:
        return min(self.values())

    def reached(self, ended: np.ndarray) -> np.ndarray:
        """Rows at which an episode has lasted as long as the limit allows, or a multiple of that."""
        numbers = step_numbers(ended)
        values = self.values()
        if not values or len(numbers) == 0 or numbers.max() < min(values):
            return np.zeros(len(ended), bool)
        if len(values) > 1:
            listed = " or ".join(f"{value:,}" for value in sorted(values))
            raise DatasetError(
                f"{self._where} does not mark where episodes were cut, and the environment's time limit is {listed} (its own, and "
                "this run's): say which holds for the data with dataset_episode_steps"
            )
        return numbers % self.steps == 0


def recorded_limit(facts: Mapping[str, Any]) -> int | None:
    """The time limit of the environment that the data names, if that is registered."""
    import gymnasium as gym

    options = facts.get("env_kwargs")
    options = options if isinstance(options, Mapping) else {}
    own = options.get("max_episode_steps")
    if isinstance(own, int) and own > 0:
        return own
    spec = gym.registry.get(str(facts.get("env_id")))  # a lookup: gym.spec would import a module that a file names
    return None if spec is None else spec.max_episode_steps


def _taken_from_the_row_below(obs: np.ndarray, over: np.ndarray, cut: np.ndarray | None, limits: _Limits) -> bool:
    """Whether ``next_obs`` without any gap was made by shifting ``obs``: no reset shows in it, although there were several."""
    ends = (over if cut is None else over | cut)[:-1]
    if len(obs) < 2 or bool((obs[1:] == obs[:1]).all()):  # nothing ever changes: no reset could show
        return False
    if ends.sum() >= 2:
        return True
    return cut is None and limits.known and bool(step_numbers(over).max() > max(limits.values()))
