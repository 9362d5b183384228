"""Hooks into a run. Override what you need; the rest costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.algorithms.base import UpdateResult
    from rl_training.runtime.collector import CollectResult
    from rl_training.runtime.trainer import TrainerState, TrainResult


class Callback:
    """Give a callback ``state_dict`` and ``load_state_dict`` and its state is saved and resumed with the run."""

    def on_train_start(self, trainer: TrainerState) -> None: ...

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None: ...

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None: ...

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None: ...

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None: ...


def listeners(callbacks: list[Callback], hook: str) -> list[Callable[..., Any]]:
    """The bound hooks that somebody overrides."""
    plain = getattr(Callback, hook)
    return [getattr(cb, hook) for cb in callbacks if hasattr(cb, hook) and getattr(type(cb), hook, None) is not plain]
