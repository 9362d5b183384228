"""Run directories: their names and files, the provenance of a run, and its checkpoints."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import warnings
from dataclasses import dataclass, field
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from rl_training.base.files import (
    UnusualFile,
    files_below,
    read_json_object,
    read_regular,
    real_folder,
    regular_file,
    write_durably,
)
from rl_training.experiment.checkpointing import (
    SUFFIX,
    CheckpointError,
    CheckpointState,
    load_checkpoint,
)
from rl_training.experiment.commit import git_commit
from rl_training.experiment.config import TrainConfig

__all__ = [
    "BEST",
    "SUFFIX",
    "RunContext",
    "checkpoint_name",
    "create_run_context",
    "drop_later_checkpoints",
    "dump_yaml",
    "find_checkpoint",
    "git_commit",
    "list_checkpoints",
    "named_checkpoint",
    "newest_checkpoint",
    "open_run_context",
    "processor",
    "provenance",
    "prune_checkpoints",
    "read_metadata",
    "run_dir_of",
    "run_name",
    "write_config",
    "write_metadata",
]

BEST = "best"  # of a run's checkpoints, that of the best evaluation
PROGRAMS = (".onnx", ".pt2")  # endings of exported policies
FILES = {
    "checkpoints_dir": "checkpoints",
    "tensorboard_dir": "tensorboard",
    "videos_dir": "videos",
    "config_path": "config.yaml",
    "metadata_path": "metadata.json",
    "metrics_path": "metrics.jsonl",
}


@dataclass(frozen=True)
class RunContext:
    """A run directory, and where its files lie."""

    run_id: str
    run_dir: Path
    checkpoints_dir: Path = field(init=False)
    tensorboard_dir: Path = field(init=False)
    videos_dir: Path = field(init=False)
    config_path: Path = field(init=False)
    metadata_path: Path = field(init=False)
    metrics_path: Path = field(init=False)

    def __post_init__(self) -> None:
        for name, file in FILES.items():
            object.__setattr__(self, name, self.run_dir / file)


def run_name(config: TrainConfig, suffix: str) -> str:
    """Make the name of a run directory."""
    return f"{config.algo}__{config.env_id.replace('/', '-').replace(':', '-')}__seed{config.seed}__{suffix}"


def create_run_context(config: TrainConfig, run_suffix: str | None = None) -> RunContext:
    """Make a new run directory. With a suffix its name is fixed and must be free; without, a unique one is found."""
    text = dump_yaml(config.plain())
    if run_suffix is not None:
        name = run_name(config, run_suffix)
        context = _claim(config, name)
        if context is None:
            raise ValueError(f"{config.output_dir / name} already holds a run; resume it, or choose another suffix")
    else:
        stamp, count, context = time.strftime("%Y%m%d-%H%M%S"), 1, None
        while context is None:
            context = _claim(config, run_name(config, stamp) + (f"-{count}" if count > 1 else ""))
            count += 1
    context.config_path.write_text(text)
    write_metadata(context, provenance())
    return context


def _claim(config: TrainConfig, run_id: str) -> RunContext | None:
    context = RunContext(run_id, config.output_dir / run_id)
    try:
        context.run_dir.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        if any(context.run_dir.iterdir()) if context.run_dir.is_dir() else True:
            return None
    context.checkpoints_dir.mkdir()
    context.tensorboard_dir.mkdir()
    context.metrics_path.touch()
    return context


def open_run_context(run_dir: str | Path) -> RunContext:
    """Open an existing run directory."""
    run_dir = Path(run_dir)
    context = RunContext(run_dir.resolve().name, run_dir)
    _refuse_unusual_files(context)
    for folder in (context.checkpoints_dir, context.tensorboard_dir):
        folder.mkdir(parents=True, exist_ok=True)
    return context


def _refuse_unusual_files(context: RunContext) -> None:
    """Refuse a run directory in which a file that a run writes is a link to elsewhere, a pipe or a device."""
    own = (context.config_path, context.metadata_path, context.metrics_path)
    for path in (*own, *(context.run_dir / name for name in ("metrics.csv", "error.txt", ".lock"))):
        regular_file(path)
    for folder in (context.checkpoints_dir, context.tensorboard_dir, context.videos_dir):
        files_below(folder)
    real_folder(context.run_dir / "wandb")


def run_dir_of(checkpoint: Path) -> Path | None:
    """Find the run directory that a checkpoint lies in, if it lies in one."""
    folder = checkpoint.resolve().parent
    if folder.name != "checkpoints" or not (folder.parent / "config.yaml").exists():
        return None
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else folder.parent


def write_config(context: RunContext, config: TrainConfig) -> None:
    """Write config.yaml, if it differs."""
    text = dump_yaml(config.plain())
    if not regular_file(context.config_path) or read_regular(context.config_path) != text.encode():
        write_durably(context.config_path, [text.encode()])


def read_metadata(context: RunContext) -> dict[str, Any]:
    """Read metadata.json; empty if there is none."""
    return read_json_object(context.metadata_path) if regular_file(context.metadata_path) else {}


def write_metadata(context: RunContext, values: dict[str, Any]) -> None:
    """Add values to metadata.json."""
    write_durably(context.metadata_path, [json.dumps({**read_metadata(context), **values}, indent=2).encode()])


def provenance() -> dict[str, Any]:
    """Collect where a run comes from: command, commit, versions, machine."""
    packages = ("rl_training", "torch", "numpy", "gymnasium", "mujoco", "ale-py", "box2d")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": git_commit(),
        "versions": versions,
        "hardware": {"platform": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
    }


def processor() -> str:
    """The name of the machine's processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def dump_yaml(values: dict[str, Any]) -> str:
    """Format a mapping as YAML."""
    from ruamel.yaml import YAML

    text = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(values, text)
    return text.getvalue()


