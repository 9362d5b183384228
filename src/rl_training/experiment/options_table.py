"""Tables of an algorithm's options, for the ``show`` command and the documentation."""

from __future__ import annotations

from typing import Any, NamedTuple

from rl_training.base.options import Options

__all__ = ["OptionRow", "describe_options", "markdown_table", "option_text"]


class OptionRow(NamedTuple):
    """One option as text."""

    name: str
    default: str
    bounds: str
    meaning: str


def describe_options(options: type[Options]) -> list[OptionRow]:
    """List an algorithm's own options, then the ones it inherits."""
    own = [name for name in options.model_fields if name in options.__annotations__]
    names = [*own, *(name for name in options.model_fields if name not in own)]
    by_task = getattr(options, "BY_TASK", ())
    return [_row(name, options.model_fields[name], name in by_task) for name in names]


def _row(name: str, field: Any, by_task: bool = False) -> OptionRow:
    default = "required" if field.is_required() else option_text(field.default)
    if by_task:
        default = "by task"
    signs = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
    bounds = [
        f"{sign} {getattr(limit, word)}" for limit in field.metadata for word, sign in signs if hasattr(limit, word)
    ]
    return OptionRow(name, default, ", ".join(bounds), field.description or "")


def option_text(value: Any) -> str:
    """Format a value as YAML writes it."""
    if isinstance(value, Options):
        value = value.model_dump()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {option_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(option_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def markdown_table(options: type[Options]) -> str:
    """Make the option table of an algorithm's documentation page."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for row in describe_options(options):
        bounds = f" ({row.bounds})" if row.bounds else ""
        lines.append(f"| `{row.name}` | `{row.default}` | {row.meaning}{bounds} |")
    return "\n".join(lines)
