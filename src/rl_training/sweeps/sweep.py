"""Runs the jobs of a sweep to their end, a few at a time, and shows them all."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TextIO

from rl_training.base.signals import stop_signals
from rl_training.sweeps.backends import Backend
from rl_training.sweeps.plan import Job, Standing, standing
from rl_training.tracking.figures import clock, short
from rl_training.tracking.progress import can_redraw

PAUSE = 0.25  # seconds between looks at the backend
LOOK = 1.0  # seconds between looks at the runs' files
LINE_EVERY = 30.0  # seconds between lines, where there is no terminal


class Interrupted(Exception):
    """Somebody asked the sweep to stop; every run has been saved."""


class Feed(Protocol):
    """Where jobs come from, and who hears of them."""

    def next(self) -> Job | None:
        """What to start now, if anything."""
        ...

    @property
    def over(self) -> bool:
        """Nothing will come any more."""
        ...

    def look(self, job: Job) -> bool:
        """Called about once a second for a job that runs; False stops it."""
        ...

    def ended(self, job: Job, now: Standing) -> str:
        """What to say of it instead of its state, if anything."""
        ...


class ListFeed:
    """Jobs one after the other; each for itself."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = list(jobs)

    def next(self) -> Job | None:
        return self._waiting.pop(0) if self._waiting else None

    @property
    def over(self) -> bool:
        return not self._waiting

    def look(self, job: Job) -> bool:
        return True

    def ended(self, job: Job, now: Standing) -> str:
        return ""


def run_jobs(jobs: Sequence[Job], backend: Backend, *, stream: TextIO | None = None) -> dict[str, Standing]:
    """How each run stands when nothing is left to do. Finished ones are left alone, others go on from where they are."""
    standings = {job.name: standing(job) for job in jobs}
    waiting = [job for job in jobs if standings[job.name].state != "finished"]
    table = Table(jobs, stream or sys.stderr)
    if len(waiting) < len(jobs):
        table.say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished and kept")
    feed(ListFeed(waiting), backend, table, standings)
    return standings


def feed(source: Feed, backend: Backend, table: Table, standings: dict[str, Standing]) -> None:
    """Start what comes, as long as there is room; watch it; until nothing comes any more or somebody says stop."""
    running: dict[str, Job] = {}
    looked = 0.0
    stopped = threading.Event()
    with table, stop_signals(lambda _: stopped.set(), stopped.is_set):
        try:
            while (running or not source.over) and not stopped.is_set():
                while len(running) < backend.slots and (job := source.next()) is not None:
                    backend.start(job)
                    running[job.name] = job
                    table.add(job)
                    standings[job.name] = Standing("running", standing(job).step)
                    table.say(f"started   {job.short}", lines_only=True)
                for name, error in backend.ended():
                    job = running.pop(name)
                    standings[name] = standing(job)
                    if error:
                        standings[name] = replace(standings[name], state="failed", error=error)
                    table.say(_news(job, standings[name], source.ended(job, standings[name])))
                if time.monotonic() - looked > LOOK:
                    looked = time.monotonic()
                    for name, job in running.items():
                        standings[name] = replace(standing(job), state="running", error="")
                        if not source.look(job):
                            backend.stop(name)
                table.show(standings)
                stopped.wait(PAUSE)
            if stopped.is_set():
                table.say("stopping: every run saves where it is")
        finally:
            backend.close()
            for job in running.values():
                standings[job.name] = standing(job)
            table.show(standings, force=True)
    if stopped.is_set():
        raise Interrupted


def _news(job: Job, now: Standing, remark: str) -> str:
    if now.state == "failed":
        return f"failed    {job.short}: {now.error}"
    result = f": return {short(now.last_return)}" if now.last_return is not None else ""
    note = f" {now.error}" if now.error else ""
    return f"{remark or now.state:9} {job.short}{note}{result}"


class Table:
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
        """A row for it, if it has none."""
        if job not in self._jobs:
            self._jobs.append(job)

    def __enter__(self) -> Table:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, message: str, *, lines_only: bool = False) -> None:
        if self._live is None:
            print(message, file=self._out, flush=True)
        elif not lines_only:
            self._live.console.print(message, highlight=False, markup=False)

    def show(self, standings: dict[str, Standing], *, force: bool = False) -> None:
        if self._live is not None:
            self._live.update(self._drawn(standings), refresh=force)
        elif time.monotonic() - self._last > LINE_EVERY:
            self._last = time.monotonic()
            running = [job for job in self._jobs if standings[job.name].state == "running"]
            shown = "; ".join(f"{job.short} {_percent(job, standings[job.name])}" for job in running)
            print(f"{summary(standings)}: {shown}", file=self._out, flush=True)

    def _drawn(self, standings: dict[str, Standing]) -> Any:
        from rich.table import Table as Grid

        grid = Grid(box=None, pad_edge=False, caption=summary(standings), caption_justify="left", header_style="bold")
        for name in ("run", "state", "progress", "steps/s", "return", "left"):
            grid.add_column(name, justify="left" if name in ("run", "state") else "right", no_wrap=name != "run")
        for job in self._chosen(standings):
            now = standings[job.name]
            style = {"failed": "red", "finished": "green", "running": ""}.get(now.state, "dim")
            going = now.state == "running"
            left = (job.total - now.step) / now.rate if now.rate > 0 else math.inf
            grid.add_row(
                job.short, now.state, _percent(job, now), short(now.rate) if going and now.rate else "",
                short(now.last_return) if now.last_return is not None else "", clock(left) if going else "", style=style,
            )  # fmt: skip
        return grid

    def _chosen(self, standings: dict[str, Standing]) -> list[Job]:
        """All of them if they fit; else those that are running or failed first."""
        room = max(4, self._live.console.height - 5)
        if len(self._jobs) <= room:
            return list(self._jobs)
        order = {"running": 0, "failed": 1, "interrupted": 2, "waiting": 3, "finished": 4}
        first = sorted(self._jobs, key=lambda job: order[standings[job.name].state])[:room]
        return [job for job in self._jobs if job in first]


def _percent(job: Job, now: Standing) -> str:
    return f"{100 * min(now.step, job.total) // job.total}%"


def summary(standings: dict[str, Standing]) -> str:
    states = [now.state for now in standings.values()]
    counts = [(state, states.count(state)) for state in ("finished", "running", "waiting", "interrupted", "failed")]
    return ", ".join(f"{count} {state}" for state, count in counts if count)
