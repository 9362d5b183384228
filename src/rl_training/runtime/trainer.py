"""What a run hands out: its state to callbacks, its result at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.base.stop_kind import StopKind

__all__ = ["TrainResult", "TrainerState"]


@dataclass(slots=True)
class TrainResult:
    """Where a run's files are, and its last metrics."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TrainerState:
    """What callbacks receive. ``request_stop`` ends the run at the next safe point: it saves, returns, and can be
    resumed to its original total."""

    algorithm: Any = None  # the learner
    run_dir: Path | None = None
    global_step: int = 0
    update_count: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    stop_kind: StopKind | None = None
    warming_up: bool = False  # no update has been made yet: evaluations are of the initial agent

    def request_stop(self, reason: str, kind: StopKind = StopKind.REQUESTED) -> None:
        """The first request gives the reason and the kind; so does a callback that set ``stop_reason`` itself."""
        if self.stop_kind is None:
            own = self.stop_reason is not None
            self.stop_reason, self.stop_kind = (self.stop_reason, StopKind.REQUESTED) if own else (reason, kind)
        self.should_stop = True
