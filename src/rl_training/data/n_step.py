"""Returns over several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Rows = dict[str, Any]


class NStepWindow:
    """Turns single steps into transitions over up to ``n`` of them.

    A transition leaves with its discounted rewards, the observation after its last step, and ``discounts``: gamma to the
    power of the steps it really has. Ends cut it short; only a termination forbids bootstrapping from where it ends.
    """

    def __init__(self, n: int, gamma: float) -> None:
        self.n, self.gamma = n, gamma
        self._pending: list[list[list[Any]]] = []  # per environment: [obs, action, return, discount], oldest first

    def push(self, rows: Rows) -> Rows | None:
        """One step of every environment in; transitions that are complete out, or None."""
        count = len(rows["rewards"])
        if not self._pending:
            self._pending = [[] for _ in range(count)]
        if len(self._pending) != count:
            raise ValueError(f"n-step returns follow {len(self._pending)} environments, got rows of {count}")
        done: list[tuple[list[Any], int]] = []
        for i, pending in enumerate(self._pending):
            reward = float(rows["rewards"][i])
            for entry in pending:
                entry[2] += entry[3] * reward
                entry[3] *= self.gamma
            pending.append([np.copy(rows["obs"][i]), np.copy(rows["actions"][i]), reward, self.gamma])
            if rows["dones"][i] or rows["truncations"][i]:
                done += [(entry, i) for entry in pending]
                pending.clear()
            elif len(pending) == self.n:
                done.append((pending.pop(0), i))
        return self._complete(done, rows)

    def cut(self, ended: np.ndarray, next_obs: np.ndarray) -> Rows | None:
        """Transitions of the environments where ``ended`` (N,) is set, which end with the steps they have, at ``next_obs`` (N, ...);
        none, before the first step."""
        done = []
        for i, pending in enumerate(self._pending):
            if ended[i]:
                done += [(entry, i) for entry in pending]
                pending.clear()
        return self._complete(done, {"next_obs": next_obs, "dones": np.zeros(len(ended)), "truncations": ended})

    def open_obs(self) -> list[Any]:
        """The observations at which transitions begin that are not complete yet."""
        return [entry[0] for pending in self._pending for entry in pending]

    @staticmethod
    def _complete(done: list[tuple[list[Any], int]], rows: Rows) -> Rows | None:
        """The entries as transitions of their environments, which end as ``rows`` say."""
        if not done:
            return None
        entries, envs = [entry for entry, _ in done], np.array([i for _, i in done])
        obs, actions, returns, discounts = zip(*entries)
        return {
            "obs": np.stack(obs),
            "actions": np.stack(actions),
            "rewards": np.array(returns, np.float32),
            "next_obs": np.asarray(rows["next_obs"])[envs],
            "dones": np.asarray(rows["dones"])[envs],
            "truncations": np.asarray(rows["truncations"])[envs],
            "discounts": np.array(discounts, np.float32),
        }

    def state_dict(self) -> dict[str, Any]:
        entries = [entry for pending in self._pending for entry in pending]
        return {
            "lengths": [len(pending) for pending in self._pending],
            **{
                name: torch.from_numpy(np.array([entry[column] for entry in entries]))
                for column, name in enumerate(("obs", "actions", "returns", "discounts"))
                if entries
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        columns = [state[name].numpy() for name in ("obs", "actions", "returns", "discounts") if name in state]
        entries = [[o.copy(), a.copy(), float(r), float(d)] for o, a, r, d in zip(*columns)] if columns else []
        self._pending = [[entries.pop(0) for _ in range(length)] for length in state["lengths"]]
