"""What an episode's end tells: its return, its length, and numbers of the environment's last ``info``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_training.base.saved import Saved, StateError
from rl_training.envs.checks import EnvironmentFailure, described

__all__ = ["SUCCESS", "Episode", "last_numbers", "mean_numbers", "only"]

SUCCESS = ("is_success", "success")  # entries of ``info`` that are always read; the first that there is counts


class Episode(NamedTuple):
    """A finished episode of one environment, in the environment's own rewards."""

    episode_return: float
    length: int
    info: Mapping[str, float] = {}  # numbers of its last info: its success, and those that ``log_info`` names
    env_index: int = 0
    env_kwargs: Mapping[str, Any] = {}  # what a curriculum had changed when it began
    agents: Mapping[str, float] = {}  # of a parallel environment: the returns of agents, by name

    @property
    def success(self) -> float | None:
        """Whether it succeeded, as the environment reports it; None if it does not."""
        return next((self.info[name] for name in SUCCESS if name in self.info), None)

    def saved(self) -> list[Any]:
        """Return, length and, if there are any, the numbers and agents' returns: what the means over recent episodes
        are made of."""
        more = [dict(self.info), dict(self.agents)] if self.agents else [dict(self.info)] if self.info else []
        return [self.episode_return, self.length, *more]

    @classmethod
    def restored(cls, saved: Any) -> Episode:
        """The episode of a saved state."""
        if not isinstance(saved, list | tuple) or len(saved) not in (2, 3, 4):
            raise StateError("holds what is not a return and a length", "recent")
        parts = Saved({"return": saved[0], "length": saved[1]}, ("return", "length"))
        info, agents = [*saved[2:], {}, {}][:2]
        numbers, returns = Saved(info, (), info), Saved(agents, (), agents)
        return cls(
            parts.number("return", finite=False),
            parts.count("length"),
            {name: numbers.number(name, finite=False) for name in info},
            agents={name: returns.number(name, finite=False) for name in agents},
        )


def only(info: Any, wanted: Iterable[str]) -> dict[str, Any]:
    """The entries of an ``info`` that are read at an episode's end."""
    return {name: info[name] for name in (*SUCCESS, *wanted) if name in info} if isinstance(info, dict) else {}


def last_numbers(info: Any, wanted: Sequence[str]) -> dict[str, float]:
    """Success and the ``wanted`` entries of an episode's last ``info`` as numbers. One that is wanted and is no number
    is refused, one that is missing is left out."""
    numbers: dict[str, float] = {}
    for name, value in only(info, wanted).items():
        array = np.asarray(value) if not isinstance(value, float) else None
        if array is None:
            numbers[name] = float(value)
        elif array.size == 1 and array.dtype.kind in "biuf":
            numbers[name] = float(array.item())
        elif name in wanted:
            raise EnvironmentFailure(f"log_info: the last info has {described(value)} as {name!r}, not a number")
    return numbers


def mean_numbers(episodes: Iterable[Episode], wanted: Sequence[str], prefix: str = "") -> dict[str, float]:
    """Means over episodes, by the names of their metrics: ``success_rate``, ``info/name`` of those ``wanted``, and
    ``agent_return/name`` where there are several agents. An episode without a number does not count for it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, agent_return in episode.agents.items():
            values.setdefault(f"{prefix}agent_return/{name}", []).append(agent_return)
        if episode.info:
            if episode.success is not None:
                values.setdefault(f"{prefix}success_rate", []).append(episode.success)
            for name in wanted:
                if name in episode.info:
                    values.setdefault(f"{prefix}info/{name}", []).append(episode.info[name])
    return {name: float(np.mean(found)) for name, found in values.items()}
