"""Transitions over several steps (n-step returns)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_training.base.saved import Saved

__all__ = ["NStepWindow", "Rows"]

Rows = dict[str, Any]  # arrays by field, each with the same leading length
COLUMNS = ("obs", "actions", "returns", "discounts")  # of open transitions, as they are saved


@dataclass(slots=True)
class _Open:
    """A transition that still gathers rewards: their discounted sum so far, and the discount of the next."""

    obs: Any
    action: Any
    reward: float
    discount: float


class NStepWindow:
    """Turns single steps into transitions over up to ``n`` of them.

    A transition has its discounted rewards, the observation after its last step, and ``discounts``: gamma to the power
    of the steps it spans. Terminations and truncations shorten it; only after a termination it does not bootstrap.
    """

    def __init__(self, n: int, gamma: float) -> None:
        self.n, self.gamma = n, gamma
        self._open: list[list[_Open]] = []  # for each environment, oldest first

    def push(self, rows: Rows) -> Rows | None:
        """One step of every environment in, or of those that ``rows["streams"]`` names; transitions that are complete
        out, or None."""
        count, streams = len(rows["rewards"]), rows.get("streams")
        if streams is not None:
            self._open += [[] for _ in range(len(self._open), max(streams) + 1)]
        elif not self._open:
            self._open = [[] for _ in range(count)]
        followed = self._open if streams is None else [self._open[stream] for stream in streams]
        if len(followed) != count:
            raise ValueError(f"n-step returns follow {len(self._open)} environments, got rows of {count}")
        obs, actions = np.array(rows["obs"]), np.array(rows["actions"])  # copies: environments reuse their arrays
        complete: list[tuple[_Open, int]] = []
        for i, pending in enumerate(followed):
            reward = float(rows["rewards"][i])
            for transition in pending:
                transition.reward += transition.discount * reward
                transition.discount *= self.gamma
            pending.append(_Open(obs[i], actions[i], reward, self.gamma))
            if rows["dones"][i] or rows["truncations"][i]:
                complete += [(transition, i) for transition in pending]
                pending.clear()
            elif len(pending) == self.n:
                complete.append((pending.pop(0), i))
        return _closed(complete, rows)

    def cut(self, ended: np.ndarray, next_obs: np.ndarray) -> Rows | None:
        """Truncate the environments where ``ended`` (N,) is set: their open transitions end with the steps they have,
        at ``next_obs`` (N, ...)."""
        complete = []
        for i, pending in enumerate(self._open):
            if ended[i]:
                complete += [(transition, i) for transition in pending]
                pending.clear()
        return _closed(complete, {"next_obs": next_obs, "dones": np.zeros(len(ended)), "truncations": ended})

    def open_obs(self) -> list[Any]:
        """The observations at which transitions begin that are not complete yet."""
        return [transition.obs for pending in self._open for transition in pending]

    def state_dict(self) -> dict[str, Any]:
        lengths = [len(pending) for pending in self._open]
        entries = [transition for pending in self._open for transition in pending]
        if not entries:
            return {"lengths": lengths}
        columns = zip(*((entry.obs, entry.action, entry.reward, entry.discount) for entry in entries))
        return {"lengths": lengths, **{n: torch.from_numpy(np.array(values)) for n, values in zip(COLUMNS, columns)}}

    def load_state_dict(self, state: dict[str, Any], *shapes: tuple[int, ...]) -> None:
        """``shapes``: of an observation and of an action, as they are stored."""
        lengths = Saved(state, ("lengths",), COLUMNS).counts("lengths", most=self.n - 1)
        count, entries = sum(lengths), iter(list[_Open]())
        if count:
            saved = Saved(state, ("lengths", *COLUMNS))
            obs, actions = (saved.array(name, None, (count, *shape)) for name, shape in zip(COLUMNS, shapes))
            returns, discounts = (saved.array(name, np.float64, (count,), finite=True) for name in COLUMNS[2:])
            columns = zip(obs, actions, returns, discounts)
            entries = iter([_Open(o.copy(), a.copy(), float(r), float(d)) for o, a, r, d in columns])
        self._open = [[next(entries) for _ in range(length)] for length in lengths]


def _closed(complete: list[tuple[_Open, int]], rows: Rows) -> Rows | None:
    """Rows of transitions with the index of their environment; where they end is in ``rows`` (N, ...)."""
    if not complete:
        return None
    envs = np.array([i for _, i in complete])
    return {
        "obs": np.stack([transition.obs for transition, _ in complete]),
        "actions": np.stack([transition.action for transition, _ in complete]),
        "rewards": np.array([transition.reward for transition, _ in complete], np.float32),
        "next_obs": np.asarray(rows["next_obs"])[envs],
        "dones": np.asarray(rows["dones"])[envs],
        "truncations": np.asarray(rows["truncations"])[envs],
        "discounts": np.array([transition.discount for transition, _ in complete], np.float32),
    }
