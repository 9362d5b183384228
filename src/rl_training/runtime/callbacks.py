"""Hooks into a run. Override what you need; the rest costs nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.algorithms.base import UpdateResult
    from rl_training.base.batches import Tensors
    from rl_training.envs.endings import Episode
    from rl_training.runtime.collector import CollectResult
    from rl_training.runtime.trainer import TrainerState, TrainResult

__all__ = ["Callback", "CallbackList"]


class Callback:
    """Give a callback ``state_dict`` and ``load_state_dict`` and its state is saved and resumed with the run."""

    def on_train_start(self, trainer: TrainerState) -> None: ...

    def on_episode_end(self, trainer: TrainerState, episode: Episode) -> None:
        """A training episode has ended: ``episode_return``, ``length``, ``success``, ``info``, ``env_index``."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None: ...

    def on_batch(self, trainer: TrainerState, batch: Tensors) -> None:
        """The learner's next update is made from this batch. Its tensors are reused: copy what must last."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None: ...

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None: ...

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None: ...

    def on_train_failure(self, trainer: TrainerState, error: Exception) -> None:
        """Training ends by an exception, which is raised when this returns."""


class CallbackList:
    """The callbacks of a run: their overridden hooks, and the states of those that have one, by position and type."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: list[Any] = list(callbacks)

    @property
    def _stateful(self) -> dict[str, Any]:
        return {f"{i}:{type(cb).__name__}": cb for i, cb in enumerate(self._callbacks) if hasattr(cb, "state_dict")}

    def hooks(self, name: str) -> list[Callable[..., None]]:
        """The bound hooks of this name that somebody overrides."""
        plain = getattr(Callback, name)
        overriding = (cb for cb in self._callbacks if getattr(type(cb), name, None) is not plain)
        return [getattr(cb, name) for cb in overriding if hasattr(cb, name)]

    def call(self, name: str, *arguments: Any) -> None:
        for hook in self.hooks(name):
            hook(*arguments)

    def state_dict(self) -> dict[str, Any]:
        return {name: cb.state_dict() for name, cb in self._stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict):
            raise ValueError("the states of callbacks are a mapping")
        for kind in {name.partition(":")[2] for name in self._stateful}:
            # by order among those of a type: a resumed run may have been given other callbacks beside them
            ours, saved = _of(kind, self._stateful), _of(kind, state)
            for cb, one in zip(ours, saved):
                cb.load_state_dict(one)
        left = {name.partition(":")[2] for name in state} - {name.partition(":")[2] for name in self._stateful}
        if left:
            text = "it goes on without; give it again by callbacks=[...] to go on as before"
            warnings.warn(f"the run was saved with the callback {', '.join(sorted(left))}: {text}", stacklevel=2)


def _of(kind: str, named: Mapping[str, Any]) -> list[Any]:
    """The values whose name is that of a type, in the order of their positions."""
    found = [name for name in named if name.partition(":")[2] == kind]
    return [named[name] for name in sorted(found, key=lambda name: int(name.partition(":")[0]))]
