"""Atomic writes of files, and locks on folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["InUse", "lock_folder", "write_durably"]


class InUse(RuntimeError):
    """Raised where another process has locked the folder."""


@contextlib.contextmanager
def lock_folder(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a folder for this process alone, waiting at most ``patience`` seconds for another to release it."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=patience)
    except Timeout:
        raise InUse(f"{folder} is in use by another process") from None
    try:
        yield
    finally:
        lock.release()


def write_durably(path: Path, pieces: list[Any]) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename, fsync of the folder."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
