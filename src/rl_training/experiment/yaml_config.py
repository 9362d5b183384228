"""Configs from YAML files of the user or of the package, with the line of each mistake."""

from __future__ import annotations

import difflib
from collections.abc import Container, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from rl_training.base.options import ConfigError, Loc
from rl_training.base.yaml_text import YamlProblem, parse_yaml
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

__all__ = [
    "apply_overrides",
    "assets",
    "find_config",
    "full_names",
    "json_schema",
    "parse_override",
    "presets",
    "read_config",
]

ENVIRONMENT_OPTIONS = ("max_episode_steps", "wrappers")  # in env_kwargs: the ones that are set in every run
V = TypeVar("V")


def presets() -> list[str]:
    """List the packaged presets, as paths that ``--config`` takes in any directory."""
    root = assets() / "configs"
    return sorted(f"configs/{path.relative_to(root).as_posix()}" for path in root.rglob("*.yaml"))


def assets() -> Path:
    """The folder of packaged presets and search spaces."""
    return Path(str(resources.files("rl_training"))) / "assets"


def find_config(path: str | Path) -> Path:
    """Find a config file: as given, or among the packaged presets, with or without its ending."""
    path = Path(path)
    if path.exists() or path.is_absolute():
        found = path
    else:
        choices = [assets() / path, assets() / "configs" / path]
        found = next((c for choice in choices for c in (choice, choice.with_suffix(".yaml")) if c.is_file()), path)
    if not found.is_file():
        if found.is_dir():
            raise ConfigError([((), f"{path} is a folder; a config is a YAML file")])
        close = difflib.get_close_matches(path.with_suffix(".yaml").as_posix(), presets(), n=1, cutoff=0.8)
        advice = f"did you mean {close[0]}?" if close else f"packaged presets: {', '.join(presets())}"
        raise ConfigError([((), f"no config at {path}; {advice}")])
    return found


def read_config(path: str | Path, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """Read and check a config with its options; ``overrides`` (values by dotted name) take precedence over the file."""
    found = find_config(path)
    try:
        tree = parse_yaml(found.read_text(), "rt")
    except UnicodeDecodeError:
        raise ConfigError([((), f"{found}: not a text file")]) from None
    except YamlProblem as error:
        raise ConfigError([((), f"{found}{f':{error.line}' if error.line else ''}: {error}")]) from None
    if not isinstance(tree, dict):
        kind = "an empty file" if tree is None else "a list" if isinstance(tree, list) else f"{tree!r}"
        raise ConfigError([((), f"{found}: a config is a mapping of names to values, got {kind}")])
    values = _plain(tree)
    overrides = full_names(values, overrides or {})
    values = apply_overrides(values, overrides)
    try:
        config = TrainConfig(**values)
        get_algorithm_spec(config.algo).options(config)
    except ConfigError as error:
        raise ConfigError(
            [((), _at(found, tree, loc, overrides) + message) for loc, message in error.problems]
        ) from None
    return config


def _at(path: Path, tree: Any, loc: Loc, overrides: dict[str, Any]) -> str:
    """Format ``file:line: a.b.c: `` for the deepest part of ``loc`` that stands in the file."""
    name = ".".join(map(str, loc))
    if any(name == key or key.startswith(f"{name}.") or name.startswith(f"{key}.") for key in overrides):
        return f"--set {name}: "
    line, node = None, tree
    for part in loc:
        if not hasattr(node, "lc"):
            break
        try:
            line = (node.lc.item(part) if isinstance(part, int) else node.lc.key(part))[0] + 1
            node = node[part]
        except (KeyError, IndexError, TypeError):
            break
    return f"{path}{f':{line}' if line else ''}: {name}{': ' if name else ''}"


def _plain(node: Any) -> Any:
    """Turn round-trip YAML nodes into plain Python values."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def apply_overrides(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Write values by dotted name, such as ``{"algo_kwargs.learning_rate": 1e-3}``, into a nested mapping."""
    for dotted, value in overrides.items():
        node, *parts = (values, *dotted.split("."))
        for part in parts[:-1]:
            inner = node.get(part)
            node[part] = {} if inner is None else inner
            if not isinstance(node[part], dict):
                raise ConfigError([((dotted,), f"{part} is a value, not a group of options")])
            node = node[part]
        node[parts[-1]] = value
    return values


def full_names(values: dict[str, Any], overrides: Mapping[str, V]) -> dict[str, V]:
    """Overrides by their full names: ``learning_rate`` is ``algo_kwargs.learning_rate``.

    A field of the config is meant first. A name that is an option of both the algorithm and the environment is refused,
    and so is an option that is set by two names. ``values`` say what the algorithm is, unless an override does.
    """
    algo = overrides.get("algo", values.get("algo"))
    if not isinstance(algo, str) or algo not in ALGORITHMS:
        return dict(overrides)
    groups = {"algo_kwargs": get_algorithm_spec(algo).config.model_fields, "env_kwargs": ENVIRONMENT_OPTIONS}
    found: dict[str, V] = {}
    given: dict[str, str] = {}
    for name, value in overrides.items():
        full = _full_name(name, groups)
        if full in found:
            raise ConfigError([((), f"--set {given[full]} and --set {name} are the same option: give one of them")])
        found[full], given[full] = value, name
    return found


def _full_name(name: str, groups: Mapping[str, Container[str]]) -> str:
    first = name.partition(".")[0]
    if first in TrainConfig.model_fields:
        return name
    places = [f"{group}.{name}" for group, options in groups.items() if first in options]
    if len(places) > 1:
        raise ConfigError([((), f"--set {name} is ambiguous: say {' or '.join(places)}")])
    return places[0] if places else name


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``a.b=value``, and read the value as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError([((), f"--set takes name=value, e.g. learning_rate=1e-3; got {text!r}")])
    try:
        return name.strip(), parse_yaml(value, "pure")
    except YamlProblem:
        raise ConfigError([((), f"--set {name}: {value!r} is not a YAML value")]) from None


def json_schema(algo: str) -> dict[str, Any]:
    """Make the JSON schema of an algorithm's whole config, for editors."""
    schema = TrainConfig.model_json_schema()
    options = get_algorithm_spec(algo).config.model_json_schema()
    schema["$defs"] = {**schema.get("$defs", {}), **options.pop("$defs", {})}
    schema["properties"]["algo_kwargs"] = options
    schema["properties"]["algo"] = {"const": algo, "description": "registry name of the algorithm"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
