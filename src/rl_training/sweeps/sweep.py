"""Running the jobs of a sweep, a few at a time, with one table that shows them all."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TextIO

from rl_training.base.signals import stop_signals
from rl_training.base.streams import say
from rl_training.sweeps.backends import Backend
from rl_training.sweeps.plan import Job, JobStatus, job_status
from rl_training.tracking.figures import clock, short
from rl_training.tracking.progress import can_redraw

__all__ = ["Feed", "Interrupted", "JobTable", "ListFeed", "run_feed", "run_jobs", "state_counts"]

PAUSE = 0.25  # seconds between looks at the backend
LOOK = 1.0  # seconds between looks at the runs' files
LINE_EVERY = 30.0  # seconds between lines, where there is no terminal


class Interrupted(Exception):
    """The sweep was stopped by a signal; every run has been saved."""


class Feed(Protocol):
    """A source of jobs that is notified of their progress."""

    def next(self) -> Job | None:
        """The next job to start, if there is one now."""
        ...

    @property
    def over(self) -> bool:
        """Whether no further job will come."""
        ...

    def look(self, job: Job) -> bool:
        """Called about once a second for a job that runs; False stops it."""
        ...

    def ended(self, job: Job, now: JobStatus) -> str:
        """Take note of a job's end; returns a remark to show in place of its state, or nothing."""
        ...


class ListFeed:
    """The jobs of a list, in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = list(jobs)

    def next(self) -> Job | None:
        return self._waiting.pop(0) if self._waiting else None

    @property
    def over(self) -> bool:
        return not self._waiting

    def look(self, job: Job) -> bool:
        return True

    def ended(self, job: Job, now: JobStatus) -> str:
        return ""


def run_jobs(jobs: Sequence[Job], backend: Backend, *, stream: TextIO | None = None) -> dict[str, JobStatus]:
    """Run all jobs to their end; finished ones are left alone, others resume. Returns the status of each."""
    statuses = {job.name: job_status(job) for job in jobs}
    waiting = [job for job in jobs if statuses[job.name].state != "finished"]
    table = JobTable(jobs, stream or sys.stderr)
    if len(waiting) < len(jobs):
        table.say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished and kept")
    run_feed(ListFeed(waiting), backend, table, statuses)
    return statuses


def run_feed(source: Feed, backend: Backend, table: JobTable, statuses: dict[str, JobStatus]) -> None:
    """Start jobs while the backend has room, and watch them, until no more come or a signal arrives."""
    running: dict[str, Job] = {}
    looked = 0.0
    stopped = threading.Event()
    with table, stop_signals(lambda _: stopped.set()):
        try:
            while (running or not source.over) and not stopped.is_set():
                while len(running) < backend.slots and (job := source.next()) is not None:
                    backend.start(job)
                    running[job.name] = job
                    table.add(job)
                    statuses[job.name] = JobStatus("running", job_status(job).step)
                    table.say(f"started   {job.short}", lines_only=True)
                for name, error in backend.ended():
                    job = running.pop(name)
                    statuses[name] = job_status(job)
                    if error:
                        statuses[name] = replace(statuses[name], state="failed", error=error)
                    table.say(_news(job, statuses[name], source.ended(job, statuses[name])))
                if time.monotonic() - looked > LOOK:
                    looked = time.monotonic()
                    for name, job in running.items():
                        statuses[name] = replace(job_status(job), state="running", error="")
                        if not source.look(job):
                            backend.stop(name)
                table.show(statuses)
                stopped.wait(PAUSE)
            if stopped.is_set():
                table.say("stopping: every run saves where it is")
        finally:
            backend.close()
            for job in running.values():
                statuses[job.name] = job_status(job)
            table.show(statuses, force=True)
    if stopped.is_set():
        raise Interrupted


def _news(job: Job, now: JobStatus, remark: str) -> str:
    if now.state == "failed":
        return f"failed    {job.short}: {now.error}"
    result = f": return {short(now.last_return)}" if now.last_return is not None else ""
    note = f" {now.error}" if now.error else ""
    return f"{remark or now.state:9} {job.short}{note}{result}"


class JobTable:
    """One live table in a terminal; lines elsewhere."""

    def __init__(self, jobs: Sequence[Job], stream: TextIO) -> None:
        self._jobs, self._out = list(jobs), stream
        self._live: Any = None
        self._last = time.monotonic()
        if can_redraw(stream):
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=stream), refresh_per_second=4)

    def add(self, job: Job) -> None:
        """Add a row for a job, unless it has one."""
        if job not in self._jobs:
            self._jobs.append(job)

    def __enter__(self) -> JobTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, message: str, *, lines_only: bool = False) -> None:
        if self._live is None:
            say(message, self._out)
        elif not lines_only:
            self._live.console.print(message, highlight=False, markup=False)

    def show(self, statuses: dict[str, JobStatus], *, force: bool = False) -> None:
        if self._live is not None:
            self._live.update(self._drawn(statuses), refresh=force)
        elif time.monotonic() - self._last > LINE_EVERY:
            self._last = time.monotonic()
            running = [job for job in self._jobs if statuses[job.name].state == "running"]
            shown = "; ".join(f"{job.short} {_percent(job, statuses[job.name])}" for job in running)
            say(f"{state_counts(statuses)}: {shown}", self._out)

    def _drawn(self, statuses: dict[str, JobStatus]) -> Any:
        from rich.table import Table

        grid = Table(
            box=None, pad_edge=False, caption=state_counts(statuses), caption_justify="left", header_style="bold"
        )
        for name in ("run", "state", "progress", "steps/s", "return", "left"):
            grid.add_column(name, justify="left" if name in ("run", "state") else "right", no_wrap=name != "run")
        for job in self._chosen(statuses):
            now = statuses[job.name]
            style = {"failed": "red", "finished": "green", "running": ""}.get(now.state, "dim")
            going = now.state == "running"
            left = (job.total - now.step) / now.rate if now.rate > 0 else math.inf
            grid.add_row(
                job.short, now.state, _percent(job, now), short(now.rate) if going and now.rate else "",
                short(now.last_return) if now.last_return is not None else "", clock(left) if going else "",
                style=style,
            )  # fmt: skip
        return grid

    def _chosen(self, statuses: dict[str, JobStatus]) -> list[Job]:
        """All of them if they fit; else those that are running or failed first."""
        room = max(4, self._live.console.height - 5)
        if len(self._jobs) <= room:
            return list(self._jobs)
        order = {"running": 0, "failed": 1, "interrupted": 2, "waiting": 3, "finished": 4}
        first = sorted(self._jobs, key=lambda job: order[statuses[job.name].state])[:room]
        return [job for job in self._jobs if job in first]


def _percent(job: Job, now: JobStatus) -> str:
    return f"{100 * min(now.step, job.total) // job.total}%"


def state_counts(statuses: dict[str, JobStatus]) -> str:
    states = [now.state for now in statuses.values()]
    counts = [(state, states.count(state)) for state in ("finished", "running", "waiting", "interrupted", "failed")]
    return ", ".join(f"{count} {state}" for state, count in counts if count)
