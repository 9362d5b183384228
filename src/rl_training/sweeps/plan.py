"""The runs of a sweep: their names, configs and status."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_training.base.errors import printable, reason
from rl_training.base.files import UnusualFile, open_regular, read_json_object, real_folder, regular_file, write_durably
from rl_training.base.options import ConfigError
from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.base.yaml_text import YamlProblem, parse_yaml
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import run_name
from rl_training.tracking.jsonl import MOST_STEPS, number

__all__ = [
    "Job",
    "JobStatus",
    "changed_options",
    "combinations",
    "job_status",
    "label_of",
    "last_lines",
    "make_folder",
    "make_job",
    "open_sweep",
    "parse_seeds",
    "parse_values",
]

MANIFEST = "sweep.json"
JobState = Literal["waiting", "running", "interrupted", "finished", "failed"]
TAIL = 1 << 16  # bytes from the end of metrics.jsonl in which the last lines are looked for


@dataclass(frozen=True)
class Job:
    """One run of a sweep. Its folder holds everything about it, so any process on any machine can continue it."""

    name: str
    config: dict[str, Any]
    folder: Path  # of the sweep
    label: str = ""  # of the values it has, at the end of its name

    @property
    def short(self) -> str:
        """What sets it apart from the sweep's other runs: its seed and label."""
        return f"seed {self.config['seed']}" + ("" if self.label == "default" else f"  {self.label}")

    @property
    def run_dir(self) -> Path:
        return self.folder / self.name

    @property
    def note_path(self) -> Path:
        """Where its last worker left its error."""
        return self.folder / "jobs" / f"{self.name}.json"

    @property
    def log_path(self) -> Path:
        return self.folder / "jobs" / f"{self.name}.log"

    @property
    def total(self) -> int:
        return int(self.config["total_timesteps"])

    def check_files(self) -> None:
        """Refuse links, pipes and devices where its run directory, note and log belong."""
        real_folder(self.run_dir)
        for path in (self.note_path, self.log_path):
            regular_file(path)


def parse_seeds(text: str) -> list[int]:
    """Seeds from text such as ``0-4`` or ``1,2,7-9``."""
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise ConfigError([((), f"--seeds takes numbers and ranges such as 0-4 or 1,2,7-9; got {text!r}")])
        seeds += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return list(dict.fromkeys(seeds))


def parse_values(text: str) -> tuple[str, list[Any]]:
    """Name and values from ``name=a,b``, read as YAML; lists stand in brackets: ``hidden_sizes=[64,64],[256]``."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ConfigError([((), f"--set takes name=a,b, e.g. learning_rate=1e-3,3e-4; got {text!r}")])
    try:
        return name.strip(), list(parse_yaml(f"[{values}]", "pure"))
    except YamlProblem:
        raise ConfigError([((), f"--set {name}: {values!r} are not YAML values")]) from None


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value for each name."""
    return [dict(zip(values, chosen)) for chosen in itertools.product(*values.values())]


def label_of(chosen: Mapping[str, Any], names: Sequence[str]) -> str:
    """A label such as ``learning_rate=0.001,gamma=0.9`` for file names; ``default`` if nothing was chosen."""
    ends = [name.rsplit(".", 1)[-1] for name in names]
    parts = [
        f"{end if ends.count(end) == 1 else name}={_shown(chosen[name])}"
        for name, end in zip(names, ends)
        if name in chosen
    ]
    plain = ",".join(parts)
    label = re.sub(r"[^\w=.,+-]+", "-", plain)
    if label != plain or len(label) > 80:  # something is lost: the hash keeps names apart
        label = f"{label[:72]}-{hashlib.sha256(plain.encode()).hexdigest()[:6]}"
    return label or "default"


def _shown(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(part, list | dict) for part in value):
        return "x".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def make_job(config: TrainConfig, folder: Path, label: str) -> Job:
    placed = config.replace(output_dir=folder, progress="off")
    return Job(run_name(placed, label), placed.plain(), folder, label)


def open_sweep(folder: Path, jobs: Sequence[Job]) -> None:
    """Claim the folder for these runs, or join the sweep that is there if its runs are the same."""
    make_folder(folder)
    path = folder / MANIFEST
    known = read_json_object(path) if regular_file(path) else {}
    for job in jobs:
        job.check_files()
        before = known.get(job.name)
        if before is not None and not isinstance(before, dict):
            raise ValueError(f"{path} holds no config for {job.name}")
        if before is not None and before != job.config:
            where = ", ".join(sorted(changed_options(before, job.config)))
            raise ValueError(
                f"{folder} holds a sweep in which {job.name} differs in {where}; "
                "repeat its command to go on with it, or give this one another --name"
            )
    if any(job.name not in known for job in jobs):
        write_durably(path, [json.dumps({**known, **{job.name: job.config for job in jobs}}, indent=1).encode()])


def make_folder(folder: Path) -> None:
    """Make the folder of a sweep, with one for what its workers leave."""
    try:
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make {folder}: {error.strerror or error}") from None
    real_folder(folder / "jobs")


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the values in which two nested mappings differ."""
    names: list[str] = []
    for name in {*before, *now}:
        a, b = before.get(name), now.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += changed_options(a, b, f"{prefix}{name}.")
        elif a != b:
            names.append(f"{prefix}{name}")
    return names


@dataclass(frozen=True)
class JobStatus:
    """How far a run has come."""

    state: JobState = "waiting"
    step: int = 0
    rate: float = 0.0  # steps a second
    last_return: float | None = None
    error: str = ""  # why a run failed, or a remark


def job_status(job: Job) -> JobStatus:
    """Read a run's status from its files, whichever process or machine runs it."""
    status, error = _status(job)
    lines = last_lines(job.run_dir / "metrics.jsonl")
    step = max((int(line["step"]) for line in lines), default=0)
    shown = [number(line.get("eval_return_mean", line.get("episode_return"))) for line in lines]
    known = [value for value in shown if value is not None]
    rate = 0.0
    if len(lines) > 1 and lines[-1]["time"] > lines[0]["time"]:
        rate = (lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"])
    return JobStatus(status, step, rate, known[-1] if known else None, error)


def _status(job: Job) -> tuple[JobState, str]:
    try:
        note = _json(job.note_path)
        metadata = _json(job.run_dir / "metadata.json")
    except (OSError, ValueError) as error:
        return "failed", reason(error)
    if note.get("error"):
        return "failed", printable(str(note["error"]))
    kind = recorded_stop_kind(metadata)
    if kind is not None and kind.conclusive:
        return "finished", "without an update" if kind is StopKind.UNTRAINED else ""
    return ("interrupted" if "status" in metadata else "waiting"), ""


def _json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if regular_file(path) else {}


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines at the end of a metrics file, without reading all of it."""
    try:
        with open_regular(path) as file:
            file.seek(0, 2)
            start = max(0, file.tell() - TAIL)
            file.seek(start)
            pieces = file.read(TAIL).split(b"\n")
    except (OSError, UnusualFile):
        return []
    lines = []
    for piece in pieces[1 if start else 0 : -1]:  # neither the torn first line nor one still being written
        try:
            line = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and number(line.get("step"), 0, MOST_STEPS) is not None:
            lines += [line] if number(line.get("time")) is not None else []
    return lines
