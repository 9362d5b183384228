"""Driving a loop: evaluate, log, save and stop around it, in one place for every algorithm."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from rl_training.base import signals
from rl_training.base.errors import raised
from rl_training.base.files import lock_folder
from rl_training.base.saved import Saved, within
from rl_training.base.signals import StoppedAtOnce, stop_signals
from rl_training.base.stop_kind import StopKind
from rl_training.base.streams import say
from rl_training.envs.checks import EnvironmentFailure
from rl_training.experiment import runs
from rl_training.experiment.checkpointing import CheckpointState, raise_on_mismatch
from rl_training.experiment.runs import RunContext
from rl_training.runtime.clock import Clock
from rl_training.runtime.engine import Engine
from rl_training.runtime.evaluation import EvaluationStopped
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.failures import report_failure
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.notes import Notes
from rl_training.runtime.run import Run
from rl_training.runtime.saving import Saver, restore
from rl_training.runtime.schedules import Schedules
from rl_training.runtime.trainer import TrainResult

__all__ = ["NOT_EVALUATED", "Driver"]

RUNNING = {"status": "running", "stop_kind": None, "stop_reason": None}
NOT_EVALUATED = {"eval_return_mean": math.nan, "eval_return_std": math.nan, "eval_episodes": 0.0}


class Driver:
    """Takes a run's loop to its total number of steps, or until a stop is requested."""

    def __init__(self, run: Run, loop: Loop, context: RunContext) -> None:
        self._run, self._loop, self._context = run, loop, context
        self._total = run.config.total_timesteps
        own_env = not isinstance(run.factory.source, str)
        self._saver = Saver(context, run.config, own_env=own_env, decided=run.decided, spaces=run.spaces)
        self._evaluator = Evaluator(
            run.config, run.factory, context.videos_dir, run.announce, stop=lambda: run.stopping.urgent
        )
        self._attended = 0  # the step up to which everything that was due has been evaluated and logged
        run.trainer.algorithm, run.trainer.run_dir = loop.agent, context.run_dir

    def drive(self, checkpoint: CheckpointState | None = None, *, locked: bool = False) -> TrainResult:
        """Train from the start, or on from a checkpoint; ``locked``: the caller has locked the run directory."""
        run, context = self._run, self._context
        with contextlib.nullcontext() if locked else lock_folder(context.run_dir):
            self._prepare(checkpoint)
            with run.engine.running(), stop_signals(self._on_signal, grace=signals.GRACE) as self._stops:
                runs.drop_later_checkpoints(context, run.step)
                runs.write_config(context, run.config)  # a resumed run may have been given another total
                warn_of_no_update(run, self._loop.first_update_step())
                run.reporter.open(context, run.step, logged=None if checkpoint is None else self._attended)
                with self._recorded(), self._watched():
                    run.reporter.announce_start(context, run.engine.why, run.chosen)
                    if run.origin is not None:
                        run.announce(str(run.origin))
                    with run.reporter.line_of_its_own(run.step):
                        run.callbacks.call("on_train_start", run.trainer_state())
                    self._iterate(resumed=checkpoint is not None)
                    return self._conclude()

    def _iterate(self, *, resumed: bool) -> None:
        run, loop, trainer = self._run, self._loop, self._run.trainer
        clock = Clock(run.config, run.options.eval_interval, self._attended)
        run.save_at = self._saver.due_at
        if (resumed and self._nothing_left(clock)) or trainer.should_stop:
            return
        for _ in loop:
            self._saver.stale = True
            if trainer.should_stop and (run.stopping.urgent or loop.mid_step):
                return  # the resumed run does what is due
            if (run.step < clock.next_step or loop.mid_step) and not trainer.should_stop:
                if time.monotonic() >= run.save_at:
                    self._save()
                continue
            self._attend(clock)
            run.reporter.progress.tick(run.step)
            if trainer.should_stop or run.step >= self._total:
                return

    def _nothing_left(self, clock: Clock) -> bool:
        """Do what was due when the checkpoint of a resumed run was written; True if there is nothing left to learn."""
        if self._attended < self._run.step and not self._loop.mid_step:
            self._attend(clock)
        return self._run.stopping.check_budgets(self._run) or self._at_total

    def _attend(self, clock: Clock) -> None:
        """Save, evaluate and log, whatever is due. The save comes first: evaluations are long, and what a stop or a
        crash prevents is due again when the run is resumed."""
        run, due = self._run, clock.due(self._run.step)
        metrics = self._checked_metrics() if due.log else None
        if due.save or (due.evaluate and self._saver.affordable):
            self._save()
        if due.evaluate and not self._evaluate():
            return
        if metrics is not None:
            run.reporter.log(run.step, metrics)
        self._attended, self._saver.stale = run.step, True

    def _conclude(self) -> TrainResult:
        """The last checkpoint, the last evaluation if the run ended by its own rules, and the result."""
        run, evaluator, trainer = self._run, self._evaluator, self._run.trainer
        path = self._save()
        ended = not trainer.should_stop or (run.stopping.requested_kind.exit_code == 0 and not evaluator.metrics)
        if (ended or self._at_total) and self._evaluate():
            path = self._save()
        self._stops.cancel(for_good=True)  # all is saved: callbacks and loggers may take their time
        metrics = {**self._metrics(), **(evaluator.metrics or NOT_EVALUATED), "global_step": run.step, **run.totals()}
        result = TrainResult(self._context.run_dir, path, metrics)
        with run.reporter.line_of_its_own(run.step, write=ended or self._at_total):  # else the resumed run's end does
            run.callbacks.call("on_train_end", run.trainer_state(), result)
        return result

    @property
    def _at_total(self) -> bool:
        """Whether all steps have been taken and learned from."""
        return self._run.step >= self._total and not self._loop.mid_step

    def _prepare(self, checkpoint: CheckpointState | None) -> None:
        """Load the checkpoint, and decide what depends on the agent."""
        run, agent = self._run, self._loop.agent
        if checkpoint is not None:
            restore(run, self._loop, checkpoint, self._total)
        run.schedules = Schedules(agent, run.options, self._total)
        saved = None if checkpoint is None else self._go_on(checkpoint)
        run.engine = saved or Engine.choose(run.config, agent, self._loop.expected_updates(self._total))
        run.engine.prepare(agent)

    def _restore_controls(self, checkpoint: CheckpointState) -> None:
        """Set again what callbacks had set by hand."""
        with raise_on_mismatch(), within("controls"):
            held = checkpoint.trainer_state.get("controls", {})
            saved = Saved(held, (), held)
            for name in held:
                self._run.schedules.hold(self._loop.agent, name, saved.number(name))

    def _go_on(self, checkpoint: CheckpointState) -> Engine | None:
        """Take over what a checkpoint notes beside the state; returns how its run's updates ran."""
        run, facts, evaluator = self._run, checkpoint.metadata, self._evaluator
        evaluator.recall(facts)
        notes = Notes.of(facts, run.step)
        if checkpoint.config.get("eval_episodes") == run.config.eval_episodes:
            evaluator.step = notes.evaluated
        self._attended = notes.attended
        run.reporter.go_on(notes)
        run.schedules.go_on(self._loop.agent, notes.schedules)
        self._restore_controls(checkpoint)
        engine = checkpoint.trainer_state.get("engine")
        with raise_on_mismatch():
            return None if engine is None else Engine.restored(engine)

    def _save(self) -> Path:
        run, evaluator = self._run, self._evaluator
        notes = Notes(self._attended, evaluator.step, schedules=run.schedules.values)
        run.reporter.note_in(notes)
        with self._stops.saving():
            path = self._saver.save(self._loop, run, evaluator, notes.saved())
        run.save_at = self._saver.due_at
        return path

    def _evaluate(self) -> bool:
        """Evaluate the agent, unless that was done at this step; False if a signal prevents it."""
        run, agent, evaluator = self._run, self._loop.agent, self._evaluator
        if evaluator.step == run.step:
            return True
        if run.stopping.urgent:
            return False
        try:
            improved = evaluator.evaluate(agent, run)
        except EvaluationStopped:
            return False
        run.reporter.log_evaluation(run.step, evaluator.metrics)
        if improved:
            self._saver.save_best(agent, run, evaluator)
        run.callbacks.call("on_eval_end", run.trainer_state(), evaluator.metrics)
        run.reporter.flush(run.step)
        self._saver.stale = True
        return True

    def _metrics(self) -> dict[str, float]:
        return self._run.reporter.metrics(self._run.schedules.values, self._loop.metrics())

    def _checked_metrics(self) -> dict[str, float]:
        """The metrics of a line; a run whose update gave a number that is not finite fails."""
        run, metrics = self._run, self._metrics()
        for name in run.reporter.update.metrics if run.reporter.update is not None else ():
            if not math.isfinite(metrics[name]):
                raise self._saver.failure(f"{name} is {metrics[name]} at step {run.step}")
        return {**metrics, **run.totals()}

    def _tell_of(self, error: Exception) -> None:
        """Tell callbacks that the run fails; what goes wrong with that does not hide why."""
        try:
            self._run.callbacks.call("on_train_failure", self._run.trainer_state(), error)
        except Exception as second:
            warnings.warn(f"a callback failed after the run had: {raised(second)}", stacklevel=2)

    def _on_signal(self, number: Signals) -> None:
        self._run.stopping.on_signal(number)
        self._run.reporter.progress.note(stop="stopping")

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        dog = self._run.factory.watchdog
        return contextlib.nullcontext() if dog is None else dog.watching(self._stops.interrupt, self._give_up)

    def _give_up(self, hung: EnvironmentFailure) -> None:
        """End the process, in which an environment hangs and cannot be interrupted; in a program that trains in a
        thread, only report it."""
        run, context, watchdog = self._run, self._context, self._run.factory.watchdog
        hung.incident = watchdog.incident() if watchdog is not None else None
        text = str(self._saver.failure(report_failure(context, run.config, run.step, hung)))
        failed = {"status": StopKind.FAILED.outcome, "stop_kind": StopKind.FAILED, "stop_reason": None}
        with contextlib.suppress(OSError):
            runs.write_metadata(context, {**failed, "step": run.step})
        say(f"rl-training: error: {text}", sys.stderr)
        if self._stops.installed:
            os._exit(1)

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Keep metadata.json true: that the run is running, and then how it ended."""
        began, kind = time.time(), StopKind.FAILED
        runs.write_metadata(self._context, {**RUNNING, "engine": self._run.engine.state_dict()})
        try:
            yield
            kind = self._kind()
        except (Exception, StoppedAtOnce) as error:
            kind = self._failed(error)
            raise
        finally:
            self._record_end(kind, time.time() - began)

    def _failed(self, error: Exception | StoppedAtOnce) -> StopKind:
        """Tell callbacks; the failure of an environment is reported, and raised as the run's."""
        if isinstance(error, StoppedAtOnce):
            error.run_dir = self._context.run_dir if runs.list_checkpoints(self._context) else None
            return StopKind.SIGNAL
        if isinstance(error, EnvironmentFailure):
            failure = self._saver.failure(report_failure(self._context, self._run.config, self._run.step, error))
            self._tell_of(failure)
            raise failure from error
        self._tell_of(error)
        return StopKind.FAILED

    def _kind(self) -> StopKind:
        """How the run ended, if it did not fail."""
        complete = not self._loop.mid_step and self._evaluator.step == self._run.step
        return self._run.stopping.kind(self._run, self._total, complete=complete)

    def _record_end(self, kind: StopKind, seconds: float) -> None:
        run = self._run
        reason = None if kind.reached_total else run.trainer.stop_reason
        facts = {"status": kind.status(reason), "stop_kind": kind, "stop_reason": reason, "step": run.step}
        with contextlib.suppress(OSError):
            runs.write_metadata(self._context, {**facts, "seconds": round(seconds, 1)})
        run.reporter.close(run.step)


def warn_of_no_update(run: Run, first: int) -> None:
    """Warn if the run ends before its first update, at environment step ``first``."""
    n = run.config.num_envs
    last = -(-run.config.total_timesteps // n) * n
    if run.untrained and first >= last:
        _warn_of_no_update(first, last)


def _warn_of_no_update(first: int, last: int) -> None:
    outcome = "nothing will be learned" if first > last else "next to nothing will be learned"
    warnings.warn(
        f"the first update comes at step {first:,} and the run ends at step {last:,}: {outcome}; "
        "raise total_timesteps, or lower learning_starts (or batch_size, train_frequency, if it is they)",
        stacklevel=4,
    )
