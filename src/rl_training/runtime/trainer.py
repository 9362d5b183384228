"""What a run hands out: its state to callbacks, its result at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.base.stop_kind import StopKind

if TYPE_CHECKING:
    from rl_training.envs.factory import EnvFactory
    from rl_training.envs.multi_agent_collector import Opponents
    from rl_training.experiment.config import TrainConfig

__all__ = ["Controlled", "TrainResult", "TrainerState"]


class Controlled(Protocol):
    """The run behind a ``TrainerState``, as far as callbacks can use it."""

    config: TrainConfig
    factory: EnvFactory

    def log_number(self, name: str, value: Any) -> None: ...

    def log_histogram(self, name: str, values: Any) -> None: ...

    def log_text(self, name: str, text: str) -> None: ...

    def controls(self) -> dict[str, float]: ...

    def set_control(self, name: str, value: float) -> None: ...

    def set_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> None: ...

    def set_opponents(self, opponents: Opponents) -> None: ...


@dataclass(slots=True)
class TrainResult:
    """Where a run's files are, and its last metrics."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TrainerState:
    """What callbacks receive. ``request_stop`` ends the run at the next safe point: it saves, returns, and can be
    resumed to its original total. ``log`` adds a number to the run's metrics, ``set_control`` changes a coefficient."""

    algorithm: Any = None  # the learner
    run_dir: Path | None = None
    global_step: int = 0
    update_count: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    stop_kind: StopKind | None = None
    warming_up: bool = False  # no update has been made yet: evaluations are of the initial agent
    urgent: bool = False  # a signal has come: whoever sent it waits for the end
    run: Controlled | None = field(default=None, repr=False, compare=False)  # what the methods below act on

    def request_stop(self, reason: str, kind: StopKind = StopKind.REQUESTED) -> None:
        """The first request gives the reason and the kind; so does a callback that set ``stop_reason`` itself."""
        if self.stop_kind is None:
            own = self.stop_reason is not None
            self.stop_reason, self.stop_kind = (self.stop_reason, StopKind.REQUESTED) if own else (reason, kind)
        self.should_stop = True

    @property
    def _run(self) -> Controlled:
        if self.run is None:
            raise RuntimeError("this TrainerState belongs to no run")
        return self.run

    @property
    def config(self) -> TrainConfig:
        """The run's config."""
        return self._run.config

    @property
    def factory(self) -> EnvFactory:
        """What makes the run's environments."""
        return self._run.factory

    def log(self, name: str, value: Any) -> None:
        """Add a number to the next line of metrics, and so to every logger; logged again before it, the last value
        stands."""
        self._run.log_number(name, value)

    def log_histogram(self, name: str, values: Any) -> None:
        """Write how an array's or a tensor's values are distributed, to the loggers that show histograms."""
        self._run.log_histogram(name, values)

    def log_text(self, name: str, text: str) -> None:
        """Write a text (Markdown), to the loggers that show texts."""
        self._run.log_text(name, text)

    @property
    def controls(self) -> dict[str, float]:
        """What ``set_control`` can change, with the values in force: ``lr_scale`` and the learner's coefficients."""
        return self._run.controls()

    def set_control(self, name: str, value: float) -> None:
        """Change the learning rate's scale or a coefficient from now on, in place of its schedule, if it has one; a
        resumed run keeps it."""
        self._run.set_control(name, value)

    def set_env_kwargs(self, **env_kwargs: Any) -> None:
        """Make each training environment with these arguments too, from its next episode on; evaluations stay as
        they are. They replace those set before."""
        self._run.set_env_kwargs(env_kwargs)

    def set_opponents(self, opponents: Opponents) -> None:
        """Let others act for some agents of the parallel environments that the learner trains in."""
        self._run.set_opponents(opponents)
