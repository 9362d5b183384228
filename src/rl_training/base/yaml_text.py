"""YAML from people and files, within limits: of size, of depth, and of what its aliases stand for."""

from __future__ import annotations

import itertools
from typing import Any, Literal

__all__ = ["YamlProblem", "parse_yaml"]

MOST_CHARACTERS = 200_000
DEEPEST = 200  # brackets within brackets
MOST_VALUES = 10_000  # in a text with aliases, each counted as what it stands for


class YamlProblem(ValueError):
    """Raised for text that is not YAML, or more of it than is read; ``line`` counts from 1."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(problem)


def parse_yaml(text: str, kind: Literal["rt", "safe", "pure"] = "safe") -> Any:
    """The values of a YAML text: ``rt`` with their lines, ``safe`` as plain values, ``pure`` by Python code alone."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text) > MOST_CHARACTERS:
        raise YamlProblem(f"{len(text):,} characters of YAML are more than the {MOST_CHARACTERS:,} that are read")
    if _depth(text) > DEEPEST:
        raise YamlProblem("not valid YAML: it is nested too deep")
    yaml = YAML(typ="rt") if kind == "rt" else YAML(typ="safe", pure=kind == "pure")
    try:
        if "&" in text:  # without an anchor there are no aliases
            _require_few_values(text)
        return yaml.load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise YamlProblem(f"not valid YAML: {problem}", mark.line + 1 if mark else None) from None
    except RecursionError:
        raise YamlProblem("not valid YAML: it is nested too deep") from None
    except YamlProblem:
        raise
    except Exception as error:  # a number of too many digits, a date that is none
        raise YamlProblem(f"not valid YAML: {error}") from None


def _depth(text: str) -> int:
    """How deep brackets are nested at most, wherever they stand."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return 0
    steps = ((c in "[{") - (c in "]}") for c in text)
    return max(itertools.accumulate(steps), default=0)


def _require_few_values(text: str) -> None:
    """Count values without making them: aliases of aliases stand for a thousandfold of what is written."""
    from ruamel.yaml import YAML
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    sizes: dict[str, int] = {}  # of what each anchor names
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size so far, from the top inwards
    for event in YAML(typ="safe", pure=True).parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, CollectionStartEvent):
            open_nodes.append((event.anchor, 0))
            continue
        if isinstance(event, AliasEvent):
            if event.anchor not in sizes:
                raise YamlProblem(f"not valid YAML: the alias *{event.anchor} names nothing before it", line)
            anchor, size = None, sizes[event.anchor]
        elif isinstance(event, ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, CollectionEndEvent):
            anchor, size = open_nodes.pop()
            size += 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, before = open_nodes[-1]
        open_nodes[-1] = (outer, before + size)
        if before + size > MOST_VALUES:
            raise YamlProblem(f"its aliases stand for more than {MOST_VALUES:,} values", line)
