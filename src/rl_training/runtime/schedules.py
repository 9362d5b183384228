"""Schedules: pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from rl_training.algorithms.base import Learner
    from rl_training.runtime.options import AlgorithmOptions

__all__ = [
    "ScheduleSpec",
    "Schedules",
    "apply_learning_rate_scale",
    "resolve_schedule_spec",
    "resolve_schedule_value",
]

ScheduleKind = Literal["constant", "linear", "cosine"]
KINDS = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class ScheduleSpec:
    """From ``start`` to ``end`` over the run. As a multiplier (learning rate), 1 to 0 by default."""

    kind: ScheduleKind = "constant"
    start: float = 1.0
    end: float = 0.0

    def value(self, progress: float) -> float:
        """``progress`` in [0, 1]."""
        progress = min(max(progress, 0.0), 1.0)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * progress
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * progress))
        return self.start


def resolve_schedule_spec(
    payload: ScheduleSpec | str | Mapping[str, Any] | None, *, start: float = 1.0
) -> ScheduleSpec:
    """None is constant; a string names the kind; a mapping has ``type`` and optionally ``start`` and ``end``.

    ``start`` is what a payload without one starts from.
    """
    if isinstance(payload, ScheduleSpec):
        return payload
    values: dict[str, Any] = {} if payload is None else {"type": payload} if isinstance(payload, str) else dict(payload)
    kind = values.pop("type", "constant")
    if kind not in KINDS:
        raise ValueError(f"schedule type must be one of {', '.join(KINDS)}, got {kind!r}")
    for name, value in values.items():
        if name not in ("start", "end"):
            raise ValueError(f"unknown part of a schedule: {name!r}; it has type, start and end")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} of a schedule must be a number, got {value!r}")
    return ScheduleSpec(kind, **{"start": float(start), **{name: float(value) for name, value in values.items()}})


def resolve_schedule_value(
    payload: ScheduleSpec | str | Mapping[str, Any] | None, *, step: int, total_steps: int, warmup_steps: int = 0
) -> float:
    """The value at ``step`` of ``total_steps`` (the last step is ``total_steps - 1``), after a linear warm-up."""
    spec = resolve_schedule_spec(payload)
    if step < warmup_steps:
        return spec.start * (step + 1) / warmup_steps
    return spec.value((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1))


def apply_learning_rate_scale(optimizers: Iterable[Any], scale: float) -> float:
    """Set every optimizer to ``scale`` times its initial learning rate; returns the first one's rate.

    Takes this package's optimizers and torch's.
    """
    rates = [one.scale_lr(scale) if hasattr(one, "scale_lr") else _scale_torch(one, scale) for one in optimizers]
    return float(rates[0]) if rates else 0.0


def _scale_torch(optimizer: torch.optim.Optimizer, scale: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * scale
    return float(optimizer.param_groups[0]["lr"])


Plan = tuple[str, ScheduleSpec, int, int]  # name, schedule, steps it runs over, warm-up steps


def _plan(name: str, options: AlgorithmOptions, total_steps: int) -> Plan:
    spec = resolve_schedule_spec(getattr(options, f"{name}_schedule"), start=getattr(options, name, 1.0))
    return name, spec, options.schedule_steps(name, total_steps), 0


class Schedules:
    """The scheduled quantities of a run: the learning rate, and the learner's ``CONTROLS`` that have a schedule.

    ``values`` are those in force, which are reported as metrics; ``held`` are those that were set by hand, in place of
    their schedules.
    """

    def __init__(self, agent: Learner, options: AlgorithmOptions, total_steps: int) -> None:
        self.values = {"lr_scale": 1.0, "learning_rate": apply_learning_rate_scale(agent.optimizers(), 1.0)}
        self.held: dict[str, float] = {}
        self._options = options
        scheduled = [name for name in agent.CONTROLS if getattr(options, f"{name}_schedule", None) is not None]
        self._plans = [_plan(name, options, total_steps) for name in scheduled]
        if options.learning_rate_schedule is not None or options.warmup_steps:
            rate = resolve_schedule_spec(options.learning_rate_schedule)
            self._plans.append(("lr_scale", rate, total_steps, options.warmup_steps))

    def apply(self, agent: Learner, step: int) -> None:
        """Set every scheduled quantity to its value at this environment step, if that is not in force already."""
        for name, spec, steps, warmup in self._plans:
            value = resolve_schedule_value(spec, step=step, total_steps=steps, warmup_steps=warmup)
            if self.values.get(name) != value:
                self._set(agent, name, value)

    def go_on(self, agent: Learner, values: Mapping[str, float]) -> None:
        """Put the values in force that were in force when a run was saved."""
        for name, *_ in self._plans:
            if name in values:
                self._set(agent, name, values[name])

    def controls(self, agent: Learner) -> dict[str, float]:
        """Everything that can be held, with the values in force."""
        return {"lr_scale": self.values["lr_scale"], **{name: agent.control(name) for name in agent.CONTROLS}}

    def hold(self, agent: Learner, name: str, value: float) -> None:
        """Set a quantity by hand: its schedule has no effect from now on."""
        known = ("lr_scale", *agent.CONTROLS)
        if name not in known:
            raise ValueError(f"there is no control {name!r} of {type(agent).__name__}; it has {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"the control {name} must be a number from 0 on, got {value!r}")
        if name in type(self._options).model_fields:
            self._options.replace(**{name: float(value)})  # within the option's bounds
        self._plans = [plan for plan in self._plans if plan[0] != name]
        self.held[name] = float(value)
        self._set(agent, name, float(value))

    def _set(self, agent: Learner, name: str, value: float) -> None:
        self.values[name] = value
        if name == "lr_scale":
            self.values["learning_rate"] = apply_learning_rate_scale(agent.optimizers(), value)
        else:
            agent.set_control(name, value)