def checkpoint_name(step: int) -> str:
    """The file name of the checkpoint at an environment step."""
    return f"step_{step:010d}{SUFFIX}"


def list_checkpoints(context: RunContext) -> list[Path]:
    """List the checkpoints of a run, oldest first, without ``best`` and without files of buffers."""
    found = context.checkpoints_dir.glob(f"step_*{SUFFIX}")
    return sorted(path for path in found if ".buffers" not in path.name and not path.is_dir())


def newest_checkpoint(run_dir: str | Path, *, buffers: bool = True) -> tuple[Path, CheckpointState, list[str]]:
    """Load the newest whole checkpoint of a run; the last value lists what was wrong with newer ones."""
    context = RunContext(Path(run_dir).name, Path(run_dir))
    if not context.run_dir.is_dir():
        raise CheckpointError(f"no run at {run_dir}")
    problems: list[str] = []
    real_folder(context.checkpoints_dir)
    for path in reversed(list_checkpoints(context)):
        try:
            regular_file(path)
            return path, load_checkpoint(path, buffers=buffers), problems
        except (CheckpointError, UnusualFile) as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("; ".join(problems))
    raise CheckpointError(f"{run_dir} holds no checkpoint yet, or is not a run directory")


def find_checkpoint(path: str | Path, *, buffers: bool) -> tuple[Path, CheckpointState]:
    """Load the checkpoint that ``path`` names: a file; of a run directory ``RUN`` its newest whole one; of ``RUN/best``
    that of its best evaluation."""
    path = named_checkpoint(path)
    if path.suffix in PROGRAMS and not path.is_dir():
        raise CheckpointError(
            f"{path} is an exported program, which acts and cannot be loaded or trained further: name the run or the "
            "checkpoint that it was exported from, or a file of agent.save"
        )
    if not path.is_dir():
        return path, load_checkpoint(path, buffers=buffers)
    found, state, problems = newest_checkpoint(path, buffers=buffers)
    for problem in problems:
        warnings.warn(f"{problem}; going back to {found.name}", stacklevel=2)
    return found, state


def named_checkpoint(path: str | Path) -> Path:
    """The path that a name of a trained agent stands for: ``RUN/best`` is a file among the run's checkpoints."""
    path = Path(path)
    if path.name != BEST or path.exists():
        return path
    folder = path.parent if path.parent.name == "checkpoints" else path.parent / FILES["checkpoints_dir"]
    if folder.is_dir() and not (folder / f"{BEST}{SUFFIX}").exists():
        raise CheckpointError(f"{path.parent} has no best checkpoint: the run was not evaluated yet")
    return folder / f"{BEST}{SUFFIX}" if folder.is_dir() else path


def drop_later_checkpoints(context: RunContext, step: int) -> None:
    """Remove the checkpoints after a step, from which the run is resumed."""
    for path in list_checkpoints(context):
        if path.name > checkpoint_name(step):
            path.unlink(missing_ok=True)
            for sibling in context.checkpoints_dir.glob(f"{path.stem}.buffers*{SUFFIX}"):
                sibling.unlink(missing_ok=True)


def prune_checkpoints(context: RunContext, keep: int, keep_buffers: int = 2) -> None:
    """Remove all but the newest checkpoints and buffers, and the partial files of interrupted saves."""
    checkpoints = list_checkpoints(context)
    for path in checkpoints[:-keep]:
        path.unlink(missing_ok=True)
    kept = {path.stem for path in checkpoints[-min(keep, keep_buffers) :]}
    for path in context.checkpoints_dir.glob(f"step_*.buffers*{SUFFIX}"):
        if path.name.partition(".")[0] not in kept:
            path.unlink(missing_ok=True)
    for folder in (context.checkpoints_dir, context.run_dir):
        for path in folder.glob(".*.partial"):
            path.unlink(missing_ok=True)
