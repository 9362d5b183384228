"""What ``help()`` says of the keywords of a class: read from beside them, where editors find it, once somebody asks."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from functools import cache

__all__ = ["explain", "meanings"]

WIDTH = 120


def explain(*kinds: type) -> None:
    """Let the docstring of each class tell the meaning of every keyword of its TypedDict, ``<class>Keywords``."""
    for kind in kinds:
        type.__setattr__(kind, "__doc__", _Explained(kind.__doc__ or kind.__name__))


class _Explained:
    """A docstring that grows a list of the keywords when it is read: no import waits for it."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, instance: object, owner: type) -> str:
        known = meanings(owner.__module__)
        every_run = known.get("RunKeywords", {})
        own = {
            name: meaning
            for name, meaning in known.get(f"{owner.__name__}Keywords", {}).items()
            if every_run.get(name) != meaning
        }
        if not own:  # a package without its sources
            return self._summary
        items = (
            textwrap.fill(f"- ``{name}``: {meaning}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            for name, meaning in own.items()
        )
        head = "These are keywords, beside those of every run (``RunKeywords``):"
        return "\n".join([self._summary, "", head, "", *items])


@cache
def meanings(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of the annotated names of a module's classes, their own first and then those of their bases."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    found: dict[str, dict[str, str]] = {}
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        names: dict[str, str] = {}
        for name, text in zip(kind.body, kind.body[1:]):
            match name, text:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    names[key] = " ".join(meaning.split())
        for base in kind.bases:
            inherited = found.get(base.id, {}) if isinstance(base, ast.Name) else {}
            names |= {key: meaning for key, meaning in inherited.items() if key not in names}
        found[kind.name] = names
    return found
