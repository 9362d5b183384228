"""Writes src/rl_training/api/typed.py: the managed classes with their options as keywords, for editors and type checkers."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

from rl_training.base.options import Options
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import OptionRow, describe_options
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.options import AlgorithmOptions

TARGET = Path("src/rl_training/api/typed.py")
WIDTH = 120
INDENT = "    "
HEAD = '''"""The managed classes, with their options as keywords: written by ``docs/generate.py`` from the options themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from rl_training.api.algorithms import ManagedAlgorithm
from rl_training.api.explained import explain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from rl_training.envs.factory import EnvSource
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.controls import EarlyStoppingConfig
    from rl_training.runtime.spec import Network
'''


def written(annotation: Any) -> str:
    """An option's annotation as a type that takes whatever the option takes."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return written(parts[0])
    if origin is Literal:
        return f"Literal[{', '.join(repr(part).replace(chr(39), chr(34)) for part in parts)}]"
    if origin in (Union, types.UnionType):
        return " | ".join(written(part) for part in sorted(parts, key=lambda part: part is types.NoneType))
    if origin is tuple:
        kinds = [written(part) for part in parts if part is not Ellipsis]
        if kinds[0].startswith("Literal"):  # a plain str, itself a sequence, is then refused all the same
            return f"Sequence[{kinds[0]}]"
        rest = ", ..." if Ellipsis in parts else ""
        return f"list[{kinds[0]}] | tuple[{', '.join(kinds)}{rest}]"
    if origin is list:
        return f"Sequence[{written(parts[0])}]"
    if origin is dict:
        return "Mapping[str, object]"
    if annotation is types.NoneType:
        return "None"
    if annotation is Path:
        return "str | Path"
    if isinstance(annotation, type) and issubclass(annotation, Options):
        known = f"{annotation.__name__} | " if annotation.__name__ == "EarlyStoppingConfig" else ""
        return f"{known}Mapping[str, object]"
    assert annotation in (int, float, bool, str), f"no type is known for {annotation}"
    return str(annotation.__name__)


def sentence(row: OptionRow) -> str:
    """The meaning, bounds and default of an option."""
    bounds = f" ({row.bounds})" if row.bounds else ""
    default = {"true": "True", "false": "False"}.get(row.default, row.default)
    return re.sub(r"\bnull\b", "None", f"{row.meaning}{bounds}; default: {default}")


def wrapped(text: str) -> list[str]:
    """The lines of a docstring."""
    return textwrap.wrap(
        f'"""{text}"""', WIDTH, initial_indent=INDENT, subsequent_indent=INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


class Keywords(NamedTuple):
    """A TypedDict: its name, those it takes more from, what it says, and its own keywords with type and meaning."""

    name: str
    bases: list[str]
    summary: str
    own: dict[str, tuple[str, str]]

    def lines(self) -> list[str]:
        lines = ["", "", f"class {self.name}({', '.join(self.bases) or 'TypedDict'}, total=False):"]
        lines += [*wrapped(self.summary), ""]
        for option, (kind, meaning) in self.own.items():
            lines += [f"{INDENT}{option}: {kind}", *wrapped(meaning)]
        return lines if self.own else lines[:-1]


def described(options: type[Options]) -> dict[str, tuple[str, str]]:
    """The type and the meaning of every option of a class, by name."""
    fields = options.model_fields
    return {row.name: (written(fields[row.name].annotation), sentence(row)) for row in describe_options(options)}


def groups() -> dict[type[Options], Keywords]:
    """The keywords of every options class, in its bases' order: what says the same as in a base is not said again."""
    publics = {get_algorithm_spec(algo).config: entry.public for algo, entry in ALGORITHMS.items()}
    run = {name: text for name, text in described(TrainConfig).items() if name not in ("algo", "env_id")}
    summary = "Keywords of every managed class: the fields of TrainConfig, and the controls of every algorithm."
    made = {AlgorithmOptions: Keywords("RunKeywords", [], summary, run | described(AlgorithmOptions))}

    def add(options: type[Options]) -> None:
        if options in made:
            return
        bases = [base for base in options.__bases__ if issubclass(base, Options) and base is not Options]
        for base in bases:
            add(base)
        inherited = [described(base) for base in bases]
        own = {
            name: text
            for name, text in described(options).items()
            if {text} != {base[name] for base in inherited if name in base}
        }
        name, public = options.__name__.removesuffix("Options"), publics.get(options)
        if public is None and name in publics.values():  # PPOOptions are not the options of PPO alone
            name = f"Common{name}"
        summary = f"Keywords of {public}." if public else inspect.getdoc(options).partition("\n\n")[0]
        made[options] = Keywords(f"{public or name}Keywords", [made[base].name for base in bases], summary, own)

    for options in publics:
        add(options)
    return made


def managed(algo: str) -> list[str]:
    """The managed class of an algorithm."""
    entry = ALGORITHMS[algo]
    summary = f"{entry.public}: {entry.summary} ({entry.paper}). Its options are ``{entry.public}Keywords``."
    return [
        "",
        "",
        f"class {entry.public}(ManagedAlgorithm):",
        *wrapped(summary),
        "",
        f'    algo_name = "{algo}"',
        "",
        "    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,",
        f"                 network: Network | None = None, **options: Unpack[{entry.public}Keywords]) -> None:  # fmt: skip",
        "        super().__init__(config, env=env, network=network, **options)",
    ]


def source() -> str:
    """The text of the module."""
    publics = sorted((entry.public for entry in ALGORITHMS.values()), key=lambda name: (not name.isupper(), name))
    made = groups()
    names = sorted([*publics, *(group.name for group in made.values())], key=lambda name: (not name.isupper(), name))
    lines = [HEAD, "__all__ = [", *(f'    "{name}",' for name in names), "]"]
    algos = {get_algorithm_spec(algo).config: algo for algo in ALGORITHMS}
    for options, group in made.items():
        lines += group.lines()
        if options in algos:
            lines += managed(algos[options])
    return "\n".join([*lines, "", "", f"explain({', '.join(publics)})"]) + "\n"
