"""Loops for agents of parallel environments that share one policy: a row for each, of which those that count vary.

The row of an agent that is not there, or for which an opponent acts, is carried along and has no influence: it is left
out of statistics, of advantages, of minibatches and of the replay buffer. Where every row counts, numbers are those of
the loops for single agents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.moments import merge_moments
from rl_training.base.options import ConfigError
from rl_training.base.returns import explained_variance
from rl_training.data.reward_scaler import RewardScaler
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.collector import Step
from rl_training.envs.multi_agent_collector import MultiAgentCollector
from rl_training.runtime.loops.base import OnlineLoop
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.on_policy import OnPolicyLoop, OnPolicyOptions
from rl_training.runtime.run import Run

__all__ = ["MaskedRollout", "MaskedScaler", "SharedOffPolicyLoop", "SharedPolicyLoop"]


class MaskedRollout(RolloutBuffer):
    """A rollout of which only the rows in ``beside["counted"]`` (T, N) are learned from."""

    def __init__(self, num_steps: int, num_envs: int, *shapes: tuple[int, ...], **options: Any) -> None:
        super().__init__(num_steps, num_envs, *shapes, **options)
        self.counted = self.beside["counted"] = np.zeros((num_steps, num_envs), bool)

    def compute_returns_and_advantages(self, last_values: Any, gamma: float, gae_lambda: float) -> None:
        """The same, where nothing of the other rows, not even infinity, reaches those that count: a row that counts
        ends its episode before one that does not."""
        for column in (self.rewards, self.values, self.truncated, self.final_values):
            column[~self.counted] = 0.0
        self.terminated[~self.counted] = 1.0
        super().compute_returns_and_advantages(last_values, gamma, gae_lambda)

    def _flat(self) -> Tensors:
        rows = super()._flat()
        if self.counted.all():
            return rows
        index = torch.from_numpy(np.flatnonzero(self.counted))
        return {name: row.index_select(0, index) for name, row in rows.items()}


class MaskedScaler(RewardScaler):
    """Takes its statistics from the rows that counted at the last step of the collector."""

    def __init__(self, collector: MultiAgentCollector, num_envs: int, gamma: float) -> None:
        super().__init__(num_envs, gamma)
        self._collector = collector

    def observe(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        rows = self._collector.acted
        if rows.any():
            self.returns[rows] = self.returns[rows] * self.gamma + rewards[rows]
            seen = self.returns[rows]
            self.count, self.mean, self.square = merge_moments(self.count, self.mean, self.square, seen)
        self.returns[(ended > 0) | ~rows] = 0.0

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        return super().scaled(rewards) if self.count else rewards


class SharedLoop(OnlineLoop):
    """What both kinds of loops for shared policies have."""

    collector: MultiAgentCollector

    def __init__(self, run: Run, agent: Any, cfg: Any) -> None:
        super().__init__(run, agent, cfg)
        if self._observe is not None:
            self._observe = self._observe_counted

    def _observe_counted(self, obs: np.ndarray) -> None:
        """Take the observations that count into the normaliser's statistics."""
        rows = self.collector.learning
        if rows.any():
            self.agent.normalizer.observe(obs[rows])


class SharedPolicyLoop(SharedLoop, OnPolicyLoop):
    """The on-policy loop for agents that share a policy."""

    _rollout: MaskedRollout

    def __init__(self, run: Run, agent: Any, cfg: OnPolicyOptions) -> None:
        super().__init__(run, agent, cfg)
        if self.reward_scaler is not None:
            self.reward_scaler = MaskedScaler(self.collector, run.config.num_envs, cfg.gamma)

    def make_rollout(self, *arguments: Any, **options: Any) -> MaskedRollout:
        return MaskedRollout(*arguments, **options)

    def on_row_stored(self, t: int, step: Step) -> None:
        self._rollout.counted[t] = self.collector.acted

    def finish_rollout(self) -> None:
        cfg, rollout, collector = self._cfg, self._rollout, self.collector
        last_values = np.where(collector.learning, self.agent.values(collector.obs), np.float32(0))
        rollout.compute_returns_and_advantages(last_values, cfg.gamma, cfg.gae_lambda)
        counted = rollout.counted
        if counted.any():
            self._run.note(explained_variance=explained_variance(rollout.values[counted], rollout.returns[counted]))

    def learn(self) -> None:
        if self._rollout.counted.any():
            super().learn()


class SharedOffPolicyLoop(SharedLoop, OffPolicyLoop):
    """The off-policy loop for agents that share a network."""

    def __init__(self, run: Run, agent: Any, cfg: Any) -> None:
        if cfg.hindsight is not None:
            raise ConfigError([(("algo_kwargs", "hindsight"), "is for environments with one agent")])
        super().__init__(run, agent, cfg)

    def store(self, step: Step, actions: np.ndarray, **beside: Any) -> None:
        rows = np.flatnonzero(self.collector.acted)
        if len(rows):
            columns = {"obs": step.obs, "actions": actions, "rewards": step.rewards, "next_obs": step.next_obs}
            columns |= {"dones": step.terminated, "truncations": step.truncated}
            self.replay.add_some(rows.tolist(), **{name: column[rows] for name, column in columns.items()}, **beside)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        if self._cfg.n_step > 1:  # rows of one step are whole, and the last ones are not those of all agents
            self.replay.cut(lost, obs)
