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

from rl_training.base.errors import reason
from rl_training.base.files import write_durably
from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.base.yaml_text import YamlProblem, parse_yaml

__all__ = [
    "Curve",
    "Records",
    "RunMetrics",
    "RunRecord",
    "find_runs",
    "load_runs",
    "read_metrics",
    "read_run_config",
    "summarise_metrics",
    "thinned",
    "usable",
]

CACHE = ".rl-training-curves.json"  # lies beside the run directories
CACHE_FORMAT = 1
MOST_POINTS = 500
VIDEOS = (".mp4", ".gif", ".webm")


# most lines of a long file, in the form in which the package writes them: read without parsing the rest
TRAINING = re.compile(rb'\{"step": (\d+), .*?"episode_return": (-?[\d.]+(?:e[+-]?\d+)?)[,}]').match


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


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Find run directories among these folders and below them, at any depth."""
    found: dict[Path, Path] = {}
    for given in map(Path, paths):
        if not given.is_dir():
            raise ValueError(
                f"no folder at {given}" if not given.exists() else f"{given} is a file, not a run directory"
            )
        here = []
        for folder, below, files in os.walk(given):
            if "config.yaml" in files and "metadata.json" in files:
                here.append(Path(folder))
                below.clear()
            below.sort()
        if not here:
            raise ValueError(f"{given} holds no run (a run is a folder with config.yaml and metadata.json)")
        found |= {folder.resolve(): folder for folder in here if folder.resolve() not in found}
    return list(found.values())


def load_runs(paths: Iterable[str | Path]) -> Records:
    """Read every run below these folders, from the caches beside them where nothing has changed."""
    folders = find_runs(paths)
    caches = {parent: Cache(parent) for parent in {folder.parent for folder in folders}}
    runs, problems = [], []
    for folder in folders:
        try:
            runs.append(_load(folder, caches[folder.parent]))
        except (OSError, ValueError) as error:
            problems.append(f"{folder}: {reason(error)}")
    for cache in caches.values():
        cache.save()
    if not runs:
        raise ValueError("no run can be read: " + "; ".join(problems))
    return Records(runs, problems)


def _load(folder: Path, cache: Cache) -> RunRecord:
    config, metrics = cache.read(folder)
    try:
        metadata = json.loads((folder / "metadata.json").read_text())
    except ValueError:
        raise ValueError("metadata.json is not JSON") from None
    if not isinstance(metadata, dict):
        raise ValueError("metadata.json is not a JSON object")
    error = folder / "error.txt"
    return RunRecord(
        name=folder.resolve().name,
        path=folder,
        config=config,
        metadata=metadata,
        metrics=metrics,
        updated=_stamp(folder / "metrics.jsonl")[1] / 1e9,
        error=error.read_text(errors="replace").strip() if error.is_file() else "",
        videos=tuple(sorted(p for p in (folder / "videos").rglob("*") if p.suffix.lower() in VIDEOS)),
    )


def _stamp(path: Path) -> list[int]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return [0, 0]
    return [facts.st_size, facts.st_mtime_ns]


class Cache:
    """Configs and thinned curves of the runs in one folder, valid for a size and time of their files."""

    def __init__(self, folder: Path) -> None:
        self._path, self._changed = folder / CACHE, False
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            content = json.loads(self._path.read_text())
            if content["format"] == CACHE_FORMAT:
                self._known = dict(content["runs"])

    def read(self, folder: Path) -> tuple[dict[str, Any], RunMetrics]:
        """Read a run's config and metrics, from the cache if it is valid."""
        stamp = [*_stamp(folder / "config.yaml"), *_stamp(folder / "metrics.jsonl")]
        with contextlib.suppress(KeyError, TypeError):
            entry = self._known[folder.name]
            if entry["stamp"] == stamp:
                values = entry["metrics"]
                curves = {name: Curve(*values[name]) for name in ("evaluations", "episodes")}
                return entry["config"], RunMetrics(**{**values, **curves})
        config, metrics = read_run_config(folder / "config.yaml"), summarise_metrics(folder / "metrics.jsonl")
        self._known[folder.name] = {"stamp": stamp, "config": config, "metrics": asdict(metrics)}
        self._changed = True
        return config, metrics

    def save(self) -> None:
        """Write the cache, if it can be written: without it the next reading takes longer."""
        if self._changed:
            kept = {name: entry for name, entry in self._known.items() if (self._path.parent / name).is_dir()}
            text = json.dumps({"format": CACHE_FORMAT, "runs": kept}, separators=(",", ":"), default=str)
            with contextlib.suppress(OSError):
                write_durably(self._path, [text.encode()])


def read_run_config(path: Path) -> dict[str, Any]:
    """Read a run's config as plain values; only algo and env_id are checked."""
    try:
        config = parse_yaml(path.read_text())
    except (YamlProblem, UnicodeDecodeError):
        raise ValueError("config.yaml is not valid YAML") from None
    if not isinstance(config, dict) or not config.get("algo") or not config.get("env_id"):
        raise ValueError("config.yaml names no algo and env_id")
    return config


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the lines of metrics.jsonl; a line cut short by a crash is skipped."""
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            plain = TRAINING(line)
            if plain and line.endswith(b"}\n") and b'"eval_' not in line:
                yield {"step": int(plain[1]), "episode_return": float(plain[2])}
                continue
            try:
                row = json.loads(line)
                row["step"] += 0
            except (ValueError, KeyError, TypeError):
                continue
            yield row


def summarise_metrics(path: Path) -> RunMetrics:
    """Read the curves and the last evaluation of a metrics file in one pass."""
    evaluations, episodes = (array("d"), array("d")), (array("d"), array("d"))
    final = score = None
    step = lines = 0
    for row in read_metrics(path):
        step, lines = row["step"], lines + 1
        value = row.get("eval_return_mean")
        if value is not None:
            final, score = value, row.get("eval_score")
            evaluations[0].append(step)
            evaluations[1].append(value)
        value = row.get("episode_return")
        if value is not None:
            episodes[0].append(step)
            episodes[1].append(value)
    return RunMetrics(thinned(*evaluations), thinned(*episodes), final, score, step, lines)


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
