"""Slim checkpoints: an agent that acts and can be the start of a new run, without what only its own run needs to go on.

A slim checkpoint holds every part of the learner but its optimizers: networks, target networks, normalisers, tuned
coefficients and counts of updates. Its metadata say so (``slim``). Whoever loads it to act gets optimizers as new ones
are; without that mark, a checkpoint that lacks an optimizer is refused like any other that lacks a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.base.saved import StateError
from rl_training.base.state import Stateful
from rl_training.experiment.checkpointing import CheckpointState, agent_state
from rl_training.experiment.config import TrainConfig
from rl_training.optim.flat import FlatOptimizer
from rl_training.runtime.counters import Counters
from rl_training.runtime.notes import Notes

__all__ = ["evaluated_as_saved", "is_slim", "loadable_state", "named_optimizers", "saved_optimizers", "slim_copy"]

KEPT = ("algo", "env_id", "step", "saved", "own_env", "chosen", "spaces")  # of the metadata
RUN_FIELDS = ("output_dir", "init_from", "init_parts", "init_optimizer", "init_replay")  # what only the run is about


def is_slim(state: CheckpointState) -> bool:
    """Whether a checkpoint was written without optimizers, and says so."""
    return state.metadata.get("slim") is True


def slim_copy(state: CheckpointState) -> CheckpointState:
    """The slim checkpoint of a checkpoint: no optimizers, buffers, callbacks or random generators, and of the run's
    folders no path."""
    step = state.trainer_state.get("step")
    metadata = {name: state.metadata[name] for name in KEPT if name in state.metadata}
    evaluation = evaluated_as_saved(state)
    return CheckpointState(
        algorithm_state=_without_optimizers(agent_state(state)),
        buffer_state=None,
        trainer_state={name: state.trainer_state[name] for name in Counters.STATE if name in state.trainer_state},
        config={name: value for name, value in state.config.items() if name not in RUN_FIELDS}
        | {"output_dir": str(TrainConfig.model_fields["output_dir"].default)},
        metadata={**metadata, "step": step, "slim": True} | ({"last_eval": evaluation} if evaluation else {}),
    )


def evaluated_as_saved(state: CheckpointState) -> dict[str, float] | None:
    """The evaluation of the very agent that a checkpoint holds, where it was saved after that; else None.

    Most checkpoints are written before their step is evaluated, and know the evaluation before only.
    """
    step, last = state.trainer_state.get("step"), state.metadata.get("last_eval")
    if not isinstance(step, int) or not isinstance(last, dict):
        return None
    return last if is_slim(state) or Notes.of(state.metadata, step).evaluated == step else None


def loadable_state(agent: Learner, state: CheckpointState) -> dict[str, Any]:
    """What an agent that is to act loads of a checkpoint: its state, with the agent's own fresh optimizers where the
    checkpoint is slim."""
    saved = agent_state(state)
    if not is_slim(state):
        return saved
    unexpected = next(saved_optimizers(saved), None)
    if unexpected is not None:
        raise StateError("is there, in a checkpoint that says it holds no optimizers", unexpected[0])
    whole = _nested_copy(saved)
    for name, optimizer in named_optimizers(agent):
        *parents, last = name.split(".")
        place = whole
        for parent in parents:
            place = place.get(parent, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place[last] = optimizer.state_dict()
    return whole


def named_optimizers(learner: Stateful, prefix: str = "") -> Iterator[tuple[str, FlatOptimizer]]:
    """The optimizers of a learner, and of the parts in it, by name."""
    for name, part in learner._parts().items():
        if isinstance(part, FlatOptimizer):
            yield f"{prefix}{name}", part
        elif isinstance(part, Stateful):
            yield from named_optimizers(part, f"{prefix}{name}.")


def saved_optimizers(saved: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The states of the optimizers in a saved agent, by name."""
    for name, part in saved.items():
        if isinstance(part, dict) and name.endswith("optimizer"):
            yield f"{prefix}{name}", part
        elif isinstance(part, dict):
            yield from saved_optimizers(part, f"{prefix}{name}.")


def _without_optimizers(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_optimizers(part) if isinstance(part, dict) else part
        for name, part in saved.items()
        if not (isinstance(part, dict) and name.endswith("optimizer"))
    }


def _nested_copy(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the mappings of a state, which shares its tensors."""
    return {name: _nested_copy(part) if isinstance(part, dict) else part for name, part in saved.items()}
