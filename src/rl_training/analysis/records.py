"""Read run directories: configs, metadata, and curves, which are thinned out and cached."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.analysis.run_files import (
    checked_config,
    metric_lines,
    read_error,
    read_run_config,
    read_run_metadata,
    run_videos,
    seconds_of,
)
from rl_training.base.errors import printable, reason
from rl_training.base.files import read_json_object, write_durably
from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.tracking.jsonl import MOST_STEPS, number

__all__ = [
    "Curve",
    "Records",
    "RunMetrics",
    "RunRecord",
    "find_runs",
    "load_runs",
    "read_metrics",
    "stamp_of",
    "summarise_metrics",
    "thinned",
    "usable",
]

CACHE = ".rl-training-curves.json"  # lies beside the run directories
CACHE_FORMAT = 2
MOST_POINTS = 500
MOST_CURVES = 24  # of a run, beside its returns


# most lines of a long file, in the form in which the package writes them: read without parsing the rest
TRAINING = re.compile(rb'\{"step": (\d{1,18}), .*?"episode_return": (-?[\d.]+(?:e[+-]?\d+)?)[,}]').match


class Curve(NamedTuple):
    """Values at environment steps, oldest first."""

    steps: list[float]
    values: list[float]


EMPTY = Curve([], [])


@dataclass(frozen=True)
class RunMetrics:
    """A summary of metrics.jsonl; ``final`` is the last evaluation, never the best."""

    evaluations: Curve = EMPTY
    episodes: Curve = EMPTY
    final: float | None = None
    score: float | None = None  # the last evaluation, normalised: a random policy has 0, an expert 100
    step: int = 0
    lines: int = 0
    more: dict[str, Curve] = field(default_factory=dict)  # success, numbers of infos, and what callbacks log


@dataclass(frozen=True)
class RunRecord:
    """One run directory as it was read."""

    name: str
    path: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    metrics: RunMetrics
    updated: float = 0.0  # time of the last change of metrics.jsonl, in seconds since 1970
    error: str = ""
    videos: tuple[Path, ...] = field(default=())

    @property
    def algo(self) -> str:
        return str(self.config["algo"])

    @property
    def env_id(self) -> str:
        return str(self.config["env_id"])

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def status(self) -> str:
        """finished, finished without an update, running, stopped: why, or failed; for people."""
        return str(self.metadata.get("status", "unknown"))

    @property
    def stop_kind(self) -> StopKind | None:
        """How the run ended; None while it runs."""
        return recorded_stop_kind(self.metadata)

    @property
    def outcome(self) -> str:
        """The status without its reason."""
        return self.status if self.stop_kind is None else self.stop_kind.outcome

    @property
    def finished(self) -> bool:
        return self.stop_kind is not None and self.stop_kind.reached_total

    @property
    def untrained(self) -> bool:
        """Whether the run came to its end and learned nothing."""
        return self.stop_kind is StopKind.UNTRAINED

    @property
    def failed(self) -> bool:
        return self.stop_kind is StopKind.FAILED

    @property
    def step(self) -> int:
        return max(self.metrics.step, int(self.metadata.get("step") or 0))


class Records(NamedTuple):
    """Runs, and a message for each that could not be read."""

    runs: list[RunRecord]
    problems: list[str]


def find_runs(paths: Iterable[str | Path], problems: list[str] | None = None) -> list[Path]:
    """Find run directories among these folders and below them, at any depth; folders that cannot be listed are added
    to ``problems``."""

    def unlisted(error: OSError) -> None:
        if problems is not None:
            problems.append(printable(f"{error.filename}: {error.strerror}"))

    found: dict[Path, Path] = {}
    for given in map(Path, paths):
        if not given.is_dir():
            raise ValueError(
                f"no folder at {given}" if not given.exists() else f"{given} is a file, not a run directory"
            )
        here, folders = [], [given]
        while folders:
            folder = folders.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True)
            except OSError as error:
                unlisted(error)
                continue
            if {"config.yaml", "metadata.json"} <= {entry.name for entry in entries}:
                here.append(folder)
            else:
                folders += [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        if not here:
            raise ValueError(f"{given} holds no run (a run is a folder with config.yaml and metadata.json)")
        found |= {folder.resolve(): folder for folder in here if folder.resolve() not in found}
    return list(found.values())


def load_runs(paths: Iterable[str | Path]) -> Records:
    """Read every run below these folders, from the caches beside them where nothing has changed.

    A run that cannot be read is named among the problems, whatever is wrong with it, and the others are read.
    """
    runs: list[RunRecord] = []
    problems: list[str] = []
    folders = find_runs(paths, problems)
    caches = {parent: Cache(parent) for parent in {folder.parent for folder in folders}}
    for folder in folders:
        try:
            runs.append(_load(folder, caches[folder.parent]))
        except Exception as error:
            problems.append(printable(f"{folder}: {reason(error)}".replace(f" {folder}{os.sep}", " ")))
    for cache in caches.values():
        cache.save()
    if not runs:
        raise ValueError("no run can be read: " + "; ".join(problems))
    return Records(runs, problems)


def _load(folder: Path, cache: Cache) -> RunRecord:
    config, metrics = cache.read(folder)
    return RunRecord(
        name=printable(folder.resolve().name),
        path=folder,
        config=config,
        metadata=read_run_metadata(folder / "metadata.json"),
        metrics=metrics,
        updated=seconds_of(stamp_of(folder / "metrics.jsonl")[1]),
        error=read_error(folder / "error.txt"),
        videos=run_videos(folder),
    )


def stamp_of(path: Path) -> list[int]:
    """Size and time of the last change of a file, zeros if there is none."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return [0, 0]
    return [facts.st_size, facts.st_mtime_ns]


