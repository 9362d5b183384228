"""metrics.jsonl: one JSON object per line, which resuming and reports read."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.base.files import write_durably

__all__ = ["MOST_STEPS", "MetricsFile", "metrics_row", "number"]

LARGEST = 1e100  # of a metric that is read: sums and squares of more would not be finite
MOST_STEPS = 2**63


class MetricsFile:
    """metrics.jsonl, opened for appending.

    A resumed run repeats what came after ``resume_step``, so those lines are removed first.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        if resume_step is not None and path.exists():
            before = path.read_bytes()
            kept = [line for line in before.splitlines() if _step_of(line) <= resume_step]
            after = b"".join(line + b"\n" for line in kept)
            if after != before:
                write_durably(path, [after])
        self._file = open(path, "a")  # noqa: SIM115

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps(metrics_row(step, values)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def metrics_row(step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """Make one line of metrics with its step and time; numbers that are not finite become None."""
    clean = {k: (v if math.isfinite(v) else None) if isinstance(v, float) else v for k, v in values.items()}
    return {"step": step, "time": round(time.time(), 3), **clean}


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf  # a line cut short by a crash


def number(value: Any, low: float = -LARGEST, high: float = LARGEST) -> Any:
    """The value that a file holds, if it is a number within bounds (NaN is not), else None."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    return value if fine else None
