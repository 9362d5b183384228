"""Which modules a file may name. Importing a module runs it, so a file's word alone is not enough."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rl_training.base.modules import can_import

__all__ = [
    "VARIABLE",
    "UntrustedCode",
    "modules_named",
    "require_trusted",
    "split_name",
    "trust_modules",
    "words_of_modules",
]

VARIABLE = "RL_TRAINING_TRUST"  # names of modules, separated by commas
OWN = ("rl_training", "gymnasium")
NAMED = re.compile(r"\s*([A-Za-z_][\w.]*):[A-Za-z_][\w./-]*\s*").fullmatch  # package.module:Name

_allowed: set[str] = set()


class UntrustedCode(ValueError):
    """Raised where a file names a module that nobody has allowed it to import."""


def trust_modules(names: str | Iterable[str]) -> list[str]:
    """Let files name these modules, and the modules in them, for the rest of this process; returns them one by one."""
    modules = list(_split([names] if isinstance(names, str) else names))
    _allowed.update(modules)
    return modules


def _split(texts: Iterable[str]) -> Iterator[str]:
    return (name.strip() for text in texts for name in text.split(",") if name.strip())


def _trusted(module: str) -> bool:
    """Whether a module is loaded already, of this package or of Gymnasium, or allowed."""
    names = (*OWN, *_allowed, *_split([os.environ.get(VARIABLE, "")]))
    loaded = sys.modules.get(module) is not None
    return loaded or any(module == name or module.startswith(f"{name}.") for name in names)


def split_name(text: str) -> tuple[str, str] | None:
    """Module and name of ``package.module:Name``; None if a text is not of that form."""
    return (text.partition(":")[0].strip(), text.partition(":")[2].strip()) if NAMED(text) else None


def words_of_modules(env_id: str | None, env_kwargs: Any = None) -> dict[str, str]:
    """What may be modules in an environment's id and arguments, wrappers among them, each with the text it is in."""
    module, colon, _ = (env_id or "").partition(":")
    found = {module: str(env_id)} if colon else {}
    for text in _texts(env_kwargs):
        parts = split_name(text)
        if parts is not None:
            found.setdefault(parts[0], text.strip())
    return found


def modules_named(env_id: str | None, env_kwargs: Any = None) -> list[str]:
    """The modules of others that making an environment imports: that of its id, and those its arguments name."""
    first = (env_id or "").partition(":")[0]
    named = [name for name in words_of_modules(env_id, env_kwargs) if name == first or can_import(name)]
    return [name for name in named if name.partition(".")[0] not in OWN]


def require_trusted(where: str, env_id: str | None, env_kwargs: Any = None) -> None:
    """Refuse the environment that a file names if making it would import a module that is not trusted.

    Arguments may name code as well: wrappers, and environments that make another one, by its id. ``env_id`` is None
    where the caller has an environment, and only the arguments are the file's.
    """
    words = words_of_modules(env_id, env_kwargs)
    for module in modules_named(env_id, env_kwargs):
        if not _trusted(module):
            raise UntrustedCode(
                f"{where} names {words[module]!r}, and to make it would run the code of the module {module!r}; if you "
                f"trust that, say --trust {module}, or set {VARIABLE}={module}, or import it first"
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
