"""Early stopping, configured by ``algo_kwargs.early_stopping``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rl_training.base.options import Options, opt
from rl_training.base.saved import Saved
from rl_training.base.stop_kind import StopKind
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState

__all__ = ["EarlyStoppingCallback", "EarlyStoppingConfig", "build_control_callbacks"]


class EarlyStoppingConfig(Options):
    """Stop when an evaluation metric has reached its target, or has stopped improving. Evaluations before the first
    update do not count: nothing can have improved yet."""

    TITLE = "early_stopping"
    metric: str = opt("eval_return_mean", "the evaluation metric to watch")
    mode: Literal["max", "min"] = opt("max", "whether more or less of it is better")
    patience: int = Field(description="evaluations without improvement before stopping", ge=1)
    min_delta: float = opt(0.0, "a smaller change is no improvement", ge=0)
    min_steps: int = opt(0, "never stop before this many environment steps", ge=0)
    target_value: float | None = opt(None, "stop as soon as the metric is at least this good")


class EarlyStoppingCallback(Callback):
    """Watches one evaluation metric and requests a stop."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: float | None = None
        self.waited = 0

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        config = self.config
        if config.metric not in metrics:
            raise ValueError(f"early_stopping.metric: {config.metric!r} is not among {sorted(metrics)}")
        if getattr(trainer, "warming_up", False):  # whatever has request_stop may be given
            return
        sign = 1.0 if config.mode == "max" else -1.0
        value = float(metrics[config.metric])
        if self.best is None or sign * (value - self.best) > config.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if trainer.global_step < config.min_steps:
            return
        if config.target_value is not None and sign * (value - config.target_value) >= 0:
            _stop(trainer, f"{config.metric} {value:g} reached its target {config.target_value:g}")
        elif self.waited >= config.patience:
            _stop(trainer, f"{config.metric} has not improved for {self.waited} evaluations (best {self.best:g})")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("best", "waited"))
        self.best = None if saved["best"] is None else saved.number("best", finite=False)
        self.waited = saved.count("waited")


def _stop(trainer: TrainerState, reason: str) -> None:
    if isinstance(trainer, TrainerState):
        trainer.request_stop(reason, StopKind.EARLY)
    else:  # whatever has request_stop(reason) may be given
        trainer.request_stop(reason)


def build_control_callbacks(train_config: TrainConfig) -> list[Callback]:
    """The callbacks that ``algo_kwargs`` configures."""
    payload = train_config.algo_kwargs.get("early_stopping")
    return [] if payload is None else [_early_stopping(payload)]


def _early_stopping(payload: EarlyStoppingConfig | Mapping[str, Any]) -> Callback:
    return EarlyStoppingCallback(
        payload if isinstance(payload, EarlyStoppingConfig) else EarlyStoppingConfig(**payload)
    )
