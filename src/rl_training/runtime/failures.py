"""Reports of environments that failed: what went wrong, and how to get there again."""

from __future__ import annotations

import contextlib
import json
import traceback

from rl_training.base.files import write_durably
from rl_training.envs.checks import EnvironmentFailure
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunContext

__all__ = ["REPORT", "report_failure"]

REPORT = "environment_failure.json"


def report_failure(context: RunContext, config: TrainConfig, step: int, error: EnvironmentFailure) -> str:
    """Write error.txt, and a report by which the failure can be repeated, into the run directory; returns the error's
    text with the place of the report."""
    with contextlib.suppress(OSError):
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        write_durably(context.run_dir / "error.txt", ["".join(lines).encode()])
    if error.incident is None:
        return str(error)
    facts = {"env_id": config.env_id, "env_kwargs": config.env_kwargs, "run_seed": config.seed, "step": step}
    path = context.run_dir / REPORT
    try:
        write_durably(path, [json.dumps({"error": str(error), **facts, **error.incident}, default=str).encode()])
    except OSError:  # the disk may be full: the error itself matters more
        return str(error)
    return f"{error}; what led to it is in {path}"
