"""Everything around a loop: seeds, counters, schedules, metrics, evaluation, checkpoints, stopping."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Learner, UpdateResult
from rl_training.base.batches import Tensors
from rl_training.base.files import held
from rl_training.base.state import Rng, Stateful
from rl_training.data.offline_dataset import REFERENCES
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film, video_suffix
from rl_training.envs.spaces import Spaces
from rl_training.experiment import runs
from rl_training.experiment.checkpointing import CheckpointState, first_nonfinite, fitting, save_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import option_text
from rl_training.experiment.runs import RunContext
from rl_training.runtime.callbacks import Callback, listeners
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.engine import Engine
from rl_training.runtime.evaluation import evaluate, scored
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.schedules import apply_learning_rate_scale, resolve_schedule_spec, resolve_schedule_value
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.tracking.figures import short
from rl_training.tracking.loggers import Logger, Loggers
from rl_training.tracking.progress import Progress


class TrainingFailure(RuntimeError):
    """Training cannot go on; the last good checkpoint stays."""


class TorchRng:
    """Torch's global generators, as a part that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        for device, saved in zip(range(torch.cuda.device_count()), state["cuda"]):
            torch.cuda.set_rng_state(saved, device)


class CallbackStates:
    """The states of callbacks that have one, by position and type."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self._callbacks = {
            f"{i}:{type(cb).__name__}": cb for i, cb in enumerate(callbacks) if hasattr(cb, "state_dict")
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: cb.state_dict() for name, cb in self._callbacks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, cb in self._callbacks.items():
            if name in state:
                cb.load_state_dict(state[name])  # type: ignore[attr-defined]


def crossings(before: int, after: int, interval: int) -> int:
    """How many multiples of ``interval`` lie in (before, after]."""
    return after // interval - before // interval


class Run(Stateful):
    """One training run. A loop asks it for streams and counters and hands it updates; ``drive`` does the rest."""

    STATE = ("step", "update_count", "gradient_steps", "epoch", "counters", "references")

    def __init__(
        self,
        config: TrainConfig,
        options: AlgorithmOptions,
        factory: EnvFactory,
        spaces: Spaces,
        *,
        device: torch.device,
        callbacks: list[Callback],
        loggers: Sequence[Logger] = (),
        chosen: dict[str, Any] | None = None,
    ) -> None:
        """``chosen``: options that were taken from the task; the run says which at its start."""
        self._chosen = chosen or {}
        self.step = self.update_count = self.gradient_steps = self.epoch = 0
        self.counters: dict[str, int] = {}
        self.references: dict[str, float] = {}  # returns of a random and an expert policy, where they are known
        self._best_eval: float | None = None
        self.torch_rng, self.callbacks = TorchRng(), CallbackStates(callbacks)
        self.config, self.spaces, self.device = config, spaces, device
        self._options, self.factory, self._own_loggers = options, factory, loggers
        self._state = TrainerState()
        self._progress = Progress("off", title="", total=1, start=0)  # until the run begins
        self._on_update = listeners(callbacks, "on_update_end")
        self._on_collect = listeners(callbacks, "on_collect_end")
        self._hooks = {h: listeners(callbacks, h) for h in ("on_train_start", "on_eval_end", "on_train_end")}
        self._result: UpdateResult | None = None
        self._notes: dict[str, float] = {}
        self._evaluation: dict[str, float] = {}
        self._evaluated_at = -1
        self._max_updates, self._max_epochs = options.max_updates, options.max_epochs
        total = config.total_timesteps
        self._log_every = config.log_interval or max(1, total // 100)
        self._save_every = config.checkpoint_interval or max(1, total // 20)
        self._eval_every = max(1, total // 20) if options.eval_interval is None else options.eval_interval
        torch.manual_seed(config.seed)

    # ---- what loops use

    def rng(self, name: str) -> Rng:
        """A random stream of its own for each purpose."""
        return Rng(self.config.seed, name)

    def collector(self, **options: Any) -> Collector:
        remote = self.config.execution_backend == "ray"
        return Collector(self.factory, self.config.num_envs, self.config.seed, remote=remote, **options)

    def refer(self, meta: dict[str, Any]) -> None:
        """Scores are reported between these returns, if the data names them."""
        self.references = {name: float(meta[name]) for name in REFERENCES if meta.get(name) is not None}

    def update(self, agent: Learner, batch: Tensors) -> UpdateResult:
        """One update of the learner, counted and announced."""
        return self.updated(agent.update(batch, global_step=self.step))

    def updated(self, result: UpdateResult) -> UpdateResult:
        """Count and announce an update that has been made."""
        self.update_count += 1
        self.gradient_steps += result.num_gradient_steps
        self._result = result
        for hook in self._on_update:
            hook(self._shown(), result)
        if self.budget_spent:
            self._state.request_stop(f"max_updates={self._max_updates} reached")
        return result

    def counted(self, result: UpdateResult) -> UpdateResult:
        """Count and announce learning of another kind than the learner's ``update``, which ``max_updates`` does not limit."""
        self.gradient_steps += result.num_gradient_steps
        for hook in self._on_update:
            hook(self._shown(), result)
        return result

    def end_epoch(self) -> None:
        """One collect-and-learn cycle (offline: one pass over the data) is done."""
        self.epoch += 1
        if self._max_epochs is not None and self.epoch >= self._max_epochs:
            self._state.request_stop(f"max_epochs={self._max_epochs} reached")

    @property
    def budget_spent(self) -> bool:
        """No update may follow: ``max_updates`` is reached."""
        return self._max_updates is not None and self.update_count >= self._max_updates

    def note(self, **metrics: float) -> None:
        """Metrics of the loop's own, logged with the learner's."""
        self._notes.update(metrics)

    def stage(self, name: str, done: int, total: int) -> None:
        """Show how far a phase has come in which no step is taken."""
        self._progress.stage(name, done, total, self.step)

    def say_stage(self, text: str, going_on: bool) -> None:
        """Show what a phase without steps is doing, if nobody knows how long it takes."""
        self._progress.note(stage=text if going_on else "")
        self._progress.tick(self.step)

    def say(self, message: str) -> None:
        """One line that stays."""
        self._progress.say(message)

    def count(self, name: str) -> int:
        """One more of the named; how many there are now."""
        self.counters[name] = self.counters.get(name, 0) + 1
        return self.counters[name]

    def collected(self, collector: Collector, steps: int) -> None:
        """Tell callbacks about new experience; free if nobody listens."""
        if self._on_collect:
            result = CollectResult(steps, collector.episodes, collector.metrics(), collector.obs)
            for hook in self._on_collect:
                hook(self._shown(), result)

    def apply_schedules(self, agent: Learner) -> None:
        """Give every scheduled quantity its value at this step."""
        for name, spec, horizon, warmup in self._schedules:
            value = resolve_schedule_value(spec, step=self.step, total_steps=horizon, warmup_steps=warmup)
            if self._notes.get(name) == value:
                continue
            self._notes[name] = value
            if name == "lr_scale":
                self._notes["learning_rate"] = apply_learning_rate_scale(agent.optimizers(), value)
            else:
                agent.set_control(name, value)

    def _plan_schedules(self, agent: Learner) -> None:
        total, options = self.config.total_timesteps, self._options
        self._schedules: list[tuple[str, Any, int, int]] = []
        rate = resolve_schedule_spec(options.learning_rate_schedule)
        self._notes = {"lr_scale": 1.0, "learning_rate": apply_learning_rate_scale(agent.optimizers(), 1.0)}
        if rate.kind != "constant" or rate.start != 1.0 or options.warmup_steps:
            self._schedules.append(("lr_scale", rate, total, options.warmup_steps))
        for name in agent.CONTROLS:
            payload = getattr(options, f"{name}_schedule", None)
            if payload is not None:
                spec = resolve_schedule_spec(payload, start=getattr(options, name, 1.0))
                self._schedules.append((name, spec, options.schedule_steps(name, total), 0))

    # ---- driving

    def drive(
        self, loop: Any, context: RunContext, checkpoint: CheckpointState | None, expected_updates: int
    ) -> TrainResult:
        """Run the loop to its total, or until it is told to stop; evaluate, log and save on the way."""
        agent: Learner = loop.agent
        self._state.algorithm, self._state.run_dir = agent, context.run_dir
        if checkpoint is not None:
            self._restore(loop, checkpoint)
        self._plan_schedules(agent)
        saved_engine = checkpoint.trainer_state.get("engine") if checkpoint else None
        self.engine = (
            Engine.restored(saved_engine) if saved_engine else Engine.choose(self.config, agent, expected_updates)
        )
        self.engine.prepare(agent)
        with held(context.run_dir), self.engine.running(), self._signals():
            runs.drop_later_checkpoints(context, self.step)
            runs.write_config(context, self.config)  # a resumed run may have been given another total
            self._warn_of_no_update(loop.first_update_step())
            return self._driven(loop, context, resumed=checkpoint is not None)

    @property
    def _untrained(self) -> bool:
        return self.update_count == 0 and self.gradient_steps == 0

    def _warn_of_no_update(self, first: int) -> None:
        """Say at once if the run ends before it has begun to learn."""
        n = self.config.num_envs
        last = -(-self.config.total_timesteps // n) * n
        if self._untrained and first >= last:
            outcome = "nothing will be learned" if first > last else "next to nothing will be learned"
            warnings.warn(
                f"the first update comes at step {first:,} and the run ends at step {last:,}: {outcome}; "
                "raise total_timesteps, or lower learning_starts (or batch_size, train_frequency, if it is they)",
                stacklevel=2,
            )

    def _driven(self, loop: Any, context: RunContext, *, resumed: bool) -> TrainResult:
        config, agent, total = self.config, loop.agent, self.config.total_timesteps
        self._loggers = Loggers(context, config, self.step if resumed else None, self._own_loggers)
        title = f"{config.algo} {config.env_id}"
        self._progress = Progress(config.progress, title=title, total=total, start=self.step)
        self._saved_at, began, status = -1, time.time(), "failed"
        runs.write_metadata(context, {"status": "running", "engine": self.engine.state_dict()})
        try:
            self._progress.say(f"{title}: run directory {context.run_dir}")
            self._progress.say(f"{title}: {self.engine.why}")
            if self._chosen:
                options = ", ".join(f"{name} {option_text(value)}" for name, value in self._chosen.items())
                self._progress.say(f"chosen for this task, unless set: {options}")
            for hook in self._hooks["on_train_start"]:
                hook(self._shown())
            if self.budget_spent or (self._max_epochs is not None and self.epoch >= self._max_epochs):
                self._state.request_stop("the budget of updates or epochs is spent")
            elif self.step < total:
                served, due = self.step, self._event_after(self.step)
                for _ in loop:
                    # in the middle of a step's work there is nothing to evaluate or save yet, unless the run is to stop
                    if (self.step < due or getattr(loop, "stepped", False)) and not self._state.should_stop:
                        continue
                    if self._serve(loop, context, served):
                        break
                    served, due = self.step, self._event_after(self.step)
            if self.step >= total or not self._state.should_stop:
                self._evaluate(agent, context)
            path = self._save(loop, context)
            metrics = {**self._last_metrics(loop), **self._evaluation}
            metrics = {**metrics, "global_step": self.step, "gradient_steps": self.gradient_steps}
            metrics = {**metrics, "update_count": self.update_count, "epoch": self.epoch}
            if "eval_return_mean" not in metrics:  # stopped before the first evaluation
                metrics |= self._evaluate(agent, context)
            result = TrainResult(context.run_dir, path, metrics)
            for hook in self._hooks["on_train_end"]:
                hook(self._shown(), result)
            if self.step >= total:
                status = runs.UNTRAINED if self._untrained else "finished"
            else:
                status = f"stopped: {self._state.stop_reason}"
            return result
        except EnvironmentFailure as error:
            (context.run_dir / "error.txt").write_text(traceback.format_exc())
            raise TrainingFailure(f"{error}; {self._advice(context)}") from error
        finally:
            self._progress.close(self.step)
            self._loggers.close()
            seconds = round(time.time() - began, 1)
            with contextlib.suppress(OSError):
                runs.write_metadata(context, {"status": status, "step": self.step, "seconds": seconds})

    def _event_after(self, step: int) -> int:
        """The next step at which there is something to do."""
        intervals = [self._log_every, self._save_every, *([self._eval_every] if self._eval_every else [])]
        draw = step + max(1, self._log_every // 10)  # lets the progress bar move between log lines
        return min(self.config.total_timesteps, draw, *((step // k + 1) * k for k in intervals))

    def _serve(self, loop: Any, context: RunContext, before: int) -> bool:
        """Log, evaluate and save what has come due since ``before``; True ends the run."""
        step, total = self.step, self.config.total_timesteps
        done = step >= total
        evaluated = bool(self._eval_every and crossings(before, step, self._eval_every) and not done)
        if evaluated:
            self._evaluate(loop.agent, context)
        if crossings(before, step, self._log_every) or done:
            self._log(loop)
        if crossings(before, step, self._save_every) and not done:
            self._save(loop, context)
        self._progress.tick(step)
        return done or self._state.should_stop

    def _last_metrics(self, loop: Any) -> dict[str, float]:
        metrics = dict(self._result.metrics) if self._result is not None else {}
        metrics.update(self._notes)
        metrics.update(loop.metrics())
        return metrics

    def _log(self, loop: Any) -> None:
        metrics = self._last_metrics(loop)
        for name in self._result.metrics if self._result is not None else ():
            if not math.isfinite(metrics[name]):
                raise TrainingFailure(f"{name} is {metrics[name]} at step {self.step}; {self._advice_dir()}")
        counts = {"gradient_steps": self.gradient_steps, "update_count": self.update_count, "epoch": self.epoch}
        self._loggers.write(self.step, {**metrics, **counts})
        if "episode_return" in metrics:
            self._progress.note(episodes=f"return {short(metrics['episode_return'])}")
        self._progress.log(self.step)

    def _evaluate(self, agent: Learner, context: RunContext) -> dict[str, float]:
        if self._evaluated_at == self.step:
            return self._evaluation
        film = self._film(context)
        factory = self.factory if film is None else replace(self.factory, render=True)
        with film or contextlib.nullcontext():
            plain = evaluate(agent, factory, episodes=self.config.eval_episodes, seed=self.config.seed, watch=film)
        self._evaluation = scored(plain, self.references)
        self._evaluated_at = self.step
        self._loggers.write(self.step, self._evaluation)
        mean = self._evaluation["eval_return_mean"]
        self._progress.note(evaluation=f"eval {short(mean)}")
        if self._best_eval is None or mean > self._best_eval:
            self._best_eval = mean
            state = CheckpointState(
                agent.state_dict(), None, self.state_dict(), self.config.plain(), self._file_metadata()
            )
            self._guarded(context.checkpoints_dir / f"best{runs.SUFFIX}", state)
        for hook in self._hooks["on_eval_end"]:
            hook(self._shown(), self._evaluation)
        return self._evaluation

    def _film(self, context: RunContext) -> Film | None:
        """Of the evaluation at this step, if evaluations are recorded."""
        if not self.config.record_video:
            return None
        path = context.videos_dir / f"step_{self.step:010d}{video_suffix()}"
        return Film(path, episodes=self.config.record_video, on_failure=self.say)

    # ---- saving and stopping

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "engine": self.engine.state_dict(self._state.algorithm)}

    def _restore(self, loop: Any, state: CheckpointState) -> None:
        if state.buffer_state is None:
            raise TrainingFailure(
                "this checkpoint holds the agent alone (a 'best' or an exported one) and cannot be resumed"
            )
        done = state.trainer_state["step"]
        if done > self.config.total_timesteps < state.config["total_timesteps"]:
            raise TrainingFailure(
                f"the run is at step {done:,} already, beyond a total of {self.config.total_timesteps:,}"
            )
        trainer = {name: value for name, value in state.trainer_state.items() if name != "engine"}
        with fitting():
            loop.load_state_dict({"agent": state.algorithm_state, **state.buffer_state})
            self.load_state_dict(trainer)  # last: it holds torch's random state
        self._best_eval = state.metadata.get("best_eval")

    def checkpoint_state(self, loop: Any) -> CheckpointState:
        parts = loop.state_dict()
        return CheckpointState(parts.pop("agent"), parts, self.state_dict(), self.config.plain(), self._file_metadata())

    def _save(self, loop: Any, context: RunContext) -> Path:
        path = context.checkpoints_dir / runs.checkpoint_name(self.step)
        if self._saved_at != self.step:
            self._guarded(path, self.checkpoint_state(loop))
            self._saved_at = self.step
            runs.prune_checkpoints(context, self.config.keep_checkpoints)
        return path

    def _guarded(self, path: Path, state: CheckpointState) -> None:
        """A bad state is never saved over a good one."""
        bad = first_nonfinite(state.algorithm_state)
        if bad:
            raise TrainingFailure(f"{bad} is not finite at step {self.step}; {self._advice_dir()}")
        try:
            save_checkpoint(path, state)
        except OSError as error:
            raise TrainingFailure(
                f"cannot save {path}: {error.strerror or str(error) or type(error).__name__}; {self._advice_dir()}"
            ) from error

    def _file_metadata(self) -> dict[str, Any]:
        facts = {"algo": self.config.algo, "env_id": self.config.env_id, "step": self.step, "saved": time.time()}
        facts["own_env"] = not isinstance(self.factory.source, str)
        return {**facts, "best_eval": self._best_eval}  # no part of the state: it depends on when evaluations happened

    def _advice_dir(self) -> str:
        return self._advice(runs.RunContext("", self._state.run_dir or Path()))

    def _advice(self, context: RunContext) -> str:
        saved = runs.list_checkpoints(context)
        return f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint had been saved yet"

    def _shown(self) -> TrainerState:
        self._state.global_step, self._state.update_count = self.step, self.update_count
        self._state.warming_up = self._untrained
        return self._state

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM stops at the next safe point and saves; a second Ctrl-C interrupts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self._state.should_stop and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._state.request_stop(f"received {signal.Signals(number).name}")
            self._progress.note(stop="stopping")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
