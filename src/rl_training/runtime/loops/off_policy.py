"""Off-policy loop: act, store transitions, learn from a replay buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import model_validator

from rl_training.algorithms.base import Learner
from rl_training.base.batches import Tensors
from rl_training.base.options import ConfigError, opt
from rl_training.base.saved import alike
from rl_training.data.hindsight import HindsightReplayBuffer, Strategy
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import Source
from rl_training.envs.collector import Collector, Step
from rl_training.envs.goals import GoalRewards
from rl_training.runtime.loops.base import OnlineLoop
from rl_training.runtime.options import AlgorithmOptions, Task
from rl_training.runtime.run import Run, crossings

__all__ = ["Carry", "OffPolicyLoop", "OffPolicyOptions", "ReplayOptions", "make_replay"]


class ReplayOptions(AlgorithmOptions):
    """When to act, store and learn. Unless it is set, the warm-up of a new run takes at most a tenth of its steps."""

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

    @classmethod
    def continuing(cls, *, policy: bool, replay: bool) -> dict[str, Any]:
        """A policy that was trained before acts from the first step, and learns at once from what is stored."""
        return {**({"initial_random_steps": 0} if policy else {}), **({"learning_starts": 0} if replay else {})}

    @staticmethod
    def warm_up(task: Task, steps: int) -> dict[str, int]:
        """``steps`` before learning starts, all of them random; a warm-up that is set is random throughout too."""
        return {"learning_starts": steps, "initial_random_steps": task.given.get("learning_starts", steps)}


class OffPolicyOptions(ReplayOptions):
    """How often to learn from what is stored."""

    ASYNC: ClassVar[bool] = True
    gradient_updates_per_step: int = opt(1, "updates each time", ge=1)
    normalize_observations: bool = opt(False, "scale observations by their running mean and deviation")
    hindsight: Strategy | None = opt(
        None, "goal environments: learn from goals that episodes reached later (future), last (final) or ever (episode)"
    )
    hindsight_ratio: float = opt(0.8, "share of the rows of a batch that get such a goal", ge=0, le=1)

    @model_validator(mode="after")
    def _hindsight_in_force(self) -> Any:
        if self.hindsight is None and "hindsight_ratio" in self.model_fields_set:
            raise ValueError("hindsight_ratio does nothing without hindsight")
        return self

    def idle(self) -> set[str]:
        return {"hindsight_ratio"} if self.hindsight is None else set()


class Carry:
    """The recurrent state of an agent, or what else it carries from step to step of each environment (N, ...)."""

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
        alike(state, self.state_dict())
        if "value" in state:
            self.value = state["value"].numpy().copy()


def make_replay(
    run: Run,
    cfg: ReplayOptions,
    kind: type[ReplayBuffer] = ReplayBuffer,
    *,
    device: str | torch.device | None = None,
    rewards: Callable[[Any], Any] | None = None,
    **options: Any,
) -> ReplayBuffer:
    """A buffer for the run's transitions, no larger than all of them unless it takes over others. ``device``: where
    batches go; None: to the run's. ``rewards``: how rewards are changed before they are learned from; None: as by
    ``env_kwargs.wrappers.reward``."""
    spaces, config = run.spaces, run.config
    most = cfg.buffer_capacity if config.init_replay else config.total_timesteps + config.num_envs
    if isinstance(cfg, OffPolicyOptions) and cfg.hindsight is not None:
        kind, options = HindsightReplayBuffer, options | _in_hindsight(run, cfg, rewards)
    return kind(
        min(cfg.buffer_capacity, most),
        spaces.obs_shape, spaces.action_shape, device or run.device, spaces.obs_dtype, spaces.action_dtype,
        rng=run.rng("replay"), reuse=True, frames=spaces.frames, **options,
    )  # fmt: skip


def _in_hindsight(run: Run, cfg: OffPolicyOptions, rewards: Callable[[Any], Any] | None) -> dict[str, Any]:
    """The arguments of a buffer that draws rows with other goals; refused where there are none."""
    try:
        judge = GoalRewards(run.factory, run.spaces)
    except ValueError as error:
        raise ConfigError([(("algo_kwargs", "hindsight"), str(error))]) from None
    rewards = run.factory.reward_options().apply if rewards is None else rewards
    own = {"judge": judge, "strategy": cfg.hindsight, "ratio": cfg.hindsight_ratio}
    return {**own, "rewards": rewards, "goal_rng": run.rng("hindsight")}


class OffPolicyLoop(OnlineLoop):
    """Act, store, learn. A variant may give its own collector and replay buffer."""

    STATE = ("stepped",)

    def __init__(
        self,
        run: Run,
        agent: Learner,
        cfg: Any,
        *,
        collector: Collector | None = None,
        replay: ReplayBuffer | None = None,
    ) -> None:
        super().__init__(run, agent, cfg, collector=collector)
        self.replay = make_replay(run, cfg) if replay is None else replay
        self.carry = Carry(agent, run.config.num_envs)
        self.stepped = False  # a step has been taken, and its learning is not done yet
        self._source: Source = self.replay
        self._starts: int = max(cfg.learning_starts, cfg.batch_size)
        self._late = run.config.async_collection
        self._repeats, self._rows = cfg.gradient_updates_per_step, cfg.batch_size

    @property
    def mid_step(self) -> bool:
        return self.stepped

    def expected_updates(self, total_timesteps: int) -> int:
        rounds: int = max(0, total_timesteps - self._starts) // self._cfg.train_frequency
        return rounds * int(self._cfg.gradient_updates_per_step)

    def first_update_step(self) -> int:
        n, every = self._run.config.num_envs, int(self._cfg.train_frequency)
        start = max(1, -(-self._starts // n)) * n  # steps come n at a time
        first = start if crossings(start - n, start, every) else -(-(start // every + 1) * every // n) * n
        return first + n * self._run.config.async_collection  # made while the next step is being taken

    def __iter__(self) -> Iterator[None]:
        while True:
            if not self.stepped:
                self.step()
            if not self._late:
                yield from self.updates()
            self.stepped = False
            yield

    def step(self) -> None:
        """One step of every environment, stored; with asynchronous collection, the updates of the step before it are
        made meanwhile. Wherever the loop yields, no step is under way."""
        run, envs, agent, carry = self._run, self.collector, self.agent, self.carry
        rng, n = self.exploration.generator, run.config.num_envs
        run.apply_schedules(agent)
        if self._observe is not None:
            self._observe(envs.obs)
        if run.step < self._cfg.initial_random_steps:
            actions = run.spaces.random_actions(rng, n)
        else:
            actions, _, carry.value = agent.act(envs.obs, carry=carry.value, step=run.step, rng=rng)
        envs.send(actions)
        if self._late:
            actions = actions.copy()  # the agent's own, which it may use again
            deque(self.updates(), maxlen=0)  # no work of theirs pauses
        step = envs.receive()
        self.store(step, actions)
        if carry.value is not None:
            carry.renew(np.maximum(step.terminated, step.truncated))
        run.step += n
        run.collected(envs, n)
        self.stepped = True

    def store(self, step: Step, actions: np.ndarray, **beside: Any) -> None:
        """Store a step of every environment, and what a variant has beside its transitions."""
        self.replay.add(
            obs=step.obs, actions=actions, rewards=step.rewards, next_obs=step.next_obs,
            dones=step.terminated, truncations=step.truncated, **beside,
        )  # fmt: skip

    def updates(self) -> Iterator[None]:
        """The updates of the last step."""
        run, n = self._run, self._run.config.num_envs
        if run.step >= self._starts and len(self.replay):  # returns over many steps may not be complete yet
            yield from self.prepare()
            self.learn(crossings(run.step - n, run.step, self._cfg.train_frequency))

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        self.replay.cut(lost, obs)
        self.carry.renew(lost)

    def close(self) -> None:
        super().close()
        if isinstance(self.replay, HindsightReplayBuffer):
            self.replay.close()

    def prepare(self) -> Iterator[None]:
        """Hook: work before the updates of a step; at each ``yield`` a run may stop, and resume there."""
        return iter(())

    def learn(self, rounds: int) -> None:
        """The updates that are due; ``rounds`` is how often ``train_frequency`` was crossed."""
        for _ in range(rounds):
            for _ in range(self._repeats):
                if self._run.budget_spent:
                    return
                batch = self.draw()
                self.update(batch)
                self.learned(batch)
            self._run.end_epoch()

    def draw(self) -> Tensors:
        """The batch of the next update."""
        return self._source.sample(self._rows)

    def update(self, batch: Tensors) -> None:
        """One update of the agent."""
        self._run.update(self.agent, batch)

    def learned(self, batch: Tensors) -> None:
        """Hook: an update has been made from ``batch``."""
