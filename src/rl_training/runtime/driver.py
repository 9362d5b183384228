"""Driving a loop: evaluate, log, save and stop around it, in one place for every algorithm."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
import warnings
from collections.abc import Iterator
from signal import Signals

from rl_training.base.files import lock_folder
from rl_training.base.signals import stop_signals
from rl_training.base.stop_kind import StopKind
from rl_training.envs.checks import EnvironmentFailure
from rl_training.experiment import runs
from rl_training.experiment.checkpointing import CheckpointState, raise_on_mismatch
from rl_training.experiment.runs import RunContext
from rl_training.runtime.clock import Clock
from rl_training.runtime.engine import Engine
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.run import Run
from rl_training.runtime.saving import Saver, restore
from rl_training.runtime.schedules import Schedules
from rl_training.runtime.trainer import TrainResult

__all__ = ["NOT_EVALUATED", "Driver"]

NOT_EVALUATED = {"eval_return_mean": math.nan, "eval_return_std": math.nan, "eval_episodes": 0.0}


class Driver:
    """Takes a run's loop to its total number of steps, or until a stop is requested."""

    def __init__(self, run: Run, loop: Loop, context: RunContext) -> None:
        self._run, self._loop, self._context = run, loop, context
        self._total = run.config.total_timesteps
        self._saver = Saver(context, run.config, own_env=not isinstance(run.factory.source, str))
        self._evaluator = Evaluator(run.config, run.factory, context.videos_dir, run.announce)
        run.trainer.algorithm, run.trainer.run_dir = loop.agent, context.run_dir

    def drive(self, checkpoint: CheckpointState | None = None) -> TrainResult:
        """Train from the start, or on from a checkpoint."""
        run, context = self._run, self._context
        self._prepare(checkpoint)
        with (
            lock_folder(context.run_dir),
            run.engine.running(),
            stop_signals(self._on_signal, lambda: run.trainer.should_stop),
        ):
            runs.drop_later_checkpoints(context, run.step)
            runs.write_config(context, run.config)  # a resumed run may have been given another total
            warn_of_no_update(run, self._loop.first_update_step())
            run.reporter.open(context, run.step, resumed=checkpoint is not None)
            with recorded(run, self._saver, context):
                run.reporter.announce_start(context, run.engine.why, run.chosen)
                run.callbacks.call("on_train_start", run.trainer_state())
                self._iterate()
                return self._conclude()

    def _iterate(self) -> None:
        run, loop, trainer = self._run, self._loop, self._run.trainer
        clock = Clock(run.config, run.options.eval_interval, run.step)
        if run.stopping.check_budgets(run) or run.step >= self._total:
            return
        for _ in loop:
            if (run.step < clock.next_step or loop.mid_step) and not trainer.should_stop:
                continue
            due = clock.due(run.step)
            if due.evaluate:
                self._evaluate()
            if due.log:
                self._log()
            if due.save:  # after the evaluation: what callbacks make of it is saved too
                self._saver.save(loop, run, self._evaluator)
            run.reporter.progress.tick(run.step)
            if trainer.should_stop or run.step >= self._total:
                return

    def _conclude(self) -> TrainResult:
        """The last evaluation and checkpoint, and the result."""
        run, evaluator = self._run, self._evaluator
        if run.step >= self._total or not run.trainer.should_stop:
            self._evaluate()
        path = self._saver.save(self._loop, run, evaluator)
        if not evaluator.metrics and run.trainer.stop_kind is not StopKind.SIGNAL:  # a signal is obeyed within seconds
            self._evaluate()
        metrics = {**self._metrics(), **(evaluator.metrics or NOT_EVALUATED), "global_step": run.step, **run.totals()}
        result = TrainResult(self._context.run_dir, path, metrics)
        run.callbacks.call("on_train_end", run.trainer_state(), result)
        return result

    def _prepare(self, checkpoint: CheckpointState | None) -> None:
        """Load the checkpoint, and decide what depends on the agent."""
        run, agent, saved_engine = self._run, self._loop.agent, None
        if checkpoint is not None:
            restore(run, self._loop, checkpoint, self._total)
            self._evaluator.recall(checkpoint.metadata)
            saved_engine = checkpoint.trainer_state.get("engine")
        run.schedules = Schedules(agent, run.options, self._total)
        if saved_engine is not None:
            with raise_on_mismatch():
                run.engine = Engine.restored(saved_engine)
        else:
            run.engine = Engine.choose(run.config, agent, self._loop.expected_updates(self._total))
        run.engine.prepare(agent)

    def _evaluate(self) -> None:
        run, agent, evaluator = self._run, self._loop.agent, self._evaluator
        if evaluator.step == run.step:
            return
        improved = evaluator.evaluate(agent, run)
        run.reporter.log_evaluation(run.step, evaluator.metrics)
        if improved:
            self._saver.save_best(agent, run, evaluator)
        run.callbacks.call("on_eval_end", run.trainer_state(), evaluator.metrics)

    def _metrics(self) -> dict[str, float]:
        return self._run.reporter.metrics(self._run.schedules.values, self._loop.metrics())

    def _log(self) -> None:
        run, metrics = self._run, self._metrics()
        for name in run.reporter.update.metrics if run.reporter.update is not None else ():
            if not math.isfinite(metrics[name]):
                raise self._saver.failure(f"{name} is {metrics[name]} at step {run.step}")
        run.reporter.log(run.step, {**metrics, **run.totals()})

    def _on_signal(self, number: Signals) -> None:
        self._run.stopping.on_signal(number)
        self._run.reporter.progress.note(stop="stopping")


@contextlib.contextmanager
def recorded(run: Run, saver: Saver, context: RunContext) -> Iterator[None]:
    """Keep metadata.json true: that the run is running, and then how it ended."""
    began, kind = time.time(), StopKind.FAILED
    running = {"status": "running", "stop_kind": None, "stop_reason": None}
    runs.write_metadata(context, {**running, "engine": run.engine.state_dict()})
    try:
        yield
        kind = run.stopping.kind(run, run.config.total_timesteps)
    except EnvironmentFailure as error:
        (context.run_dir / "error.txt").write_text(traceback.format_exc())
        raise saver.failure(str(error)) from error
    finally:
        run.reporter.close(run.step)
        reason = None if kind.reached_total else run.trainer.stop_reason
        facts = {"status": kind.status(reason), "stop_kind": kind, "stop_reason": reason, "step": run.step}
        with contextlib.suppress(OSError):
            runs.write_metadata(context, {**facts, "seconds": round(time.time() - began, 1)})


def warn_of_no_update(run: Run, first: int) -> None:
    """Warn if the run ends before its first update, at environment step ``first``."""
    n = run.config.num_envs
    last = -(-run.config.total_timesteps // n) * n
    if run.untrained and first >= last:
        outcome = "nothing will be learned" if first > last else "next to nothing will be learned"
        warnings.warn(
            f"the first update comes at step {first:,} and the run ends at step {last:,}: {outcome}; "
            "raise total_timesteps, or lower learning_starts (or batch_size, train_frequency, if it is they)",
            stacklevel=3,
        )
