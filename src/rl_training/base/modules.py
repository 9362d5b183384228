"""Modules that a user names: where they are looked for, and what is said if one is not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType

from rl_training.base.errors import reason

__all__ = ["MissingModule", "can_import", "directories_added", "import_named", "look_here", "look_in"]

_added: list[str] = []


class MissingModule(ValueError):
    """Raised where a module that somebody named cannot be imported."""


def can_import(module: str) -> bool:
    """Whether the top of a dotted name can be found; nothing is imported."""
    try:
        return find_spec(module.partition(".")[0]) is not None
    except ValueError:  # it is imported, and does not say from where
        return True


def look_here(modules: Iterable[str]) -> None:
    """Let the modules that a user has named be imported from the current directory, if they are there and nowhere else.

    The directory goes to the end of ``sys.path``, so that no file in it takes the place of an installed module.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return
    if any(not can_import(name) and PathFinder.find_spec(name.partition(".")[0], [here]) for name in modules):
        look_in([here])


def look_in(directories: Iterable[str]) -> None:
    """Add directories to the end of ``sys.path``: those that ``directories_added`` gave in another process."""
    for directory in directories:
        if directory not in sys.path:
            sys.path.append(directory)
            _added.append(directory)


def directories_added() -> list[str]:
    """What ``look_here`` has added in this process, for the processes that it starts."""
    return [directory for directory in _added if directory in sys.path]


def import_named(module: str) -> ModuleType:
    """Import a module by name; if there is none, the error says where it was looked for."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise MissingModule(f"to import the module {module!r} failed: {reason(error)}") from None
        raise MissingModule(f"there is no module {error.name!r}; looked in {_places(error.name)}") from None
    except Exception as error:  # whatever its code may raise
        raise MissingModule(
            f"to import the module {module!r} failed: {type(error).__name__}: {reason(error)}"
        ) from None


def _places(module: str) -> str:
    """The directories that were searched, and the current one if a module of this name lies in it unsearched."""
    parent, _, last = module.rpartition(".")
    where = list(getattr(sys.modules.get(parent), "__path__", ())) if parent else sys.path
    searched = [directory or os.getcwd() for directory in where if os.path.isdir(directory or os.curdir)]
    text = ", ".join(dict.fromkeys(searched))
    if not parent and os.path.isdir(os.curdir) and PathFinder.find_spec(last, [os.getcwd()]) is not None:
        text += f"; not in {os.getcwd()}, where one of this name lies: --trust {module} has it taken from there"
    return text
