"""The seats of parallel environments as rows of a run: a row for each agent that each of them can have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.base.options import ConfigError
from rl_training.envs.incidents import History
from rl_training.envs.multi_agent import Game, Result
from rl_training.envs.vector import VectorPlace
from rl_training.envs.watchdog import Watchdog

__all__ = ["Seats"]


class Seats:
    """All rows of a run in parallel environments: environment by environment, and in each the agents in the order of
    ``possible_agents``.

    The actions of a row are those of its environment's whole episode: where the agent was not there, they are nobody's.
    """

    exact = True

    def __init__(
        self,
        make: Callable[[], Game],
        action_space: gym.Space[Any],
        agents: tuple[str, ...],
        num_envs: int,
        seed: int,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.agents, self.action_space, self._watchdog = agents, action_space, watchdog
        self.size = size = len(agents)
        if num_envs % size:
            problem = f"is {num_envs}, and the environment has {size} agents, a row for each: take a multiple of {size}"
            raise ConfigError([(("num_envs",), problem)])
        self.games = [make() for _ in range(num_envs // size)]
        self.envs = [VectorPlace(self, i, (seed, i // size)) for i in range(num_envs)]
        self._actions: list[Any] | None = None
        self._results: list[Result] = []
        self._first: dict[int, Any] = {}  # observations of episodes that have begun, and were not asked for yet
        self._replayed: dict[int, Any] = {}  # by environment: what its replay came to

    @property
    def present(self) -> np.ndarray:
        """Which rows are those of agents that are there, (N,)."""
        return np.concatenate([game.present for game in self.games])

    def rows(self, game: int) -> range:
        return range(game * self.size, (game + 1) * self.size)

    def history(self, number: int) -> History:
        """What led to where an environment's episode is: its seed, and the actions of all rows, step by step."""
        seats = [self.envs[row] for row in self.rows(number)]
        joint = [list(actions) for actions in zip(*(seat.actions for seat in seats))]
        return {**seats[0].history(), "actions": joint}

    def over(self) -> list[int]:
        """The environments whose episodes are over."""
        return [number for number, game in enumerate(self.games) if game.over]

    def step(self, actions: Iterable[Any]) -> None:
        """The actions of the step that is taken when results are asked for."""
        self._actions, self._results = list(actions), []

    def begin(self, which: Iterable[int]) -> None:
        """Rows are about to begin, with their environments."""

    def send(self) -> None:
        """There is nobody to wait for."""

    def result(self, i: int) -> Result:
        """What row ``i`` got in the step; its environment is stepped when its first row is asked."""
        assert self._actions is not None
        if i == len(self._results):
            number, rows = i // self.size, self.rows(i // self.size)
            given = self._actions[rows.start : rows.stop]
            self._results += self._call(number, "step", self.games[number].step, given)
        return self._results[i]

    def first(self, i: int) -> Any:
        """The first observation of row ``i`` in the next episode of its environment."""
        number = i // self.size
        if i not in self._first:
            rows = self.rows(number)
            for row in rows:
                self.envs[row].episode += 1
            begun = self._call(number, "reset", self.games[number].begin, self.envs[i].seed())
            self._first.update(zip(rows, begun))
        return self._first.pop(i)

    def forget(self) -> None:
        """A saved state is being loaded: nothing of the episodes under way counts any more."""
        self._first, self._replayed = {}, {}

    def replayed(self, i: int) -> tuple[Any, float, int]:
        """Where the saved actions of its environment lead row ``i``, with the rewards and steps of the agent there."""
        number = i // self.size
        if number not in self._replayed:
            try:
                self._replayed[number] = self._replay(number)
            except Exception as error:  # whatever the environment may raise
                self._replayed[number] = [error] * self.size
        found = self._replayed[number][i % self.size]
        if isinstance(found, Exception):
            raise found
        obs, total, steps = found
        return obs, total, steps

    def _replay(self, number: int) -> list[tuple[Any, float, int]]:
        game, seats = self.games[number], [self.envs[row] for row in self.rows(number)]
        if len({(seat.episode, len(seat.actions)) for seat in seats}) > 1:
            raise ValueError("its agents are at different steps")
        obs = self._call(number, "reset", game.begin, seats[0].seed())
        totals, steps = [0.0] * self.size, [0] * self.size
        for actions in zip(*(seat.actions for seat in seats)):
            if game.over:
                raise ValueError("its episode ended sooner than it did before")
            acting = game.present
            results = self._call(number, "step", game.step, list(actions))
            obs = [result[0] if there else game.empty for result, there in zip(results, game.present)]
            for k, result in enumerate(results):
                stays = acting[k] and game.present[k]
                totals[k] = totals[k] + float(np.asarray(result[1]).item()) if stays else 0.0
                steps[k] = steps[k] + 1 if stays else 0
        if game.over:
            raise ValueError("its episode ended sooner than it did before")
        return list(zip(obs, totals, steps))

    def lose(self, number: int) -> None:
        """The episode of an environment cannot go on: the next one is begun."""
        self.games[number].present = np.zeros(self.size, bool)

    def close(self) -> None:
        for game in self.games:
            game.env.close()

    def _call(self, number: int, doing: str, call: Callable[..., Any], *args: Any) -> Any:
        if self._watchdog is None:
            return call(*args)
        return self._watchdog.call({**self.history(number), "training": True}, doing, call, *args)
