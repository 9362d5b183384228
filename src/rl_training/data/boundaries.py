"""Where the episodes of recorded transitions end: by their flags, their successors, or the environment's time limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.data.episodes import find_gaps, in_time_order, step_numbers
from rl_training.data.errors import DatasetError

__all__ = ["Boundaries", "TimeLimit", "find_boundaries", "recorded_limit"]

TimeLimit = int | None | Callable[[], Collection[int]]  # steps, or a function that lists the limits in question


@dataclass
class Boundaries:
    """Terminated and truncated rows, (N,) booleans, and what had to be assumed to find them."""

    terminated: np.ndarray
    truncated: np.ndarray
    successors: bool  # next_obs can be used
    assumed_steps: int | None = None  # episodes without flags were taken to be truncated after so many steps
    notes: list[str] = field(default_factory=list)

    @property
    def ended(self) -> np.ndarray:
        """(N,) booleans: the last rows of episodes."""
        ended: np.ndarray = self.terminated | self.truncated
        return ended


def find_boundaries(
    columns: Mapping[str, np.ndarray], where: str, time_limit: TimeLimit, facts: Mapping[str, Any]
) -> Boundaries:
    """The ends of episodes in ``columns``: ``obs``, ``terminations`` or ``dones``, and whatever else is there.

    Flags decide where there are any: ``truncations``, ``dones`` beside ``terminations``, ``episode_ids``. Otherwise a
    row that is not followed by its own successor was truncated, and without successors too, an episode ends at the time
    limit.
    """
    terminated, truncated, vague = _flags(columns, where)
    limits = _Limits(time_limit, facts, where)
    none = np.zeros(len(terminated), bool)
    found = Boundaries(terminated, none if truncated is None else truncated, successors="next_obs" in columns)
    gaps = find_gaps(columns["obs"], columns["next_obs"]) if found.successors else None
    recorded = "minari_id" in facts or "behaviour" in facts  # step by step, so that successors are the true ones
    no_gap = gaps is not None and not gaps.any()
    if no_gap and not recorded and _shifted_successors(columns["obs"], terminated, truncated, limits):
        found.successors, gaps = False, None
        found.notes.append(
            f"{where}: next_obs is the next row's observation even where an episode ends; "
            "the last transitions of truncated episodes are left out"
        )
    if truncated is not None:
        if gaps is None and not truncated.any():
            _doubt_empty_marks(found, limits, where)
        return found
    if vague:
        _split_dones(found, limits, where)
    if gaps is None:
        _truncate_at_limit(found, limits, where)
    elif in_time_order(gaps, found.ended):
        found.truncated = found.truncated | (gaps & ~found.terminated)
        found.truncated[-1:] |= (limits.reached(found.ended) & ~found.terminated)[-1:]
    return found


def _doubt_empty_marks(found: Boundaries, limits: _Limits, where: str) -> None:
    """Truncations of zeros say that there was none, which episodes beyond the time limit contradict."""
    longest = int(step_numbers(found.terminated).max(initial=0))
    if limits.known and longest > max(limits.values()):
        found.notes.append(
            f"{where}: no row is marked as truncated, and an episode goes on for {longest:,} steps, beyond the time "
            f"limit of {max(limits.values()):,}; if it was truncated there, rows bootstrap from another episode: "
            "mark truncations, or leave the column out to have episodes cut at the limit"
        )


def _split_dones(found: Boundaries, limits: _Limits, where: str) -> None:
    """Flags that may mean either: episodes as long as the time limit were truncated, the others terminated."""
    at_limit = found.terminated & limits.reached(found.terminated)
    if at_limit.any():
        found.terminated, found.truncated = found.terminated & ~at_limit, at_limit
        found.assumed_steps = limits.steps
        found.notes.append(
            f"{where} has dones but neither terminations nor truncations: the {int(at_limit.sum()):,} episodes that "
            f"end after {limits.steps:,} steps, the time limit, are taken as truncated, the others as terminated"
        )


def _truncate_at_limit(found: Boundaries, limits: _Limits, where: str) -> None:
    """Without successors, only the time limit shows where episodes were truncated."""
    if not limits.known:
        raise DatasetError(
            f"{where} has neither truncations (timeouts) nor next_obs, and no time limit is known: where its episodes "
            "were truncated cannot be seen; add one of the two (truncations of zeros if none was), or give "
            "dataset_episode_steps (dataset info: --episode-steps or --env)"
        )
    at_limit = limits.reached(found.ended) & ~found.ended
    if at_limit.any():
        found.truncated = found.truncated | at_limit
        found.assumed_steps = limits.steps
        found.notes.append(
            f"{where} has no truncations (timeouts) and no next_obs: {int(at_limit.sum()):,} episodes were truncated "
            f"after {limits.steps:,} steps, the time limit, and their last transitions left out"
        )


def _flags(columns: Mapping[str, np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """The file's own flags: terminated rows, truncated rows or None, and whether ``dones`` could be both."""
    flags = {name: columns[name] > 0 for name in ("terminations", "truncations", "dones") if name in columns}
    terminated, truncated, dones = (flags.get(name) for name in ("terminations", "truncations", "dones"))
    vague = terminated is None
    if terminated is None:
        assert dones is not None
        terminated = dones if truncated is None else dones & ~truncated
    elif dones is not None:
        ended = terminated if truncated is None else terminated | truncated
        if truncated is None and not (terminated & ~dones).any() and (dones & ~terminated).any():
            truncated = dones & ~terminated
        elif not (np.array_equal(dones, ended) or np.array_equal(dones, terminated)):
            both = "" if truncated is None else " and truncations"
            raise DatasetError(f"{where}: dones contradicts terminations{both}")
    if "episode_ids" in columns:
        last = _last_rows(columns["episode_ids"], where)
        truncated = (np.zeros(len(terminated), bool) if truncated is None else truncated) | (last & ~terminated)
    return terminated, truncated, vague and truncated is None


