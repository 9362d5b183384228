"""The base of every options class, and errors that name the place in a config."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from rl_training.base.aliases import known_as

if typing.TYPE_CHECKING:
    from typing_extensions import Self  # of the standard library from Python 3.11 on

__all__ = ["ConfigError", "Loc", "Options", "Sizes", "Strings", "opt", "unknown"]

Loc = tuple[str | int, ...]  # where in a config: names and indices from the top
LARGEST = 2**63 - 1  # of whole numbers


class ConfigError(ValueError):
    """Mistakes in a config; ``problems`` pairs each place with what is wrong there."""

    def __init__(self, problems: list[tuple[Loc, str]], where: str = "") -> None:
        self.problems = problems
        super().__init__("; ".join(where + _dotted(loc) + message for loc, message in problems))

    def under(self, *prefix: str | int) -> ConfigError:
        """The same mistakes, of options that lie below ``prefix``."""
        return ConfigError([((*prefix, *loc), message) for loc, message in self.problems])


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc)) + ": " if loc else ""


def opt(default: Any, meaning: str, **bounds: Any) -> Any:
    """Declare an option: its default, what it means, and its bounds (``ge``, ``gt``, ``le``, ``lt``).

    ``allow_inf_nan=True``: an infinity means something. Elsewhere numbers are finite, and whole ones have 64 bits.
    """
    return Field(default, description=meaning, **bounds)


Sizes = Annotated[tuple[Annotated[int, Field(gt=0)], ...], Strict(False)]  # widths of layers
Strings = Annotated[tuple[str, ...], Strict(False)]


class Options(BaseModel):
    """Validated options: unknown names, wrong types and values out of range are refused, in one line."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    TITLE: typing.ClassVar[str] = ""  # how messages call it, e.g. "sac"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_problems(error, type(self), values)) from None

    @classmethod
    def elsewhere(cls, values: dict[str, Any]) -> dict[str, str]:
        """Names that belong to other options than these, for who writes them here, and how to call them."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _natural_numbers(cls, values: Any) -> Any:
        """Take 1e5 for a whole number and numpy's scalars for numbers, but never True."""
        if not isinstance(values, dict):
            return values
        return {name: _natural(value, name, cls.model_fields.get(name)) for name, value in values.items()}

    def pick(self, names: Iterable[str]) -> dict[str, Any]:
        """Some of the options by name, as they are: arguments for whoever takes them under the same names."""
        return {name: getattr(self, name) for name in names}

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, _natural(value, name, type(self).model_fields.get(name)))
        except ValidationError as error:
            raise ConfigError(_problems(error, type(self))) from None

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed, validated again."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return type(self)(**{**given, **changes})


def _too_large(value: Any, loc: Loc) -> list[tuple[Loc, str]]:
    """Whole numbers of more than 64 bits, at any depth of a value: nothing that counts or draws can take them."""
    if isinstance(value, int):
        digits = "a number of many digits" if abs(value) > 10**40 else str(value)
        return [(loc, f"must fit into 64 bits, got {digits}")] if abs(value) > LARGEST else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [problem for key, part in items for problem in _too_large(part, (*loc, key))]


def _natural(value: Any, name: str, field: FieldInfo | None) -> Any:
    value = _without_numpy(value)
    if field is None:
        return value
    if isinstance(value, float) and value.is_integer() and not _accepts(field.annotation, float):
        value = int(value) if _accepts(field.annotation, int) else value
    problems = _too_large(value, (name,))
    if problems:
        raise ConfigError(problems)
    return value


def _without_numpy(value: Any) -> Any:
    """Turn numpy's scalars and arrays into plain values, at any depth: searches and spaces produce them."""
    if hasattr(value, "tolist") and hasattr(value, "ndim"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _without_numpy(part) for key, part in value.items()}
    return type(value)(map(_without_numpy, value)) if type(value) in (list, tuple) else value


def _accepts(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_accepts(part, kind) for part in typing.get_args(annotation))


def _problems(
    error: ValidationError, model: type[Options], values: dict[str, Any] | None = None
) -> list[tuple[Loc, str]]:
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
            others = model.elsewhere(values or {})
            message = unknown(str(item["loc"][-1]), model.model_fields, model.TITLE, others)
            found.setdefault(item["loc"], []).append(message)
        elif item["type"] in ("missing", "value_error"):
            found.setdefault(loc, []).append("is required" if cause is None else str(cause))
        else:
            what = item["msg"].removeprefix("Input ").rstrip(".")
            found.setdefault(loc, []).append(f"{what[0].lower()}{what[1:]}, got {item['input']!r}")
    return [(loc, _either(messages)) for loc, messages in found.items()]


def _either(messages: list[str]) -> str:
    """Join the errors of a union's members: ``should be a valid boolean or should be 'auto', got 'yes'``."""
    heads, tails = zip(*(message.partition(", got ")[::2] for message in messages))
    if len(messages) == 1 or not all(tails):
        return messages[0]
    return f"{' or '.join(dict.fromkeys(heads))}, got {tails[0]}"


def unknown(name: str, known: Iterable[str], owner: str, elsewhere: dict[str, str] | None = None) -> str:
    """Say that an option is unknown, with the nearest name that is known, here or ``elsewhere``.

    That is what it is called in other libraries, or the name that is spelt most like it.
    """
    here, others = list(known), elsewhere or {}
    alias, other = known_as(name, here), name if name in others else known_as(name, others)
    if alias is None and other is None:
        close = difflib.get_close_matches(name, here, n=1)
        alias = close[0] if close else None
        if alias is None:
            other = next(iter(difflib.get_close_matches(name, others, n=1)), None)
    hint = repr(alias) if alias is not None else others[other] if other is not None else ""
    return f"unknown option{f' of {owner}' if owner else ''}" + (f"; did you mean {hint}?" if hint else "")
