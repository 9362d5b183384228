"""The run config, the base of every options class, and errors a person can act on."""

from __future__ import annotations

import difflib
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

Loc = tuple[str | int, ...]


class ConfigError(ValueError):
    """A mistake in a config. ``problems`` pairs each place (a path of names) with what is wrong there."""

    def __init__(self, problems: list[tuple[Loc, str]], where: str = "") -> None:
        self.problems = problems
        super().__init__("; ".join(where + _dotted(loc) + message for loc, message in problems))

    def under(self, *prefix: str | int) -> ConfigError:
        return ConfigError([((*prefix, *loc), message) for loc, message in self.problems])


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc)) + ": " if loc else ""


def opt(default: Any, meaning: str, **bounds: Any) -> Any:
    """One option: its default, what it means, and its bounds (``ge``, ``gt``, ``le``, ``lt``)."""
    return Field(default, description=meaning, **bounds)


Sizes = Annotated[tuple[Annotated[int, Field(gt=0)], ...], Strict(False)]
Strings = Annotated[tuple[str, ...], Strict(False)]
Loggers = Annotated[tuple[Literal["tensorboard", "csv", "wandb"], ...], Strict(False)]


class Options(BaseModel):
    """Validated options: unknown names, wrong types and values out of range are refused, in one line."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    TITLE: typing.ClassVar[str] = ""  # how messages call it, e.g. "sac"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_problems(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _natural_numbers(cls, values: Any) -> Any:
        """1e5 is a whole number, numpy scalars are numbers, and True is neither."""
        if not isinstance(values, dict):
            return values
        return {name: _natural(value, cls.model_fields.get(name)) for name, value in values.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, _natural(value, type(self).model_fields.get(name)))
        except ValidationError as error:
            raise ConfigError(_problems(error, type(self))) from None

    def replace(self, **changes: Any) -> typing.Self:
        """A copy with some fields changed, validated again."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return type(self)(**{**given, **changes})


def _natural(value: Any, field: FieldInfo | None) -> Any:
    value = _without_numpy(value)
    if field is None:
        return value
    if isinstance(value, float) and value.is_integer() and not _accepts(field.annotation, float):
        return int(value) if _accepts(field.annotation, int) else value
    return value


def _without_numpy(value: Any) -> Any:
    """Numpy's scalars and arrays as plain values, at any depth: searches and spaces produce them."""
    if hasattr(value, "tolist") and hasattr(value, "ndim"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _without_numpy(part) for key, part in value.items()}
    return type(value)(map(_without_numpy, value)) if type(value) in (list, tuple) else value


def _accepts(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_accepts(part, kind) for part in typing.get_args(annotation))


def _problems(error: ValidationError, model: type[Options]) -> list[tuple[Loc, str]]:
    found: dict[Loc, list[str]] = {}
    for item in error.errors():
        loc: Loc = (
            tuple(part for part in item["loc"] if part in model.model_fields or isinstance(part, int)) or item["loc"]
        )
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            for inner, message in cause.under(*loc).problems:
                found.setdefault(inner, []).append(message)
        elif item["type"] == "extra_forbidden":
            found.setdefault(item["loc"], []).append(unknown(str(item["loc"][-1]), model.model_fields, model.TITLE))
        elif item["type"] in ("missing", "value_error"):
            found.setdefault(loc, []).append("is required" if cause is None else str(cause))
        else:
            what = item["msg"].removeprefix("Input ").rstrip(".")
            found.setdefault(loc, []).append(f"{what[0].lower()}{what[1:]}, got {item['input']!r}")
    return [(loc, _either(messages)) for loc, messages in found.items()]


def _either(messages: list[str]) -> str:
    """A union complains once per member: ``should be a valid boolean or should be 'auto', got 'yes'``."""
    heads, tails = zip(*(message.partition(", got ")[::2] for message in messages))
    if len(messages) == 1 or not all(tails):
        return messages[0]
    return f"{' or '.join(dict.fromkeys(heads))}, got {tails[0]}"


def unknown(name: str, known: typing.Iterable[str], owner: str) -> str:
    hint = difflib.get_close_matches(name, list(known), n=1)
    return f"unknown option{f' of {owner}' if owner else ''}" + (f"; did you mean {hint[0]!r}?" if hint else "")


class TrainConfig(Options):
    """A whole run: which algorithm on which environment, for how long, and where it goes."""

    model_config = ConfigDict(extra="forbid", frozen=False, strict=True, validate_assignment=True)

    algo: str = Field(description="registry name of the algorithm, e.g. ppo")
    env_id: str = Field(description="Gymnasium id of the environment, e.g. CartPole-v1")
    seed: int = opt(0, "seed of everything random in the run", ge=0)
    total_timesteps: int = opt(100_000, "environment steps (offline algorithms: gradient updates)", ge=1)
    output_dir: Annotated[Path, Strict(False)] = opt(Path("runs"), "run directories are made in here")
    device: str = opt("auto", "auto, cpu, cuda or cuda:N")
    num_envs: int = opt(1, "environments stepped together", ge=1)
    execution_backend: Literal["local", "ray"] = opt(
        "local", "where training environments run: in this process, or in Ray actors (RAY_ADDRESS names the cluster)"
    )
    eval_episodes: int = opt(5, "episodes per evaluation", ge=1)
    log_interval: int | None = opt(None, "environment steps between log lines; null: about a hundred per run", ge=1)
    checkpoint_interval: int | None = opt(None, "environment steps between checkpoints; null: about twenty", ge=1)
    keep_checkpoints: int = opt(3, "checkpoints kept (replay buffers: of the newest two), beside the best", ge=1)
    record_video: int = opt(
        0, "episodes of each evaluation recorded as videos/step_….mp4 (gif without the video extra); 0: none", ge=0
    )
    loggers: Loggers = opt(("tensorboard",), "tensorboard, csv, wandb: where metrics go, beside metrics.jsonl")
    wandb_project: str | None = opt(None, "project in Weights & Biases; null: WANDB_PROJECT, or rl_training")
    tags: Strings = opt((), "free labels, kept with the run")
    compile: bool | Literal["auto"] = opt("auto", "compile updates into one graph; auto: if the run is long enough")
    threads: int | Literal["auto"] = opt("auto", "torch threads; auto: by network width, at most OMP_NUM_THREADS")
    progress: Literal["auto", "bar", "lines", "off"] = opt("auto", "bar in a terminal, lines elsewhere, or off")
    algo_kwargs: dict[str, Any] = opt({}, "options of the algorithm")
    env_kwargs: dict[str, Any] = opt({}, "gym.make arguments, time limit and wrappers")

    @field_validator("threads")
    @classmethod
    def _some_threads(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"must be at least 1 or 'auto', got {value}")
        return value

    @field_validator("algo")
    @classmethod
    def _known(cls, value: str) -> str:
        from rl_training.experiment.registry import get_entry

        return get_entry(value).name

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        kind, _, index = value.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (index and not index.isdigit()):
            raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {value!r}")
        return value

    def plain(self) -> dict[str, Any]:
        """Plain values only, as stored in checkpoints and config.yaml."""
        return self.model_dump(mode="json")
