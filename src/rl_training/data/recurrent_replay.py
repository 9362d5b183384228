"""A replay buffer of sequences, for recurrent models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.base.errors import enough_memory
from rl_training.base.saved import LARGEST, Saved, StateError, within
from rl_training.base.state import Rng
from rl_training.data.layouts import numpy_dtype

__all__ = ["RecurrentReplayBuffer"]


class RecurrentReplayBuffer:
    """A ring of observations for every environment, sampled as sequences of ``sequence_length`` consecutive rows.

    Every observation is stored once. Its row has the reward that arrived *with* it, whether it starts an episode,
    whether it is terminal, and the action taken *at* it; the last observation of an episode has a row of its own,
    without an action. A sequence may run from one episode into the next, whose first row is marked; it never joins two
    environments. With ``hidden_size``, every row also has the recurrent state that its observation was met with.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_shape: tuple[int, ...],
        sequence_length: int,
        obs_dtype: Any = np.float32,
        action_shape: tuple[int, ...] = (),
        action_dtype: Any = np.float32,
        device: str | torch.device = "cpu",
        *,
        hidden_size: int | None = None,
        rng: Rng | None = None,
    ) -> None:
        rows = capacity // num_envs
        if rows < sequence_length:
            raise ValueError(
                f"a buffer of {capacity:,} rows for {num_envs} environments cannot hold sequences of {sequence_length}"
            )
        self.capacity, self.num_envs, self.sequence_length = capacity, num_envs, sequence_length
        self.rng = rng if rng is not None else Rng(0, "replay")
        self._rows, self._device = rows, torch.device(device)
        with enough_memory(f"a replay buffer of {capacity:,} observations"):
            self._columns = {
                "obs": np.zeros((num_envs, rows, *obs_shape), numpy_dtype(obs_dtype)),
                "actions": np.zeros((num_envs, rows, *action_shape), numpy_dtype(action_dtype)),
                "rewards": np.zeros((num_envs, rows), np.float32),
                "dones": np.zeros((num_envs, rows), np.float32),
                "episode_starts": np.zeros((num_envs, rows), np.float32),
                "last": np.zeros((num_envs, rows), np.float32),
            }
            if hidden_size is not None:
                self._columns["states"] = np.zeros((num_envs, rows, hidden_size), np.float32)
        self.written = np.zeros(num_envs, np.int64)  # rows ever stored, of each environment
        self._states: tuple[Any, Any] = (None, None)  # of the rows that are put next
        self.next_reward = np.zeros(num_envs, np.float32)  # arrived with the observation that is stored next
        self.next_starts = np.ones(num_envs, np.float32)  # whether that observation starts an episode

    @property
    def stored(self) -> np.ndarray:
        """The number of rows in the buffer, of each environment."""
        return np.minimum(self.written, self._rows)

    def __len__(self) -> int:
        return int(self.stored.sum())

    @property
    def num_transitions(self) -> int:
        """The number of steps in the buffer: rows that are not the last observation of an episode."""
        return int(sum(rows - self._columns["last"][e, :rows].sum() for e, rows in enumerate(self.stored)))

    def add(
        self,
        *,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        dones: Any,
        truncations: Any = None,
        episode_start: Any = None,
        env_index: int | None = None,
        states: Any = None,
        next_states: Any = None,
    ) -> None:
        """Store one step of environment ``env_index``, or of all of them, (N, ...).

        An episode starts where the one before ended, or where ``episode_start`` is given and set. ``states`` are the
        recurrent ones before the step, ``next_states`` those after it; None: zeros.
        """
        if env_index is not None:
            self._take_states(*(None if x is None else {env_index: x} for x in (states, next_states)))
            start = None if episode_start is None else [episode_start]
            cut = None if truncations is None else [truncations]
            self._add([env_index], [obs], [actions], [rewards], [next_obs], [dones], cut, start)
        else:
            self._take_states(states, next_states)
            self._add(range(self.num_envs), obs, actions, rewards, next_obs, dones, truncations, episode_start)

    def _take_states(self, states: Any, next_states: Any) -> None:
        """The recurrent states of the rows that are put next, by environment: of observations, and of last ones."""
        if "states" not in self._columns and (states is not None or next_states is not None):
            raise ValueError("the buffer holds no recurrent states: give hidden_size")
        self._states = (states, next_states)

    def _add(
        self, envs: Any, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, cuts: Any, starts: Any
    ) -> None:
        for i, e in enumerate(envs):
            if starts is not None and bool(starts[i]) != bool(self.next_starts[e]):
                self.next_starts[e], self.next_reward[e] = float(starts[i]), 0.0
            self._put(e, obs[i], actions[i], 0.0, 0.0)
            self.next_reward[e] = rewards[i]
            if dones[i] or (cuts is not None and cuts[i]):
                self._end_episode(e, next_obs[i], float(dones[i]))

    def cut(self, ended: np.ndarray, obs: np.ndarray, states: Any = None) -> None:
        """Truncate, at ``obs`` (N, ...) with recurrent ``states``, the episodes of environments that were lost, where
        ``ended`` (N,) is set."""
        self._take_states(None, states)
        for e in np.flatnonzero(ended):
            if not self.next_starts[e]:
                self._end_episode(int(e), obs[e], 0.0)

    def _end_episode(self, e: int, last_obs: Any, done: float) -> None:
        self._put(e, last_obs, np.zeros_like(self._columns["actions"][e, 0]), done, 1.0)
        self.next_starts[e], self.next_reward[e] = 1.0, 0.0

    def _put(self, e: int, obs: Any, action: Any, done: float, last: float) -> None:
        columns, row = self._columns, self.written[e] % self._rows
        columns["obs"][e, row], columns["actions"][e, row] = obs, action
        columns["rewards"][e, row], columns["episode_starts"][e, row] = self.next_reward[e], self.next_starts[e]
        columns["dones"][e, row], columns["last"][e, row] = done, last
        if "states" in columns:
            given = self._states[int(last)]
            columns["states"][e, row] = 0.0 if given is None else given[e]
        self.next_starts[e] = 0.0
        self.written[e] += 1

    def sample(self, n: int) -> Tensors:
        """``n`` sequences, time first: obs, actions, rewards, dones, episode_starts and mask, each (T, n, ...); with
        recurrent states, also the ``initial_state`` (n, S) of each sequence."""
        length = self.sequence_length
        first_rows = np.maximum(self.stored - length + 1, 0)  # number of rows at which a sequence can start
        total = int(first_rows.sum())
        if total == 0:
            raise ValueError(f"the buffer has no sequence of {length} yet")
        drawn = self.rng.generator.integers(total, size=n)
        edges = np.cumsum(first_rows)
        envs = np.searchsorted(edges, drawn, side="right")
        offset = drawn - (edges - first_rows)[envs]
        oldest = np.where(self.written > self._rows, self.written % self._rows, 0)
        rows = (oldest[envs] + offset + np.arange(length)[:, None]) % self._rows
        names = ("obs", "actions", "rewards", "dones", "episode_starts")
        batch = {name: torch.from_numpy(self._columns[name][envs, rows]) for name in names}
        if "states" in self._columns:
            batch["initial_state"] = torch.from_numpy(self._columns["states"][envs, rows[0]])
        return {**to_device(batch, self._device), "mask": torch.ones(length, n, device=self._device)}

    def state_dict(self) -> dict[str, Any]:
        rows = [
            {name: torch.from_numpy(column[e, :count]) for name, column in self._columns.items()}
            for e, count in enumerate(self.stored)
        ]
        return {
            "rows": rows,
            "rng": self.rng.state_dict(),
            "written": torch.from_numpy(self.written.copy()),
            "reward": torch.from_numpy(self.next_reward.copy()),
            "fresh": torch.from_numpy(self.next_starts.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("rows", "rng", "written", "reward", "fresh"))
        rows, n = saved.items("rows"), self.num_envs
        if len(rows) != n:
            raise StateError(f"the buffer has {n} environments, the checkpoint {len(rows)}", "rows")
        for name, target in (("reward", self.next_reward), ("fresh", self.next_starts)):
            target[:] = saved.array(name, np.float32, (n,), finite=True)
        self.written[:] = saved.indices("written", (n,), LARGEST)
        for e, stored in enumerate(rows):
            with within(f"rows.{e}"):
                self._load_rows(e, stored)
        with within("rng"):
            self.rng.load_state_dict(saved["rng"])

    def _load_rows(self, e: int, stored: Any) -> None:
        """The rows of one environment, of which ``written`` is known."""
        own = {name: column[e] for name, column in self._columns.items()}
        saved, written = Saved(stored, own), int(self.written[e])
        count = len(saved.array("rewards", np.float32, (None,)))
        if count > self._rows:
            raise StateError(f"the buffer has room for {self._rows} rows of an environment, the checkpoint has {count}")
        columns = {name: saved.array(name, own[name].dtype, (count, *own[name].shape[1:]), finite=True) for name in own}
        if count > written or (written and not count):
            raise StateError(f"holds {count} rows of {written} that were written")
        order: Any = slice(count)
        if count < min(written, self._rows):  # from a full buffer of less capacity: oldest first
            order, self.written[e] = (written + np.arange(count)) % count, count
        for name, column in columns.items():
            own[name][:count] = column[order]
