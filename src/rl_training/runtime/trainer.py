"""What a run hands out: its state to callbacks, its result at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class TrainResult:
    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TrainerState:
    """What callbacks receive. ``request_stop`` ends the run at the next safe point: it saves, returns, and can be resumed
    to its original total."""

    algorithm: Any = None  # the learner
    run_dir: Path | None = None
    global_step: int = 0
    update_count: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    warming_up: bool = False  # no update has been made yet: evaluations are of the initial agent

    def request_stop(self, reason: str) -> None:
        self.should_stop = True
        self.stop_reason = self.stop_reason or reason
