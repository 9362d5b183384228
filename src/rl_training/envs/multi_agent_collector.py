"""The collector for parallel environments: a row for each agent that can be there, and which rows count."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.base.saved import Saved
from rl_training.envs.collector import Collector, Step
from rl_training.envs.endings import Episode
from rl_training.envs.incidents import incident
from rl_training.envs.seats import Seats

__all__ = ["MultiAgentCollector", "Opponents"]


class Opponents(Protocol):
    """Those who act for some of the agents in place of the learner, which does not learn from their rows."""

    def act(self, envs: np.ndarray, obs: np.ndarray) -> np.ndarray:
        """Actions for rows of observations (n, ...), of the environments ``envs`` (n,)."""
        ...

    def seats(self, env: int) -> Sequence[str]:
        """The agents of an environment that they act for in its present episode."""
        ...

    def episode_ended(self, env: int, returns: Mapping[str, float]) -> None:
        """An environment's episode is over, with these returns of the agents that took part; the next one begins."""
        ...


class MultiAgentCollector(Collector):
    """N rows: those of environment 0, one for each of its possible agents, then those of environment 1, and so on.

    The row of an agent that is not there has an observation of zeros, and its action is not taken. ``learning`` (N,)
    says which rows of ``obs`` the learner acts for and learns from, and ``acted`` (N,) which they were at the last
    step: whatever the other rows hold must not matter.

    An episode is an agent's: it ends with its termination or truncation. Its row is that of a new episode when it
    appears again; when no agent is left, the environment begins anew.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._opponents: Opponents | None = None
        self._seats: Seats | None = None
        super().__init__(*args, **options)
        n, empty = len(self.obs), self.seats.games[0].empty
        self._empty = empty if self._encode is None else self._encode(empty)
        self._theirs = np.zeros(n, bool)  # rows of agents that the opponents act for
        self._totals = np.zeros(n)  # returns of agents in their environment's episode, but for those under way
        self._took_part = np.zeros(n, bool)
        self.acted = self.learning
        self._before: list[int] = []  # steps of each environment's episode before the one under way
        self.learned_from = 0  # steps of rows that the learner has acted for

    @property
    def seats(self) -> Seats:
        assert isinstance(self._workers, Seats)
        return self._workers

    @property
    def learning(self) -> np.ndarray:
        """Rows (N,) of agents that are there and that the learner acts for."""
        rows: np.ndarray = self.seats.present & ~self._theirs
        return rows

    def oppose(self, opponents: Opponents) -> None:
        """Let others act for some of the agents: at once where an episode has just begun, elsewhere from the next one
        on, so that nobody's episode changes hands."""
        self._opponents = opponents
        for env, game in enumerate(self.seats.games):
            if game.steps == 0:
                self._seat_opponents(env)

    def _seat_opponents(self, env: int) -> None:
        assert self._opponents is not None
        names = self._opponents.seats(env)
        rows = self.seats.rows(env)
        self._theirs[rows.start : rows.stop] = [agent in names for agent in self.seats.agents]

    def set_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> None:
        raise ValueError(f"{self._name} has several agents, and cannot be changed while a run goes on")

    def _who(self, i: int) -> str:
        size = self.seats.size
        return f"agent {self.seats.agents[i % size]} of environment {i // size} ({self._name})"

    def _incident(self) -> dict[str, Any] | None:
        if self._at is None:
            return None
        number = self._at // self.seats.size
        history, rows = self.seats.history(number), self.seats.rows(number)
        if self._taken is not None and len(history["actions"]) == self._before[number]:  # the actions whose step failed
            history["actions"].append(list(self._taken[rows.start : rows.stop]))
        return incident(history, training=True, index=number)

    # ---- steps

    def send(self, actions: np.ndarray) -> None:
        self.acted, self._took_part = self.learning, self._took_part | self.seats.present
        self._before = [game.steps for game in self.seats.games]
        if self._opponents is not None:
            theirs = np.flatnonzero(self.seats.present & self._theirs)
            if len(theirs):
                actions = actions.copy()  # the learner's own, which it may use again
                actions[theirs] = self._opponents.act(theirs // self.seats.size, self.obs[theirs])
        super().send(actions)

    def receive(self) -> Step:
        absent = np.flatnonzero(~self.seats.present).tolist()
        step = super().receive()
        for i in absent:  # nobody's steps
            self._lengths[i] = 0
        self.learned_from += int(self.acted.sum())
        return step

    def _end_episodes(self, ended: list[int]) -> None:
        self._totals[ended] += [self._returns[i] for i in ended]
        for i in ended:
            if not self.acted[i]:
                self._infos.pop(i)
        super()._end_episodes([i for i in ended if self.acted[i]])

    def _finished(self, i: int, numbers: Mapping[str, float]) -> Episode:
        name = self.seats.agents[i % self.seats.size]
        return super()._finished(i, numbers)._replace(agents={name: self._returns[i]})

    def _begin_all(self, which: Iterable[int]) -> None:
        """Empty the rows whose episodes have ended, and begin the environments in which no agent is left."""
        for i in self._ended:
            self.obs[i] = self._empty
            self._returns[i], self._lengths[i] = 0.0, 0
        over = self.seats.over()
        if self.steps:
            for env in over:
                self._announce(env)
        super()._begin_all([i for env in over for i in self.seats.rows(env)])

    def _announce(self, env: int) -> None:
        """Tell the opponents of an environment's episode, and take the seats of the next one."""
        rows = self.seats.rows(env)
        if self._opponents is not None:
            returns = {name: float(self._totals[i]) for name, i in zip(self.seats.agents, rows) if self._took_part[i]}
            seated = self._theirs[rows.start : rows.stop].any()  # else the episode began without opponents
            self._opponents.episode_ended(env, returns if seated else {})
            self._seat_opponents(env)
        else:
            self._theirs[rows.start : rows.stop] = False
        self._totals[rows.start : rows.stop], self._took_part[rows.start : rows.stop] = 0.0, False

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "agent_steps": float(self.learned_from)}

    # ---- exact resume

    def state_dict(self) -> dict[str, Any]:
        agents = {
            "totals": torch.from_numpy(self._totals.copy()),
            "took_part": torch.from_numpy(self._took_part.copy()),
            "theirs": torch.from_numpy(self._theirs.copy()),
            "learned_from": self.learned_from,
        }
        return {**super().state_dict(), "agents": agents}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        n = len(self.obs)
        saved = Saved(state.get("agents", {}), ("totals", "took_part", "theirs", "learned_from"))
        self._totals = saved.array("totals", np.float64, (n,), finite=True).copy()
        self._took_part = saved.array("took_part", np.bool_, (n,)).copy()
        self._theirs = saved.array("theirs", np.bool_, (n,)).copy()
        self.learned_from = saved.count("learned_from")
        super().load_state_dict({name: part for name, part in state.items() if name != "agents"})
        self.acted = self.learning

    def _begin_lost(self, whys: Sequence[str]) -> None:
        """An environment of which one row is lost begins anew with all of them."""
        size = self.seats.size
        for env in sorted({int(i) // size for i in np.flatnonzero(self.lost)}):
            rows = self.seats.rows(env)
            why = next((whys[i] for i in rows if whys[i]), "")
            warnings.warn(
                f"environment {env} cannot be rebuilt from its seed and actions{why}: it starts a new episode, and the "
                "resumed run will differ from an uninterrupted one",
                stacklevel=4,
            )
            self.lost[rows.start : rows.stop] = 1.0
            self.seats.lose(env)
            self._totals[rows.start : rows.stop], self._took_part[rows.start : rows.stop] = 0.0, False
            super()._begin_all(rows)