class Cache:
    """Configs and thinned curves of the runs in one folder, valid for a size and time of their files."""

    def __init__(self, folder: Path) -> None:
        self._path, self._changed = folder / CACHE, False
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = read_json_object(self._path)
            if content["format"] == CACHE_FORMAT:
                self._known = dict(content["runs"])

    def read(self, folder: Path) -> tuple[dict[str, Any], RunMetrics]:
        """Read a run's config and metrics, from the cache if it is valid."""
        stamp = [*stamp_of(folder / "config.yaml"), *stamp_of(folder / "metrics.jsonl")]
        with contextlib.suppress(KeyError, TypeError, ValueError):
            entry = self._known[folder.name]
            if entry["stamp"] == stamp:
                return checked_config(entry["config"]), _cached_metrics(entry["metrics"])
        config, names = read_run_config(folder / "config.yaml"), curve_names(folder / "metadata.json")
        metrics = summarise_metrics(folder / "metrics.jsonl", names)
        self._known[folder.name] = {"stamp": stamp, "config": config, "metrics": asdict(metrics)}
        self._changed = True
        return config, metrics

    def save(self) -> None:
        """Write the cache, if it can be written: without it the next reading takes longer."""
        if self._changed:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                there = {*os.listdir(self._path.parent)}
                kept = {name: entry for name, entry in self._known.items() if name in there}
                text = json.dumps({"format": CACHE_FORMAT, "runs": kept}, separators=(",", ":"))
                write_durably(self._path, [text.encode()])


def _cached_metrics(values: dict[str, Any]) -> RunMetrics:
    """The metrics that a cache holds; a cache can come from anybody, too."""
    curves = {name: Curve(*values[name]) for name in ("evaluations", "episodes")}
    more = {printable(name): Curve(*curve) for name, curve in dict(values["more"]).items()}
    metrics = RunMetrics(**{**values, **curves, "more": more})
    known = [value for value in (metrics.final, metrics.score) if value is not None]
    every = [*curves.values(), *more.values()]
    drawn = [value for curve in every for part in curve for value in part]
    numbers = [*known, *drawn, metrics.step, metrics.lines]
    if any(number(value) is None for value in numbers) or any(len(x) != len(y) or x != sorted(x) for x, y in every):
        raise ValueError("the cache holds something else than curves")
    return metrics


def curve_names(path: Path) -> list[str]:
    """The metrics, beside returns, that a run says it has curves of."""
    names = (read_run_metadata(path).get("curves") or []) if path.exists() else []
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and len(name) <= 100][:MOST_CURVES]


def read_metrics(path: Path, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """Iterate over the lines of metrics.jsonl; one that is cut short by a crash, or has no step, is skipped. Unless
    ``whole``, lines of training have their return alone, which takes a fraction of the time."""
    for line in metric_lines(path):
        plain = None if whole else TRAINING(line)
        try:
            if plain and line.endswith(b"}\n") and b'"eval_' not in line:
                yield {"step": int(plain[1]), "episode_return": float(plain[2])}
                continue
            row = json.loads(line)
            fine = number(row["step"], 0, MOST_STEPS) is not None
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if fine:
            yield row


def summarise_metrics(path: Path, names: Iterable[str] = ()) -> RunMetrics:
    """Read the curves and the last evaluation of a metrics file in one pass, with further curves of these names."""
    more = {name: (array("d"), array("d")) for name in names}
    evaluations, episodes = (array("d"), array("d")), (array("d"), array("d"))
    final = score = None
    step = lines = 0
    for row in read_metrics(path, whole=bool(more)):
        step, lines = int(row["step"]), lines + 1
        value = number(row.get("eval_return_mean"))
        if value is not None:
            final, score = value, number(row.get("eval_score"))
            evaluations[0].append(step)
            evaluations[1].append(value)
        value = number(row.get("episode_return"))
        if value is not None:
            episodes[0].append(step)
            episodes[1].append(value)
        for name, (steps, values) in more.items():
            value = number(row.get(name))
            if value is not None:
                steps.append(step)
                values.append(value)
    further = {name: thinned(*curve) for name, curve in more.items() if curve[0]}
    return RunMetrics(thinned(*evaluations), thinned(*episodes), final, score, step, lines, further)


def thinned(steps: Any, values: Any, most: int = MOST_POINTS) -> Curve:
    """Reduce a curve to at most ``most`` points: the first, the last, and means of equally many between them.

    Of several values at a step the last counts.
    """
    x, y = np.asarray(steps, float), np.asarray(values, float)
    if len(x) == 0:
        return EMPTY
    x, last = np.unique(x[::-1], return_index=True)
    y = y[::-1][last]
    if len(x) > most:
        edges = np.linspace(1, len(x) - 1, most - 1).astype(int)
        counts = np.diff(edges)
        x, y = (np.concatenate([z[:1], np.add.reduceat(z[:-1], edges[:-1]) / counts, z[-1:]]) for z in (x, y))
    return Curve([float(f"{v:.7g}") for v in x], [float(f"{v:.7g}") for v in y])


def usable(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Select the runs with an evaluation."""
    return [run for run in runs if run.metrics.final is not None and math.isfinite(run.metrics.final)]
