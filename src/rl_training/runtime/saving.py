"""Saving a run's checkpoints, and going on from one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.devices import state_to_host
from rl_training.base.saved import Saved
from rl_training.experiment import runs
from rl_training.experiment.checkpointing import (
    SUFFIX,
    CheckpointState,
    agent_state,
    first_nonfinite,
    raise_on_mismatch,
    save_checkpoint,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunContext
from rl_training.runtime.counters import Counters
from rl_training.runtime.slim import is_slim

if TYPE_CHECKING:
    from rl_training.algorithms.base import Learner
    from rl_training.envs.spaces import Spaces
    from rl_training.runtime.evaluator import Evaluator
    from rl_training.runtime.loops.base import Loop

__all__ = ["CannotResume", "Saver", "TrainingFailure", "refuse_agent_alone", "restore"]


SHARE = 10  # a save that is not due by steps waits until ten times its duration have passed since the last one


class TrainingFailure(RuntimeError):
    """Training cannot go on; the last good checkpoint stays."""


class CannotResume(TrainingFailure, ValueError):
    """A checkpoint that is whole and cannot be gone on from as asked: a mistake of whoever asked."""


class Saver:
    """Writes the checkpoints of a run: never a state that is not finite, only the newest few, and the best agent's."""

    def __init__(
        self,
        context: RunContext,
        config: TrainConfig,
        *,
        own_env: bool = False,
        decided: Sequence[str] = (),
        spaces: Spaces | None = None,
    ) -> None:
        """``own_env``: the environment was given as an object, so its id may not make another. ``decided``: options
        that the config had left open, which a run that starts from this one decides anew. ``spaces``: what the agent
        sees and does, for those who ask it without an environment."""
        self._decided = list(decided)
        self._context, self._config, self._own_env = context, config, own_env
        self._spaces = {} if spaces is None else {"spaces": spaces.facts()}
        self._folder = _identity(context.run_dir)
        self._saved_step, self.stale = -1, False  # stale: something has changed since the last save of this step
        self._began, self._ended = time.monotonic(), time.monotonic()  # of the last save

    def save(self, loop: Loop, run: Counters, evaluator: Evaluator, notes: Mapping[str, Any] = {}) -> Path:
        """Everything that exact resuming needs, and ``notes`` in its metadata; once for each step, unless ``stale``."""
        path = self._context.checkpoints_dir / runs.checkpoint_name(run.step)
        if self._saved_step != run.step or self.stale:
            self._began = time.monotonic()
            parts = loop.state_dict()
            self._write(path, parts.pop("agent"), parts, run, evaluator, notes)
            self._saved_step, self.stale = run.step, False
            runs.prune_checkpoints(self._context, self._config.keep_checkpoints)
            self._ended = time.monotonic()
        return path

    @property
    def due_at(self) -> float:
        """When the next save is due by the clock (``time.monotonic``), however few steps have been taken."""
        minutes = self._config.checkpoint_minutes
        return math.inf if minutes is None else self._ended + max(60 * minutes, SHARE * (self._ended - self._began))

    @property
    def affordable(self) -> bool:
        """Whether the last save is so long ago that saving takes little of the run's time."""
        return time.monotonic() - self._ended >= SHARE * (self._ended - self._began)

    def save_best(self, agent: Learner, run: Counters, evaluator: Evaluator) -> None:
        """The agent alone: it can be evaluated, not resumed."""
        self._write(self._context.checkpoints_dir / f"{runs.BEST}{SUFFIX}", agent.state_dict(), None, run, evaluator)

    def _write(
        self,
        path: Path,
        agent: dict[str, Any],
        buffers: dict[str, Any] | None,
        run: Counters,
        evaluator: Evaluator,
        notes: Mapping[str, Any] = {},
    ) -> None:
        if _identity(self._context.run_dir) != self._folder:
            raise TrainingFailure(f"the run directory {self._context.run_dir} is gone: step {run.step} cannot be saved")
        agent, buffers = state_to_host((agent, buffers))
        bad = first_nonfinite(agent)
        if bad:
            raise self.failure(f"{bad} is not finite at step {run.step}")
        config = self._config
        facts = {"algo": config.algo, "env_id": config.env_id, "step": run.step, "saved": time.time()}
        # evaluations are no part of the state: they depend on when they happened
        evaluations = {"best_eval": evaluator.best, "last_eval": evaluator.metrics or None}
        metadata = {**facts, "own_env": self._own_env, "chosen": self._decided, **self._spaces, **evaluations, **notes}
        state = CheckpointState(agent, buffers, run.state_dict(), config.plain(), metadata)
        try:
            save_checkpoint(path, state)
        except OSError as error:
            raise self.failure(f"cannot save {path}: {error.strerror or str(error) or type(error).__name__}") from error

    def failure(self, problem: str) -> TrainingFailure:
        """An error that says which checkpoint there is to go back to."""
        saved = runs.list_checkpoints(self._context)
        advice = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint had been saved yet"
        return TrainingFailure(f"{problem}; {advice}")


def _identity(folder: Path) -> tuple[int, int] | None:
    """What a folder has and another one of its name has not; None if there is no folder."""
    try:
        facts = os.stat(folder)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def refuse_agent_alone(state: CheckpointState) -> None:
    """Refuse to resume a checkpoint without the state of its loop, before anything is made."""
    if is_slim(state):
        raise CannotResume(
            "this checkpoint is slim (of a zoo): it holds networks without optimizers and cannot be resumed; a new run "
            "can start with its networks (--init-from, or init_from=)"
        )
    if state.buffer_state is None:
        raise CannotResume(
            "this checkpoint holds the agent alone (a 'best', or a file of agent.save) and cannot be resumed; a new "
            "run can start with its networks (--init-from, or init_from=)"
        )


def restore(run: Counters, loop: Loop, state: CheckpointState, total_steps: int) -> None:
    """Load a checkpoint into a run and its loop."""
    refuse_agent_alone(state)
    assert state.buffer_state is not None
    with raise_on_mismatch():
        done = Saved(state.trainer_state, ("step",), state.trainer_state).count("step")
    if done > total_steps < state.config.get("total_timesteps", total_steps):
        raise CannotResume(f"the run is at step {done:,} already, beyond a total of {total_steps:,}")
    own = {name: value for name, value in state.trainer_state.items() if name not in ("engine", "controls")}
    with raise_on_mismatch():
        loop.load_state_dict({**state.buffer_state, "agent": agent_state(state)})
        run.load_state_dict(own)  # last: it holds torch's random state
