"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any


def write_durably(path: Path, pieces: list[Any]) -> None:
    """Temporary file, fsync, rename, fsync of the folder; on any error the temporary file is removed."""
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
