"""Reading the files of a run directory that may come from anybody: types, sizes and kinds of files are checked.

What passes can be grouped, drawn and printed. What does not is refused in one line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.base.errors import printable
from rl_training.base.files import files_below, open_regular, read_json_object, read_regular, regular_file
from rl_training.base.yaml_text import YamlProblem, parse_yaml
from rl_training.tracking.jsonl import MOST_STEPS, number

__all__ = [
    "checked_config",
    "metric_lines",
    "read_error",
    "read_run_config",
    "read_run_metadata",
    "run_videos",
    "seconds_of",
]

VIDEOS = (".mp4", ".gif", ".webm")
MOST_CONFIG_BYTES = 1 << 20  # and of metadata.json
MOST_LINE_BYTES = 1 << 20  # of metrics.jsonl
MOST_ERROR_BYTES = 1 << 20
MOST_VALUES = 3_000  # in a config or in metadata, at all depths
DEEPEST = 32
LATEST_YEAR = 9999
TOO_MUCH = "{} holds more values, or deeper ones, than a run writes"


def read_run_config(path: Path) -> dict[str, Any]:
    """Read a run's config as plain values; of its options only algo, env_id and seed are checked."""
    content = read_regular(path, MOST_CONFIG_BYTES)
    try:
        config = parse_yaml(content.decode())
    except (YamlProblem, UnicodeDecodeError):
        raise ValueError("config.yaml is not valid YAML") from None
    return checked_config(config)


def checked_config(config: Any) -> dict[str, Any]:
    """Plain values of a config that can be grouped with others."""
    if not isinstance(config, dict) or not config.get("algo") or not config.get("env_id"):
        raise ValueError("config.yaml names no algo and env_id")
    config = _plain(config, "config.yaml")
    _require(config, "config.yaml", {"algo": str, "env_id": str})
    if type(config.get("seed", 0)) is not int:
        raise ValueError(f"config.yaml: seed is {type(config['seed']).__name__}, not a whole number")
    return dict(config)


def read_run_metadata(path: Path) -> dict[str, Any]:
    """Read metadata.json; whatever a table or a page shows of it has the right type."""
    facts = _plain(read_json_object(path, MOST_CONFIG_BYTES), "metadata.json")
    kinds = {"status": str, "stop_kind": str, "stop_reason": str, "started": str, "command": list}
    _require(facts, "metadata.json", {**kinds, "git": dict, "versions": dict, "hardware": dict, "curves": list})
    _require(facts.get("git") or {}, "metadata.json: git", {"commit": str})
    for name, high in (("step", MOST_STEPS), ("seconds", 1e12)):
        if facts.get(name) is not None and number(facts[name], 0, high) is None:
            raise ValueError(f"metadata.json: {name} is {facts[name]!r}, not a number")
    return dict(facts)


def _require(values: dict[str, Any], where: str, kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        if values.get(name) is not None and not isinstance(values[name], kind):
            raise ValueError(f"{where}: {name} is {type(values[name]).__name__}, not {kind.__name__}")


def _plain(value: Any, where: str, depth: int = 0, left: list[int] | None = None) -> Any:
    """Copy nested values as JSON has them, with texts that can be printed; too many or too deep ones are refused."""
    left = [MOST_VALUES] if left is None else left
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        raise ValueError(TOO_MUCH.format(where))
    if isinstance(value, dict):
        return {printable(str(name)): _plain(part, where, depth + 1, left) for name, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(part, where, depth + 1, left) for part in value]
    if isinstance(value, int) and not -MOST_STEPS <= value < MOST_STEPS:
        raise ValueError(f"{where} holds a whole number of more than 64 bits")
    return value if value is None or isinstance(value, bool | int | float) else printable(str(value))


def metric_lines(path: Path) -> Iterator[bytes]:
    """The lines of metrics.jsonl; one of absurd length ends the reading with an error."""
    if not regular_file(path):
        return
    with open_regular(path) as file:
        while line := file.readline(MOST_LINE_BYTES):
            if len(line) == MOST_LINE_BYTES:
                raise ValueError(f"metrics.jsonl has a line of more than {MOST_LINE_BYTES:,} bytes")
            yield line


def read_error(path: Path) -> str:
    """The end of what a failed run left in error.txt."""
    if not regular_file(path):
        return ""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - MOST_ERROR_BYTES))
        return printable(file.read(MOST_ERROR_BYTES).decode(errors="replace")).strip()


def run_videos(folder: Path) -> tuple[Path, ...]:
    """The recorded episodes of a run."""
    return tuple(path for path in files_below(folder / "videos") if path.suffix.lower() in VIDEOS)


def seconds_of(nanoseconds: int) -> float:
    """A file's time in seconds since 1970, if a calendar has it."""
    seconds = nanoseconds / 1e9
    return seconds if 0 <= seconds < (LATEST_YEAR - 1970) * 365.25 * 86_400 and math.isfinite(seconds) else 0.0
