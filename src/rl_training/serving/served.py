"""A trained agent as a server holds it: loaded without its environment, asked for whole batches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Learner
from rl_training.envs.actions import plain_action
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpointing import CheckpointState, raise_on_mismatch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import find_checkpoint
from rl_training.runtime.workflows import config_of

__all__ = ["ServedAgent", "load_served"]


@dataclass(frozen=True)
class ServedAgent:
    """An agent, the spaces it acts in, and where it comes from."""

    agent: Learner
    spaces: Spaces
    algo: str
    env_id: str
    step: int

    @property
    def state_shape(self) -> tuple[int, ...] | None:
        """The shape of what it carries from one observation to the next; None if it carries nothing."""
        carry = self.agent.initial_carry(1)
        return None if carry is None else tuple(carry.shape[1:])

    def act(self, rows: np.ndarray, carry: Any, deterministic: bool) -> tuple[list[Any], Any]:
        """Actions for encoded observations (N, ...), in the environment's units as plain values, and the carry."""
        acting = self.agent.act(rows, carry=carry, deterministic=deterministic)
        actions = self.spaces.to_env(acting.actions)
        if self.spaces.form is not None:
            return [plain_action(action) for action in self.spaces.as_given(actions)], acting.carry
        return np.asarray(actions).tolist(), acting.carry

    def seconds_of(self, rows: int) -> float:
        """How long a batch of so many observations takes, the second time."""
        obs, carry = np.zeros((rows, *self.spaces.obs_shape), self.spaces.obs_dtype), self.agent.initial_carry(rows)
        self.act(obs, carry, True)
        start = time.perf_counter()
        self.act(obs, carry, True)
        return time.perf_counter() - start


def load_served(path: str | Path, device: str = "auto") -> ServedAgent:
    """The agent of a checkpoint, or of the newest one of a run.

    A checkpoint says what its agent sees and does, so no environment is made and nothing is imported for it. Older ones
    do not: for them the environment is made once, if its module is trusted.
    """
    _, state = find_checkpoint(path, buffers=False)
    spaces = _saved_spaces(state)
    config = config_of(state, env=spaces)  # with known spaces nothing is made of the environment that it names
    agent, spaces = get_algorithm_spec(config.algo).load(config, state, device, spaces=spaces)
    return ServedAgent(agent, spaces, config.algo, config.env_id, _step(state, config))


def _saved_spaces(state: CheckpointState) -> Spaces | None:
    facts = state.metadata.get("spaces")
    if facts is None:
        return None
    with raise_on_mismatch():
        return Spaces.of_facts(facts)


def _step(state: CheckpointState, config: TrainConfig) -> int:
    step = state.trainer_state.get("step")
    return step if isinstance(step, int) else 0
