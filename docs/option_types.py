"""Writes src/rl_training/api/typed.py: the managed classes with their options as keywords, for editors and type checkers."""

from __future__ import annotations

import re
import textwrap
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from rl_training.base.options import Options
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import OptionRow, describe_options
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.options import AlgorithmOptions

TARGET = Path("src/rl_training/api/typed.py")
WIDTH = 120
HEAD = '''"""The managed classes, with their options as keywords: written by ``docs/generate.py`` from the options themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from rl_training.api.algorithms import ManagedAlgorithm

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


def wrapped(text: str, indent: str, first: str = "", last: str = "") -> list[str]:
    """Lines of a text, with what stands before it and after it."""
    return textwrap.wrap(
        first + text + last, WIDTH, initial_indent=indent, subsequent_indent=indent + " " * (2 if first == "- " else 0),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def keywords(name: str, base: str, summary: str, options: type[Options], names: Iterable[str]) -> list[str]:
    """A TypedDict of some of the options."""
    lines = ["", "", f"class {name}({base}, total=False):", f'    """{summary}"""', ""]
    rows = {row.name: row for row in describe_options(options)}
    for option in names:
        lines.append(f"    {option}: {written(options.model_fields[option].annotation)}")
        lines += wrapped(sentence(rows[option]), "    ", '"""', '"""')
    return lines


def managed(algo: str, own: list[str]) -> list[str]:
    """The managed class of an algorithm."""
    entry, options = ALGORITHMS[algo], get_algorithm_spec(algo).config
    rows = {row.name: row for row in describe_options(options)}
    lines = ["", "", f"class {entry.public}(ManagedAlgorithm):"]
    lines += wrapped(f"{entry.public}: {entry.summary} ({entry.paper}).", "    ", '"""')
    lines += ["", "    Its options are keywords, beside those of every run (``RunKeywords``):", ""]
    for name in own:
        row = rows[name]
        lines += wrapped(f"``{name}``: {sentence(row)}", "    ", "- ")
    return [
        *lines,
        '    """',
        "",
        f'    algo_name = "{algo}"',
        "",
        "    def __init__(",
        "        self,",
        "        config: TrainConfig | EnvSource,",
        "        *,",
        "        env: EnvSource | None = None,",
        "        network: Network | None = None,",
        f"        **options: Unpack[{entry.public}Keywords],",
        "    ) -> None:",
        "        super().__init__(config, env=env, network=network, **options)",
    ]


def source() -> str:
    """The text of the module."""
    common = list(AlgorithmOptions.model_fields)
    publics = [entry.public for entry in ALGORITHMS.values()]
    names = sorted(
        [*publics, *(f"{public}Keywords" for public in publics), "RunKeywords"],
        key=lambda name: (not name.isupper(), name),
    )
    lines = [HEAD, "__all__ = [", *(f'    "{name}",' for name in names), "]"]
    run = [name for name in TrainConfig.model_fields if name not in ("algo", "env_id")]
    summary = "Keywords of every managed class: the fields of TrainConfig, and the controls of every algorithm."
    lines += keywords("RunKeywords", "TypedDict", summary, TrainConfig, run)
    lines += keywords("RunKeywords", "TypedDict", "", AlgorithmOptions, common)[5:]
    for algo, entry in ALGORITHMS.items():
        config = get_algorithm_spec(algo).config
        own = [row.name for row in describe_options(config) if row.name not in common]
        lines += keywords(f"{entry.public}Keywords", "RunKeywords", f"Keywords of {entry.public}.", config, own)
        lines += managed(algo, own)
    return "\n".join(lines) + "\n"
