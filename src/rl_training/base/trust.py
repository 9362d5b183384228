"""Which modules a file may name. Importing a module runs it, so a file's word alone is not enough."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from typing import Any

__all__ = ["VARIABLE", "UntrustedCode", "module_of", "require_trusted", "trust_modules"]

VARIABLE = "RL_TRAINING_TRUST"  # names of modules, separated by commas
OWN = ("rl_training", "gymnasium")
NAMED = re.compile(r"\s*([A-Za-z_][\w.]*):[A-Za-z_][\w./-]*\s*").fullmatch  # package.module:Name

_allowed: set[str] = set()


class UntrustedCode(ValueError):
    """Raised where a file names a module that nobody has allowed it to import."""


def trust_modules(names: str | Iterable[str]) -> None:
    """Let files name these modules, and the modules in them, for the rest of this process."""
    _allowed.update(_split([names] if isinstance(names, str) else names))


def _split(texts: Iterable[str]) -> Iterator[str]:
    return (name.strip() for text in texts for name in text.split(",") if name.strip())


def _trusted(module: str) -> bool:
    """Whether a module is loaded already, of this package or of Gymnasium, or allowed."""
    names = (*OWN, *_allowed, *_split([os.environ.get(VARIABLE, "")]))
    loaded = sys.modules.get(module) is not None
    return loaded or any(module == name or module.startswith(f"{name}.") for name in names)


def module_of(env_id: str) -> str | None:
    """The module that making an environment imports first: ``package.module`` of ``package.module:Name-v0``."""
    module, colon, _ = env_id.partition(":")
    return module if colon else None


def require_trusted(where: str, env_id: str, env_kwargs: Any = None) -> None:
    """Refuse the environment that a file names if making it would import a module that is not trusted.

    Arguments may name code as well: there are environments that make another one, by its id.
    """
    modules = {module_of(env_id): env_id}
    for text in _texts(env_kwargs):
        named = NAMED(text)
        if named and PathFinder.find_spec(named[1].partition(".")[0]) is not None:  # else there is nothing to import
            modules[named[1]] = text.strip()
    for module, name in modules.items():
        if module is not None and not _trusted(module):
            raise UntrustedCode(
                f"{where} names {name!r}, and to make it would run the code of the module {module!r}; if you trust "
                f"that, say --trust {module}, or set {VARIABLE}={module}, or import it first"
            )


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested lists and mappings."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list | tuple):
            pending += value.values() if isinstance(value, dict) else value
