"""One training run, as a loop sees it: counters, random streams, environments, and where updates are recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rl_training.algorithms.base import Learner, UpdateResult
from rl_training.base.batches import Tensors
from rl_training.envs.collector import Collector
from rl_training.envs.endings import Episode
from rl_training.envs.factory import EnvFactory
from rl_training.envs.multi_agent_collector import MultiAgentCollector, Opponents
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.clock import crossings
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.counters import Counters
from rl_training.runtime.engine import Engine
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.reporting import Reporter
from rl_training.runtime.saving import TrainingFailure
from rl_training.runtime.schedules import Schedules
from rl_training.runtime.stopping import Stopping
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.transfer import Origin
from rl_training.tracking.loggers import Logger

__all__ = ["Run", "TrainingFailure", "crossings"]


class Run(Counters):
    """One training run, as its loop sees it; ``Driver`` evaluates, logs, saves and stops around it."""

    engine: Engine  # how updates run; like the schedules, it depends on the agent and is set by the driver
    schedules: Schedules

    def __init__(
        self,
        config: TrainConfig,
        options: AlgorithmOptions,
        factory: EnvFactory,
        spaces: Spaces,
        *,
        device: torch.device,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] | None = None,
        chosen: Mapping[str, Any] = {},
    ) -> None:
        """``chosen``: options that were taken from the task, which are announced at the start."""
        super().__init__(config.seed)
        self.config, self.factory, self.spaces, self.device = config, factory, spaces, device
        self.callbacks = CallbackList(callbacks)
        names = ("on_update_end", "on_collect_end", "on_batch", "on_episode_end")
        self._on_update, self._on_collect, self._on_batch, self._on_episode = map(self.callbacks.hooks, names)
        self._collector: Collector | None = None
        self.options, self.chosen = options, chosen
        self.decided: tuple[str, ...] = tuple(chosen)  # of a resumed run too: options that its config had left open
        self.origin: Origin | None = None  # the checkpoint whose networks a new run starts with
        self.trainer = TrainerState(run=self)
        self.stopping = Stopping(self.trainer, options.max_updates, options.max_epochs)
        self.reporter = Reporter(config, loggers or ())
        self.save_at = math.inf  # when a save is due by the clock (time.monotonic); the driver's

    def collector(self, **options: Any) -> Collector:
        """The run's environments."""
        config, kind = self.config, MultiAgentCollector if self.spaces.agents else Collector
        options |= {"log_info": config.log_info, "on_episode": self._episode_ended if self._on_episode else None}
        options |= {"backend": config.execution_backend, "workers": config.env_workers}
        self._collector = kind(self.factory, config.num_envs, config.seed, **options)
        return self._collector

    def _episode_ended(self, episode: Episode) -> None:
        trainer = self.trainer_state()
        trainer.global_step += self.config.num_envs  # the step that ended it is being taken
        for hook in self._on_episode:
            hook(trainer, episode)

    def update(self, agent: Learner, batch: Tensors, method: Callable[..., UpdateResult] | None = None) -> UpdateResult:
        """Make one update of the learner, by its ``update`` or another method, and record it."""
        for hook in self._on_batch:
            hook(self.trainer_state(), batch)
        return self.record_update((method or agent.update)(batch, global_step=self.step))

    def record_update(self, result: UpdateResult) -> UpdateResult:
        """Count and announce an update that has been made."""
        self.update_count += 1
        self.gradient_steps += result.num_gradient_steps
        self.reporter.update = result
        for hook in self._on_update:
            hook(self.trainer_state(), result)
        if self.budget_spent:
            self.stopping.check_budgets(self)
        return result

    def record_auxiliary_update(self, result: UpdateResult) -> UpdateResult:
        """Count and announce learning other than by the learner's ``update``, which ``max_updates`` does not limit."""
        self.gradient_steps += result.num_gradient_steps
        for hook in self._on_update:
            hook(self.trainer_state(), result)
        return result

    def pausing(self) -> bool:
        """Whether the driver waits to stop or to save: work that takes long yields then, if it can go on there."""
        return self.trainer.should_stop or time.monotonic() >= self.save_at

    @property
    def budget_spent(self) -> bool:
        """Whether ``max_updates`` is reached, so that no update may follow."""
        return self.update_count >= self.stopping.max_updates

    def end_epoch(self) -> None:
        """Count one collect-and-learn cycle (offline: one pass over the data)."""
        self.epoch += 1
        if self.epoch >= self.stopping.max_epochs:
            self.stopping.check_budgets(self)

    def apply_schedules(self, agent: Learner) -> None:
        """Set every scheduled quantity to its value at this step."""
        self.schedules.apply(agent, self.step)

    def collected(self, collector: Collector, steps: int) -> None:
        """Announce new experience to callbacks; free if none listens."""
        if self._on_collect:
            self._announce_collected(CollectResult(steps, collector.episodes, collector.metrics(), collector.obs))

    def _announce_collected(self, result: CollectResult) -> None:
        for hook in self._on_collect:
            hook(self.trainer_state(), result)

    def note(self, **metrics: float) -> None:
        """Metrics of the loop's own, logged with the learner's."""
        self.reporter.note(**metrics)

    # ---- what callbacks do by the TrainerState

    def log_number(self, name: str, value: Any) -> None:
        self.reporter.log_number(name, value)

    def log_histogram(self, name: str, values: Any) -> None:
        self.reporter.write_histogram(self.step, name, values)

    def log_text(self, name: str, text: str) -> None:
        self.reporter.write_text(self.step, name, text)

    def controls(self) -> dict[str, float]:
        return self.schedules.controls(self.trainer.algorithm)

    def set_control(self, name: str, value: float) -> None:
        self.schedules.hold(self.trainer.algorithm, name, value)

    def set_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> None:
        if self._collector is None:
            raise ValueError(f"{self.config.algo} learns from data: it has no training environments to change")
        if getattr(self.options, "hindsight", None) is not None:
            raise ValueError("with hindsight, environments cannot be changed: rewards are those of the first ones")
        self._collector.set_env_kwargs(env_kwargs)

    def set_opponents(self, opponents: Opponents) -> None:
        if not isinstance(self._collector, MultiAgentCollector):
            raise ValueError(f"{self.config.env_id} has no other agents that opponents could act for")
        self._collector.oppose(opponents)

    def announce(self, message: str) -> None:
        """Print one line that stays."""
        self.reporter.progress.say(message)

    def stage(self, name: str, done: int, total: int) -> None:
        """Show how far a phase has come in which no step is taken."""
        self.reporter.progress.stage(name, done, total, self.step)

    def show_stage(self, text: str, active: bool) -> None:
        """Show what a phase without steps is doing, where its length is not known."""
        self.reporter.progress.note(stage=text if active else "")
        self.reporter.progress.tick(self.step)

    def trainer_state(self) -> TrainerState:
        """What callbacks receive, brought up to date."""
        trainer = self.trainer
        trainer.global_step, trainer.update_count, trainer.warming_up = self.step, self.update_count, self.untrained
        return trainer

    def state_dict(self) -> dict[str, Any]:
        held = {"controls": dict(self.schedules.held)} if self.schedules.held else {}
        return {**super().state_dict(), "engine": self.engine.state_dict(self.trainer.algorithm), **held}