def _last_rows(ids: np.ndarray, where: str) -> np.ndarray:
    """(N,) booleans: the last row of every episode, by its number. An episode that simply stops was truncated."""
    last = np.ones(len(ids), bool)
    last[:-1] = ids[1:] != ids[:-1]
    numbers, counts = np.unique(ids[last], return_counts=True)
    if (counts > 1).any():
        raise DatasetError(
            f"{where}: the rows of episode {numbers[counts > 1][0]} (episode_ids) do not lie together; "
            "sort them by episode and time"
        )
    return last


class _Limits:
    """The time limit of episodes, in steps; looked up only if it matters, as an environment may have to be made."""

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
        """(N,) booleans: rows at which an episode has lasted as long as the limit allows, or a multiple of that."""
        numbers = step_numbers(ended)
        values = self.values()
        if not values or len(numbers) == 0 or numbers.max() < min(values):
            return np.zeros(len(ended), bool)
        if len(values) > 1:
            listed = " or ".join(f"{value:,}" for value in sorted(values))
            raise DatasetError(
                f"{self._where} does not mark where episodes were truncated, and the environment's time limit is "
                f"{listed} (its own, and this run's): choose the one of the data with dataset_episode_steps"
            )
        at_limit: np.ndarray = numbers % self.steps == 0
        return at_limit


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


def _shifted_successors(obs: np.ndarray, terminated: np.ndarray, truncated: np.ndarray | None, limits: _Limits) -> bool:
    """Whether ``next_obs`` without any gap was made by shifting ``obs``: it shows no reset, but there were."""
    ended = (terminated if truncated is None else terminated | truncated)[:-1]
    if len(obs) < 2 or bool((obs[1:] == obs[:1]).all()):  # nothing ever changes: no reset could show
        return False
    if ended.sum() >= 2:
        return True
    return truncated is None and limits.known and bool(step_numbers(terminated).max() > max(limits.values()))
