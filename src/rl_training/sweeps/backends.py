"""Backends of a sweep: processes of this machine, or a Ray cluster; both run the same worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from rl_training.base.files import read_json_object, write_durably
from rl_training.base.modules import directories_added, look_in
from rl_training.envs.remote import connect
from rl_training.sweeps.plan import Job

__all__ = ["Backend", "Processes", "Ray"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# with this process's own import path: ``python -m`` would put the working directory, whosever it is, before all others
WORKER = "import sys; sys.path[:] = {path!r}; from rl_training.sweeps.worker import main; sys.exit(main())"
LAST_CALL = 60.0  # seconds a stopped run gets to save before it is ended


class Backend(Protocol):
    """Runs jobs; each job's end is reported once."""

    slots: int  # how many run at a time

    def start(self, job: Job) -> None: ...

    def ended(self) -> list[tuple[str, str]]:
        """(name, error or nothing) of what has ended since the last call."""
        ...

    def stop(self, name: str) -> None:
        """Ask a run to save and stop."""
        ...

    def close(self) -> None:
        """Stop everything and wait until it has been saved."""
        ...


class Processes:
    """A process for each run, so that one that dies takes no other with it."""

    def __init__(self, slots: int, threads: int) -> None:
        self.slots = slots
        self._environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._notes: dict[str, Path] = {}

    def start(self, job: Job) -> None:
        given = {"name": job.name, "config": job.config, "folder": str(job.folder), "label": job.label}
        with open(job.log_path, "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER.format(path=sys.path)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on
            )  # fmt: skip
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({**given, "parent": os.getpid()}).encode())
            process.stdin.close()
        self._running[job.name] = process
        self._notes[job.name] = job.note_path

    def ended(self) -> list[tuple[str, str]]:
        over = [(name, process.returncode) for name, process in self._running.items() if process.poll() is not None]
        for name, _ in over:
            del self._running[name]
        return [(name, self._error(name, code)) for name, code in over]

    def _error(self, name: str, code: int) -> str:
        if code == 0 or code == -signal.SIGTERM:  # stopped before it could save: nothing was lost
            return ""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(read_json_object(self._notes[name])["error"])
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        write_durably(self._notes[name], [json.dumps({"error": f"the run's process {ended}"}).encode()])
        return f"the run's process {ended}"

    def stop(self, name: str) -> None:
        if name in self._running:
            self._running[name].terminate()

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + LAST_CALL
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._running.clear()


class Ray:
    """A Ray task for each run. The folder must be shared by all nodes: a run whose node is lost resumes elsewhere,
    exactly, from its last checkpoint."""

    RETRIES = 20  # nodes a run may lose

    def __init__(self, slots: int | None, threads: int, address: str | None) -> None:
        ray = connect(address)
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.slots = slots if slots is not None else max(1, cores // threads)
        self._ray, self._running = ray, {}  # type: Any, dict[str, Any]
        environment = {"env_vars": dict.fromkeys(THREAD_VARIABLES, str(threads))}
        self._task = ray.remote(num_cpus=threads, max_retries=self.RETRIES, runtime_env=environment)(_run_remote)

    def start(self, job: Job) -> None:
        self._running[job.name] = self._task.options(name=job.name).remote(job, os.getcwd(), directories_added())

    def ended(self) -> list[tuple[str, str]]:
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=0)
        over = [(name, reference) for name, reference in self._running.items() if reference in ready]
        for name, _ in over:
            del self._running[name]
        return [(name, self._error(reference)) for name, reference in over]

    def _error(self, reference: Any) -> str:
        try:
            return str(self._ray.get(reference))
        except self._ray.exceptions.TaskCancelledError:
            return ""
        except self._ray.exceptions.RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

    def stop(self, name: str) -> None:
        if name in self._running:
            self._ray.cancel(self._running[name])  # an interrupt: the run saves and stops

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name)
        if self._running:
            self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=LAST_CALL)
        self._running.clear()
        self._ray.shutdown()


def _run_remote(job: Job, where: str, modules: list[str]) -> str:
    """Run a job on a Ray node; relative paths of its config count from where the sweep was started, and ``modules`` are
    the directories that the user's own modules may lie in."""
    from rl_training.sweeps.worker import run_job

    look_in(modules)
    try:
        os.chdir(where)
    except OSError:
        problem = f"{where}, where the sweep was started, is not there on another node"
        return f"{problem}; give an absolute --output-dir that all share"
    return run_job(job)
