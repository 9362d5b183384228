"""Search spaces: names of options, each with a range or a list of values, from YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_training.base.options import ConfigError, Options, opt
from rl_training.base.yaml_text import YamlProblem, parse_yaml
from rl_training.experiment.yaml_config import assets

__all__ = ["Range", "Space", "chosen", "distributions", "read_space"]


class Range(Options):
    """Numbers from ``low`` to ``high``; whole ones if both ends are."""

    TITLE = "a range"
    low: float | int = opt(0, "the least")
    high: float | int = opt(0, "the most")
    log: bool = opt(False, "search by the logarithm")
    step: float | int | None = opt(None, "only multiples of this above low", gt=0)

    @property
    def whole(self) -> bool:
        return all(isinstance(end, int) for end in (self.low, self.high, self.step or 1))

    def checked(self) -> Range:
        problems = {
            "low is not below high": self.low >= self.high,
            "a logarithm needs low above 0": self.log and self.low <= 0,
            "log and step do not go together": self.log and self.step is not None,
        }
        for problem, there in problems.items():
            if there:
                raise ConfigError([((), problem)])
        return self


Space = dict[str, Range | list[Any]]


def read_space(source: str | Path, heirs: tuple[Path, ...] = ()) -> Space:
    """Read a search space from a YAML file, or by an algorithm's name; ``inherit: ppo`` starts from another.

    ``heirs``: the files that inherit from this one.
    """
    packaged = assets() / "search" / f"{source}.yaml"
    path = Path(source) if Path(source).exists() or not packaged.exists() else packaged
    if path in heirs:
        raise ConfigError([((), f"{path}: inherits from itself")])
    try:
        tree = parse_yaml(path.read_text(), "pure")
    except OSError as error:
        raise ConfigError([((), f"no search space at {path}: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([((), f"{path}: not a text file")]) from None
    except YamlProblem as error:
        raise ConfigError([((), f"{path}: {error}")]) from None
    if not isinstance(tree, dict) or not tree:
        raise ConfigError([((), f"{path}: a search space maps names of options to ranges or lists of values")])
    parent = tree.pop("inherit", None)
    if parent is not None and not isinstance(parent, str):
        raise ConfigError([((), f"{path}: inherit names a file or an algorithm, got {parent!r}")])
    space: Space = read_space(parent, (*heirs, path)) if parent is not None else {}
    for name, value in tree.items():
        space[str(name)] = _parsed(path, str(name), value)
    return space


def _parsed(path: Path, name: str, value: Any) -> Range | list[Any]:
    if isinstance(value, list) and value:
        return value
    if not isinstance(value, dict) or not {"low", "high"} <= set(value):
        raise ConfigError([((), f"{path}: {name}: give low and high, or a list of values; got {value!r}")])
    try:
        return Range(**value).checked()
    except ConfigError as error:
        raise ConfigError([((), f"{path}: {name}: {error}")]) from None


def distributions(space: Space) -> dict[str, Any]:
    """A search space as Optuna's distributions; listed values go as JSON."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    made: dict[str, Any] = {}
    for name, part in space.items():
        if isinstance(part, list):
            made[name] = CategoricalDistribution([json.dumps(value) for value in part])
        elif part.whole:
            step = 1 if part.step is None else int(part.step)
            made[name] = IntDistribution(int(part.low), int(part.high), log=part.log, step=step)
        else:
            made[name] = FloatDistribution(float(part.low), float(part.high), log=part.log, step=part.step)
    return made


def chosen(space: Space, params: dict[str, Any]) -> dict[str, Any]:
    """The options that a trial's parameters stand for."""
    return {name: json.loads(value) if isinstance(space[name], list) else value for name, value in params.items()}
