"""Hindsight experience replay (Andrychowicz et al., 2017): rows are drawn with goals that their episode reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np

from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.base.saved import Saved, StateError, within
from rl_training.base.state import Rng
from rl_training.data.n_step import Rows
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.goals import Goals

__all__ = ["HindsightReplayBuffer", "Judge", "Strategy"]

Strategy = Literal["future", "final", "episode"]
OPEN = -1  # the last row of an episode that goes on


class Judge(Protocol):
    """What the environment says of transitions under other goals: ``GoalRewards``."""

    goals: Goals

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]: ...

    def close(self) -> None: ...


class HindsightReplayBuffer(ReplayBuffer):
    """A replay buffer whose rows are drawn, for a share of ``ratio``, with another goal in place of the desired one.

    The goal is one that was achieved in the row's own episode. Row t leads from state t to state t + 1; with T rows in
    the episode so far, the goal is what was achieved in

    - ``future``: one of the states t + 1, ..., T, each as likely,
    - ``final``: state T,
    - ``episode``: one of the states 1, ..., T of which the rows are still stored, each as likely.

    ``obs`` and ``next_obs`` get that goal, and ``judge`` gives the reward (then changed by ``rewards``) and, if it
    knows, the termination. What is stored stays as it was. Rows are numbered in the order of writing; every ``add`` is
    one step of the same environments, so that an episode's rows lie as far apart as there are environments.
    """

    FOREIGN = ()

    def __init__(
        self,
        *args: Any,
        judge: Judge,
        strategy: Strategy = "future",
        ratio: float = 0.8,
        rewards: Callable[[Any], Any] | None = None,
        goal_rng: Rng | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self._window is not None:
            raise ValueError("hindsight needs single transitions: n_step must be 1")
        self.judge, self.strategy, self.ratio = judge, strategy, ratio
        self.goal_rng = goal_rng if goal_rng is not None else Rng(0, "hindsight")
        self._rewards = rewards if rewards is not None else lambda given: given
        self._eras: list[tuple[int, int]] = []  # from which row on there are how many environments
        self._first_row = np.zeros(self.capacity, np.int64)  # by place: the episode's first and last row
        self._last_row = np.zeros(self.capacity, np.int64)
        self._begun = np.zeros(0, np.int64)  # by environment: the first row of its present episode

    def sample(self, n: int) -> Tensors:
        """``n`` transitions, drawn with replacement, with goals of their episodes in about ``ratio`` of them.

        The share is that of any part of the batch as well, but for one row.
        """
        index = self._draw(n)
        batch = self._layout.gather(index)
        due = np.floor(np.arange(n + 1) * self.ratio + self.goal_rng.generator.random())
        chosen = np.flatnonzero(np.diff(due))
        if len(chosen):
            self._relabel(batch, chosen, self._reached(index[chosen]))
        return to_device(batch, self._device)

    def _relabel(self, batch: Tensors, chosen: np.ndarray, desired: np.ndarray) -> None:
        """Give the ``chosen`` rows of a batch the goals ``desired`` (B, G), with what follows from them."""
        goals = self.judge.goals
        for name in ("obs", "next_obs"):
            batch[name].numpy()[chosen, goals.desired] = desired
        rewards, terminated = self.judge(batch["next_obs"].numpy()[chosen, goals.achieved], desired)
        batch["rewards"].numpy()[chosen] = self._rewards(rewards)
        if terminated is not None:
            batch["dones"].numpy()[chosen] = terminated

    def _reached(self, places: np.ndarray) -> np.ndarray:
        """Goals (B, G) that the episodes of the rows at ``places`` reached, drawn by the strategy."""
        newest = self.written - 1
        row = newest - (newest - places) % self.capacity
        apart = self._apart(row)
        last = self._last_row[places]
        last = np.where(last == OPEN, row + (newest - row) // apart * apart, last)
        if self.strategy == "final":
            goal = last
        else:
            first = row if self.strategy == "future" else self._first_stored(row, self._first_row[places], apart)
            goal = first + apart * self.goal_rng.generator.integers((last - first) // apart + 1)
        reached: np.ndarray = self._layout.columns["next_obs"][goal % self.capacity, self.judge.goals.achieved]
        return reached

    def _first_stored(self, row: Any, first: Any, apart: Any) -> Any:
        """The first rows of the episodes of rows, or where these have left, the oldest ones that are still stored."""
        oldest = self.written - self.size
        return np.maximum(first, row - (row - oldest) // apart * apart)

    def _apart(self, row: np.ndarray) -> Any:
        """How far apart the rows of one episode lie, for rows by number."""
        starts, envs = np.array(self._eras).T
        return envs[-1] if len(envs) == 1 else envs[np.searchsorted(starts, row, side="right") - 1]

    def cut(self, ended: np.ndarray, obs: np.ndarray) -> None:
        super().cut(ended, obs)
        self._end(np.flatnonzero(ended[: len(self._begun)]))

    def close(self) -> None:
        """Close the environment that is asked for rewards."""
        self.judge.close()

    def _store(self, rows: Rows) -> None:
        first, n = self.written, len(rows["rewards"])
        if n != len(self._begun):
            self._begin_era(first, n)
        super()._store(rows)
        number = np.arange(first, first + n)
        self._first_row[number % self.capacity] = self._begun
        self._last_row[number % self.capacity] = OPEN
        self._end(np.flatnonzero((np.asarray(rows["dones"]) > 0) | (np.asarray(rows["truncations"]) > 0)))

    def _begin_era(self, first: int, envs: int) -> None:
        """From row ``first`` on, there are so many environments, and the episodes of the ones before do not go on."""
        if envs > self.capacity:
            raise ValueError(f"hindsight needs room for a step of every environment: {envs} rows, not {self.capacity}")
        self._end(np.arange(len(self._begun)))
        self._eras.append((first, envs))
        self._begun = np.arange(first, first + envs)

    def _end(self, envs: np.ndarray) -> None:
        """The episodes of these environments have ended with the newest row of each, if there is one."""
        n = len(self._begun)
        for env in envs:
            newest = self.written - n + int(env)
            rows = np.arange(self._first_stored(newest, self._begun[env], n), newest + 1, n)
            self._last_row[rows % self.capacity] = newest
            self._begun[env] = newest + n

    def state_dict(self) -> dict[str, Any]:
        """The rows say where episodes end, so that beside them only the number of environments is saved."""
        own = {"eras": [list(era) for era in self._eras], "rng": self.goal_rng.state_dict()}
        return {**super().state_dict(), "hindsight": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with within("hindsight"):
            saved = Saved(Saved(state, ("hindsight",), state)["hindsight"], ("eras", "rng"))
            eras = [Saved({"eras": era}, ("eras",)).counts("eras", length=2) for era in saved.items("eras")]
        super().load_state_dict({name: part for name, part in state.items() if name != "hindsight"})
        with within("hindsight"):
            self._eras = self._checked(eras)
            self._find_episodes()
            with within("rng"):
                self.goal_rng.load_state_dict(saved["rng"])

    def take_over(self, state: dict[str, Any], envs: int) -> None:
        if "hindsight" not in state:
            raise StateError("was filled without hindsight: its rows do not say which episode they belong to")
        own = self.goal_rng.state_dict()
        super().take_over(state, envs)
        self.goal_rng.load_state_dict(own)

    def _checked(self, eras: list[list[int]]) -> list[tuple[int, int]]:
        """Saved eras, if the rows can have been written in them."""
        starts = [first for first, _ in eras] + [self.written]
        fit = all(
            0 < envs <= self.capacity and stop >= first and (stop - first) % envs == 0
            for (first, envs), stop in zip(eras, starts[1:])
        )
        if not fit or starts[0] > self.written - self.size:
            raise StateError("do not belong to the rows", "eras")
        return [(first, envs) for first, envs in eras]

    def _find_episodes(self) -> None:
        """Find the first and the last row of every stored episode, from where the rows say that episodes end."""
        self._begun = np.zeros(0, np.int64)
        oldest, columns = self.written - self.size, self._layout.columns
        stops = [first for first, _ in self._eras[1:]] + [self.written]
        for (start, envs), stop in zip(self._eras, stops):
            start += max(0, oldest - start) // envs * envs  # of the oldest step, some rows may have left
            rows = np.arange(start, stop).reshape(-1, envs)
            there, places = rows >= oldest, rows % self.capacity
            ended = there & ((columns["dones"][places] > 0) | (columns["truncations"][places] > 0))
            ended[-1:] |= stop < self.written
            before = np.concatenate([np.zeros((1, envs), bool), (there & ~ended)[:-1]])[: len(rows)]
            first = np.maximum.accumulate(np.where(there & ~before, rows, -1), 0)
            last = np.minimum.accumulate(np.where(ended, rows, self.written)[::-1], 0)[::-1]
            self._first_row[places[there]] = first[there]
            self._last_row[places[there]] = np.where(last < self.written, last, OPEN)[there]
            self._begun = np.arange(stop, stop + envs)
            if len(rows):
                self._begun = np.where(there[-1] & ~ended[-1], first[-1], self._begun)
