"""One rollout of N environments over T steps, its advantages, and its minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.base.errors import enough_memory
from rl_training.base.returns import gae
from rl_training.base.saved import Saved, StateError
from rl_training.base.state import Rng

__all__ = ["RolloutBuffer"]

COLUMNS = ("obs", "actions", "logprobs", "rewards", "values", "terminated", "truncated", "final_values")
ESTIMATES = ("advantages", "returns")


class RolloutBuffer:
    """T steps of N environments in arrays (T, N, ...), written step by step and reused for the next rollout."""

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...] = (),
        *,
        obs_dtype: Any = np.float32,
        action_dtype: Any = np.float32,
        device: str | torch.device = "cpu",
        rng: Rng | None = None,
    ) -> None:
        rows = (num_steps, num_envs)
        self.num_steps, self.num_envs, self.position = num_steps, num_envs, 0
        self.rng = rng if rng is not None else Rng(0, "minibatches")
        self._device = torch.device(device)
        with enough_memory(f"a rollout of {num_steps:,} steps of {num_envs:,} environments"):
            self.obs = np.zeros((*rows, *obs_shape), obs_dtype)
            self.actions = np.zeros((*rows, *action_shape), action_dtype)
            scalars = [np.zeros(rows, np.float32) for _ in range(6)]
            self.logprobs, self.rewards, self.values, self.terminated, self.truncated, self.final_values = scalars
            self.advantages, self.returns = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.beside: dict[str, np.ndarray] = {}  # arrays (T, N, ...) of a loop's own, which are saved with the others

    def add(
        self,
        *,
        obs: Any,
        actions: Any,
        logprobs: Any,
        rewards: Any,
        values: Any,
        terminated: Any,
        truncated: Any,
        final_values: Any = 0.0,
    ) -> None:
        """Add one step of every environment; ``final_values`` are those of true last observations, where truncated."""
        if self.position >= self.num_steps:
            raise ValueError(
                f"the rollout already holds {self.num_steps} steps; compute the returns and clear it first"
            )
        t = self.position
        self.obs[t], self.actions[t], self.logprobs[t], self.rewards[t] = obs, actions, logprobs, rewards
        self.values[t], self.final_values[t] = values, final_values
        self.terminated[t], self.truncated[t] = terminated, truncated
        self.position = t + 1

    def clear(self) -> None:
        self.position = 0

    @property
    def partial(self) -> bool:
        """Whether some steps are stored and some are missing."""
        return 0 < self.position < self.num_steps

    def cut(self, lost: np.ndarray, final_values: np.ndarray) -> None:
        """The episodes of the environments where ``lost`` (N,) is set ended with the last step, at observations of
        ``final_values`` (N,)."""
        t = self.position - 1
        gone = (lost > 0) & (self.terminated[t] == 0) & (self.truncated[t] == 0)
        self.truncated[t, gone], self.final_values[t, gone] = 1.0, final_values[gone]

    def state_dict(self) -> dict[str, Any]:
        """The steps stored so far, and the advantages and returns of a whole rollout."""
        return {name: torch.from_numpy(rows) for name, rows in self._stored(self.position).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        steps = len(Saved(state, ("rewards",), state).array("rewards", np.float32, (None, self.num_envs)))
        if steps > self.num_steps:
            raise StateError(f"has {steps} steps, expected at most {self.num_steps}", "rewards")
        places = self._stored(steps)
        saved = Saved(state, places)
        rows = {name: saved.array(name, place.dtype, place.shape) for name, place in places.items()}
        for name, place in places.items():
            place[:] = rows[name]
        self.position = steps

    def _stored(self, steps: int) -> dict[str, np.ndarray]:
        """The arrays that are saved, up to a step."""
        names = (*COLUMNS, *ESTIMATES) if steps == self.num_steps else COLUMNS
        own = {name: getattr(self, name) for name in names}
        return {name: rows[:steps] for name, rows in {**own, **self.beside}.items()}

    def compute_returns_and_advantages(self, last_values: Any, gamma: float, gae_lambda: float) -> None:
        """``last_values`` (N,): values of the observations the environments are at now."""
        if self.position != self.num_steps:
            raise ValueError(f"the rollout holds {self.position} of {self.num_steps} steps")
        self.advantages[:] = gae(
            rewards=self.rewards,
            values=self.values,
            last_values=np.array(last_values, np.float32),
            terminated=self.terminated,
            truncated=self.truncated,
            final_values=self.final_values,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        np.add(self.advantages, self.values, out=self.returns)

    def flat(self) -> Tensors:
        """All T·N rows as tensors on the buffer's device, sharing memory with it on a CPU."""
        return to_device(self._flat(), self._device)

    def _flat(self) -> Tensors:
        names = ("obs", "actions", "logprobs", "advantages", "returns", "values")
        arrays = {name: getattr(self, name) for name in names}
        return {name: torch.from_numpy(array.reshape(-1, *array.shape[2:])) for name, array in arrays.items()}

    def iter_minibatches(self, minibatch_size: int, shuffle: bool = True) -> Iterator[Tensors]:
        """Every row once. The rows are shuffled in one gather per field; a minibatch is then a slice."""
        rows = self._flat()
        if shuffle:
            rows["order"] = torch.from_numpy(self.rng.generator.permutation(len(rows["values"])))
        rows = to_device(rows, self._device)
        if shuffle:
            order = rows.pop("order")
            rows = {name: row.index_select(0, order) for name, row in rows.items()}
        for start in range(0, len(rows["values"]), minibatch_size):
            yield {name: row[start : start + minibatch_size] for name, row in rows.items()}
