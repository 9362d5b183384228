"""What every worker of a sweep does: train one run, or resume it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rl_training.base.files import lock_folder, real_folder, write_durably
from rl_training.base.trust import modules_named
from rl_training.sweeps.plan import Job

__all__ = ["main", "run_job"]

PATIENCE = 60.0  # seconds a worker that lost its parent or its node may still need to save and let go


def run_job(job: Job) -> str:
    """Train or resume. Returns the error in one line, or nothing; interrupted runs are not errors."""
    job.note_path.parent.mkdir(parents=True, exist_ok=True)
    job.note_path.unlink(missing_ok=True)
    try:
        _train(job)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        note = {"error": text, "traceback": traceback.format_exc()}
        write_durably(job.note_path, [json.dumps(note, indent=1).encode()])
        return text
    return ""


def _train(job: Job) -> None:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.runs import RunContext, list_checkpoints
    from rl_training.runtime.workflows import resume_training

    if real_folder(job.run_dir):
        with lock_folder(job.run_dir, PATIENCE):  # another worker may still be saving the run
            saved = bool(list_checkpoints(RunContext(job.name, job.run_dir)))
            if not saved:
                shutil.rmtree(job.run_dir)  # it was stopped before anything was saved
        if saved:
            resume_training(job.run_dir, trust=modules_named(job.config.get("env_id"), job.config.get("env_kwargs")))
            return
    config = TrainConfig(**job.config)
    get_algorithm_spec(config.algo).train(config, run_suffix=job.label)


def _follow_parent(parent: int) -> None:
    """Stop and save if the sweep's process is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    given: dict[str, Any] = json.loads(sys.stdin.read())
    threading.Thread(target=_follow_parent, args=(given.pop("parent"),), daemon=True).start()
    error = run_job(Job(**{**given, "folder": Path(given["folder"])}))
    if error:
        print(error, file=sys.stderr)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
