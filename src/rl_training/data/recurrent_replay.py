"""Streams of experience, drawn as sequences: what recurrent models learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.errors import reason
from rl_training.base.state import Rng
from rl_training.data.layouts import numpy_dtype


class RecurrentReplayBuffer:
    """A ring of observations for every environment; a sample is a stretch of one of them, ``sequence_length`` rows long.

    Every observation is kept once. A row holds it, the reward that arrived *with* it, whether it begins an episode, whether it is
    terminal, and the action taken *at* it; the true last observation of an episode is a row of its own, with no action. A sequence
    may run across the end of an episode into the next one, of which the first row is marked; it never joins two environments.
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
        try:
            self._columns = {
                "obs": np.zeros((num_envs, rows, *obs_shape), numpy_dtype(obs_dtype)),
                "actions": np.zeros((num_envs, rows, *action_shape), numpy_dtype(action_dtype)),
                "rewards": np.zeros((num_envs, rows), np.float32),
                "dones": np.zeros((num_envs, rows), np.float32),
                "episode_starts": np.zeros((num_envs, rows), np.float32),
                "last": np.zeros((num_envs, rows), np.float32),
            }
        except MemoryError as error:
            raise ValueError(
                f"a replay buffer of {capacity:,} observations does not fit into memory: {reason(error)}"
            ) from None
        self.written = np.zeros(num_envs, np.int64)  # rows ever stored, of each environment
        self._reward = np.zeros(num_envs, np.float32)  # what arrived with the observation that is not stored yet
        self._fresh = np.ones(num_envs, np.float32)  # whether that observation begins an episode

    @property
    def held(self) -> np.ndarray:
        """Rows that can be drawn, of each environment."""
        return np.minimum(self.written, self._rows)

    def __len__(self) -> int:
        return int(self.held.sum())

    @property
    def num_transitions(self) -> int:
        """Steps among the rows: all but the last observations of episodes."""
        return int(sum(held - self._columns["last"][e, :held].sum() for e, held in enumerate(self.held)))

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
    ) -> None:
        """One step of environment ``env_index``, or of all of them, (N, ...). Where an episode begins follows from where the one
        before ended, unless ``episode_start`` says it."""
        if env_index is not None:
            start = None if episode_start is None else [episode_start]
            cut = None if truncations is None else [truncations]
            self._add([env_index], [obs], [actions], [rewards], [next_obs], [dones], cut, start)
        else:
            self._add(range(self.num_envs), obs, actions, rewards, next_obs, dones, truncations, episode_start)

    def _add(
        self, envs: Any, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, cuts: Any, starts: Any
    ) -> None:
        for i, e in enumerate(envs):
            if starts is not None and bool(starts[i]) != bool(self._fresh[e]):
                self._fresh[e], self._reward[e] = float(starts[i]), 0.0
            self._put(e, obs[i], actions[i], 0.0, 0.0)
            self._reward[e] = rewards[i]
            if dones[i] or (cuts is not None and cuts[i]):
                self._put(e, next_obs[i], np.zeros_like(actions[i]), float(dones[i]), 1.0)
                self._fresh[e], self._reward[e] = 1.0, 0.0

    def cut(self, ended: np.ndarray, obs: np.ndarray) -> None:
        """The environments where ``ended`` (N,) is set were lost at ``obs`` (N, ...), and begin anew: as a truncation."""
        for e in np.flatnonzero(ended):
            if not self._fresh[e]:
                self._put(int(e), obs[e], np.zeros_like(self._columns["actions"][e, 0]), 0.0, 1.0)
                self._fresh[e], self._reward[e] = 1.0, 0.0

    def _put(self, e: int, obs: Any, action: Any, done: float, last: float) -> None:
        columns, row = self._columns, self.written[e] % self._rows
        columns["obs"][e, row], columns["actions"][e, row] = obs, action
        columns["rewards"][e, row], columns["episode_starts"][e, row] = self._reward[e], self._fresh[e]
        columns["dones"][e, row], columns["last"][e, row] = done, last
        self._fresh[e] = 0.0
        self.written[e] += 1

    def sample(self, n: int) -> Tensors:
        """``n`` sequences, time first: obs, actions, rewards, dones, episode_starts and mask, each (T, n, ...)."""
        length = self.sequence_length
        places = np.maximum(self.held - length + 1, 0)  # where a sequence can begin
        total = int(places.sum())
        if total == 0:
            raise ValueError(f"the buffer holds no sequence of {length} yet")
        drawn = self.rng.generator.integers(total, size=n)
        edges = np.cumsum(places)
        envs = np.searchsorted(edges, drawn, side="right")
        offset = drawn - (edges - places)[envs]
        oldest = np.where(self.written > self._rows, self.written % self._rows, 0)
        rows = (oldest[envs] + offset + np.arange(length)[:, None]) % self._rows
        names = ("obs", "actions", "rewards", "dones", "episode_starts")
        batch = {name: torch.from_numpy(self._columns[name][envs, rows]).to(self._device) for name in names}
        return {**batch, "mask": torch.ones(length, n, device=self._device)}

    def state_dict(self) -> dict[str, Any]:
        rows = [
            {name: torch.from_numpy(column[e, :held]) for name, column in self._columns.items()}
            for e, held in enumerate(self.held)
        ]
        return {
            "rows": rows,
            "rng": self.rng.state_dict(),
            "written": torch.from_numpy(self.written.copy()),
            "reward": torch.from_numpy(self._reward.copy()),
            "fresh": torch.from_numpy(self._fresh.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["rows"]) != self.num_envs:
            raise ValueError(f"the buffer has {self.num_envs} environments, the checkpoint {len(state['rows'])}")
        for name in ("written", "reward", "fresh"):
            target = self.written if name == "written" else getattr(self, f"_{name}")
            target[:] = state[name].numpy()
        for e, columns in enumerate(state["rows"]):
            held, written = len(columns["rewards"]), int(self.written[e])
            if held > self._rows:
                raise ValueError(
                    f"the buffer has room for {self._rows} rows of each environment, the checkpoint has {held}"
                )
            order: Any = slice(held)
            if held < min(written, self._rows):  # there was less room than here, and it was full: oldest first
                order, self.written[e] = (written + np.arange(held)) % held, held
            for name, column in columns.items():
                self._columns[name][e, :held] = column.numpy()[order]
        self.rng.load_state_dict(state["rng"])
