"""The training loops. A loop is a Stateful object you can iterate:

``__init__`` says what it holds, ``__iter__`` says what it does, and every ``yield`` is a point where it is safe to log,
evaluate, save or stop. Nothing that matters survives a ``yield`` in a local variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.algorithms.normalizer import RewardScaler
from rl_training.algorithms.returns import explained_variance
from rl_training.data.replay_buffer import Batch, ReplayBuffer, Source
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.experiment.config import opt
from rl_training.runtime.collector import Collector, Step
from rl_training.runtime.options import AlgorithmOptions, Task
from rl_training.runtime.run import Run, crossings
from rl_training.state import Stateful

ROLLOUT = 2_048  # steps of a rollout over all environments, where the task decides


class Loop(Stateful):
    """``agent`` and whatever else is public is saved; ``_run`` and ``_cfg`` are how it works."""

    agent: Any

    def __init__(self, run: Run, agent: Learner, cfg: Any) -> None:
        self.agent, self._run, self._cfg = agent, run, cfg

    def __iter__(self) -> Iterator[None]:
        raise NotImplementedError

    def expected_updates(self, total_timesteps: int) -> int:
        """Roughly how many updates the whole run makes; decides whether compiling pays."""
        raise NotImplementedError

    def first_update_step(self) -> int:
        """The environment step at which the first update is made, however long the run is; 0: at the beginning."""
        return 0

    def metrics(self) -> dict[str, float]:
        """What the loop itself has to report, read at log time."""
        return {}

    def close(self) -> None:
        """Let go of environments."""


class OnlineLoop(Loop):
    """A loop that steps environments."""

    def __init__(self, run: Run, agent: Learner, cfg: Any) -> None:
        super().__init__(run, agent, cfg)
        self.collector = self.make_collector()
        self.exploration = run.rng("exploration")
        normalizer = getattr(agent, "normalizer", None)
        self._observe = normalizer.observe if normalizer is not None else None

    def make_collector(self) -> Collector:
        return self._run.collector()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.collector.lost.any():
            self.cut(self.collector.lost, self.collector.lost_at)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        """Hook: the environments where ``lost`` (N,) is set could not be rebuilt on resume. Their episodes ended at ``obs`` (N, ...),
        and whatever follows an episode from step to step must begin anew."""

    def metrics(self) -> dict[str, float]:
        return self.collector.metrics()

    def close(self) -> None:
        self.collector.close()


class ReplayOptions(AlgorithmOptions):
    """When to act, store and learn. A new run spends at most a tenth of its steps on the warm-up, unless it is set."""

    BY_TASK: ClassVar[tuple[str, ...]] = ("learning_starts", "initial_random_steps")

    buffer_capacity: int = opt(1_000_000, "transitions kept; never more than the run has steps", ge=1)
    batch_size: int = opt(256, "transitions per update", ge=1)
    learning_starts: int = opt(1_000, "environment steps before the first update", ge=0)
    train_frequency: int = opt(1, "environment steps between updates, whatever the number of environments", ge=1)
    initial_random_steps: int = opt(0, "environment steps with uniformly random actions", ge=0)

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        tenth = task.total_timesteps // 10
        return {name: min(cls.model_fields[name].default, tenth) for name in ReplayOptions.BY_TASK}

    @staticmethod
    def warm_up(task: Task, steps: int) -> dict[str, int]:
        """``steps`` before learning starts, all of them random; a warm-up that is set is random throughout too."""
        return {"learning_starts": steps, "initial_random_steps": task.given.get("learning_starts", steps)}


class OffPolicyOptions(ReplayOptions):
    gradient_updates_per_step: int = opt(1, "updates each time", ge=1)
    normalize_observations: bool = opt(False, "scale observations by their running mean and deviation")


class Carry:
    """What an agent carries from step to step of each environment, such as where its next plan starts."""

    def __init__(self, agent: Learner, n: int) -> None:
        self._agent = agent
        self.value = agent.initial_carry(n)

    def renew(self, ended: np.ndarray) -> None:
        """Begin anew where an episode has ended."""
        if self.value is not None and ended.any():
            self.value = np.where(
                ended.reshape(-1, *[1] * (self.value.ndim - 1)) > 0, self._agent.initial_carry(len(ended)), self.value
            )

    def state_dict(self) -> dict[str, Any]:
        return {} if self.value is None else {"value": torch.from_numpy(np.ascontiguousarray(self.value))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "value" in state:
            self.value = state["value"].numpy().copy()


class OffPolicyLoop(OnlineLoop):
    """Act, store, learn."""

    STATE = ("stepped",)

    def __init__(self, run: Run, agent: Learner, cfg: Any) -> None:
        super().__init__(run, agent, cfg)
        self.replay = self.make_replay()
        self.carry = Carry(agent, run.config.num_envs)
        self.stepped = False  # whether a step has been taken that nothing has been learned after yet
        self._source: Source = self.replay
        self._starts = max(cfg.learning_starts, cfg.batch_size)
        self._repeats, self._rows = cfg.gradient_updates_per_step, cfg.batch_size

    def make_replay(self, kind: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> ReplayBuffer:
        """Room for the run's transitions."""
        run, spaces = self._run, self._run.spaces
        return kind(
            min(self._cfg.buffer_capacity, run.config.total_timesteps + run.config.num_envs),
            spaces.obs_shape, spaces.action_shape, run.device, spaces.obs_dtype, spaces.action_dtype,
            rng=run.rng("replay"), reuse=True, frames=spaces.frames, **options,
        )  # fmt: skip

    def expected_updates(self, total_timesteps: int) -> int:
        steps = max(0, total_timesteps - self._starts)
        return steps // self._cfg.train_frequency * self._cfg.gradient_updates_per_step

    def first_update_step(self) -> int:
        n, every = self._run.config.num_envs, self._cfg.train_frequency
        start = max(1, -(-self._starts // n)) * n  # steps come n at a time
        return start if crossings(start - n, start, every) else -(-(start // every + 1) * every // n) * n

    def __iter__(self) -> Iterator[None]:
        run, cfg, n = self._run, self._cfg, self._run.config.num_envs
        while True:
            if not self.stepped:
                self.step()
            if run.step >= self._starts and len(self.replay):  # returns over many steps may not be complete yet
                yield from self.prepare()
                self.learn(crossings(run.step - n, run.step, cfg.train_frequency))
            self.stepped = False
            yield

    def step(self) -> None:
        """One step of every environment, stored."""
        run, envs, agent, carry = self._run, self.collector, self.agent, self.carry
        rng, n = self.exploration.generator, run.config.num_envs
        run.apply_schedules(agent)
        if self._observe is not None:
            self._observe(envs.obs)
        if run.step < self._cfg.initial_random_steps:
            actions = run.spaces.random_actions(rng, n)
        else:
            actions, _, carry.value = agent.act(envs.obs, carry=carry.value, step=run.step, rng=rng)
        step = envs.step(actions)
        self.replay.add(
            obs=step.obs, actions=actions, rewards=step.rewards, next_obs=step.next_obs,
            dones=step.terminated, truncations=step.truncated,
        )  # fmt: skip
        if carry.value is not None:
            carry.renew(np.maximum(step.terminated, step.truncated))
        run.step += n
        run.collected(envs, n)
        self.stepped = True

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        self.replay.cut(lost, obs)
        self.carry.renew(lost)

    def prepare(self) -> Iterator[None]:
        """Hook: work before the updates of a step, with points at which the run may be stopped in the middle of it."""
        return iter(())

    def learn(self, rounds: int) -> None:
        """Updates that have come due; ``rounds`` is how often ``train_frequency`` was crossed."""
        for _ in range(rounds):
            for _ in range(self._repeats):
                if self._run.budget_spent:
                    return
                batch = self.draw()
                self._run.update(self.agent, batch)
                self.learned(batch)
            self._run.end_epoch()

    def draw(self) -> Batch:
        """What the next update learns from."""
        return self._source.sample(self._rows)

    def learned(self, batch: Batch) -> None:
        """Hook: an update has been made from ``batch``."""


class OnPolicyOptions(AlgorithmOptions):
    """Rollouts and the passes over them. What suits a task differs most between boxes of actions, choices and images, so a new run
    takes the options of ``BY_TASK`` from it; the defaults below are those of files that were saved without them."""

    BY_TASK: ClassVar[tuple[str, ...]] = (
        "num_steps",
        "update_epochs",
        "minibatch_size",
        "normalize_observations",
        "normalize_rewards",
    )

    num_steps: int = opt(
        128,
        "steps of each environment per rollout; by task: 2,048 over all environments for vectors, 128 each for images",
        ge=1,
    )
    update_epochs: int = opt(4, "passes over each rollout; by task: 10 for vectors, 4 for images", ge=1)
    minibatch_size: int = opt(256, "samples per update; by task: 64 for vectors, 256 for images", ge=1)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    gae_lambda: float = opt(0.95, "how far advantages look ahead: 0 one step, 1 the whole episode", ge=0, le=1)
    target_kl: float | None = opt(None, "skip the remaining passes once the policy has moved this far", gt=0)
    normalize_observations: bool = opt(
        False, "scale observations by their running mean and deviation; by task: true for vectors"
    )
    normalize_rewards: bool = opt(
        False, "scale rewards by the running deviation of the discounted return; by task: true for vectors"
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        if task.spaces.image:
            return {
                "num_steps": 128,
                "update_epochs": 4,
                "minibatch_size": 256,
                "normalize_observations": False,
                "normalize_rewards": False,
            }
        return {
            "num_steps": max(1, ROLLOUT // task.num_envs),
            "update_epochs": 10,
            "minibatch_size": 64,
            "normalize_observations": True,
            "normalize_rewards": True,
        }


class OnPolicyLoop(OnlineLoop):
    """Collect a rollout, estimate advantages, learn from it, drop it."""

    def __init__(self, run: Run, agent: Any, cfg: OnPolicyOptions) -> None:
        super().__init__(run, agent, cfg)
        spaces, n = run.spaces, run.config.num_envs
        self.shuffle = run.rng("minibatches")
        self.reward_scaler = RewardScaler(n, cfg.gamma) if cfg.normalize_rewards else None
        self._rollout = RolloutBuffer(
            cfg.num_steps, n, spaces.obs_shape, spaces.action_shape,
            obs_dtype=spaces.obs_dtype, action_dtype=spaces.action_dtype, device=run.device, rng=self.shuffle,
        )  # fmt: skip

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        if self.reward_scaler is not None:
            self.reward_scaler.returns[lost > 0] = 0.0

    def expected_updates(self, total_timesteps: int) -> int:
        rows = self._rollout.num_steps * self._rollout.num_envs
        return -(-total_timesteps // rows) * self._cfg.update_epochs * -(-rows // self._cfg.minibatch_size)

    def __iter__(self) -> Iterator[None]:
        while True:
            self._run.apply_schedules(self.agent)
            self.collect()
            self.finish_rollout()
            self.learn()
            self.after_update()
            self._run.end_epoch()
            yield

    def collect(self) -> None:
        """Fill the rollout: on-policy actions, and the value of the true last observation where an episode was cut."""
        run, envs, agent, rollout = self._run, self.collector, self.agent, self._rollout
        rng, n, observe, scaler = self.exploration.generator, run.config.num_envs, self._observe, self.reward_scaler
        rollout.clear()
        for t in range(rollout.num_steps):
            if observe is not None:
                observe(envs.obs)
            actions, extras, _ = agent.act(envs.obs, step=run.step, rng=rng)
            seen = extras["obs"] if observe is not None else None  # as normalised when it was acted on
            step = envs.step(actions)
            final_values: Any = 0.0
            if step.truncated.any():  # cut, not finished: bootstrap from the episode's true last state
                final_values = agent.values(step.next_obs)
            rewards = step.rewards
            if scaler is not None:
                rewards = scaler(rewards, np.maximum(step.terminated, step.truncated))
            rollout.add(
                obs=step.obs if seen is None else seen, actions=actions, logprobs=extras["logprobs"], rewards=rewards,
                values=extras["values"], terminated=step.terminated, truncated=step.truncated, final_values=final_values,
            )  # fmt: skip
            self.lived(t, step)
            run.step += n
        run.collected(envs, rollout.num_steps * n)

    def lived(self, t: int, step: Step) -> None:
        """Hook: row ``t`` of the rollout has been stored."""

    def finish_rollout(self) -> None:
        """Rewards to advantages; algorithms with rewards of their own replace them first."""
        last_values = self.agent.values(self.collector.obs)
        self._rollout.compute_returns_and_advantages(last_values, self._cfg.gamma, self._cfg.gae_lambda)
        self._run.note(explained_variance=explained_variance(self._rollout.values, self._rollout.returns))

    def learn(self) -> None:
        run, cfg = self._run, self._cfg
        for _ in range(cfg.update_epochs):
            for minibatch in self._rollout.iter_minibatches(cfg.minibatch_size):
                result = run.update(self.agent, minibatch)
                if run.budget_spent:
                    return
            if cfg.target_kl is not None and result.metrics["approx_kl"] > cfg.target_kl:
                return

    def after_update(self) -> None:
        """Hook for phases that run once per rollout."""
