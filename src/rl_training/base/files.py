"""Atomic writes of files, locks on folders, and reading of regular files alone.

A folder from somebody else may hold a symbolic link to a file of one's own, a pipe that never answers, or a file of any
size. Whatever lies in a run or a sweep folder is opened by the functions below, which refuse all three.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "InUse",
    "UnusualFile",
    "files_below",
    "lock_folder",
    "open_regular",
    "read_json_object",
    "read_regular",
    "real_folder",
    "regular_file",
    "write_durably",
    "write_together",
]

MOST_BYTES = 1 << 26  # of a file that is read at once: no config, note or manifest comes near
KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file",
}  # fmt: skip


class InUse(RuntimeError):
    """Raised where another process has locked the folder."""


class UnusualFile(ValueError):
    """Raised for a link, a pipe, a device or a file of absurd size where a regular file or a folder belongs."""


def regular_file(path: Path, *, follow: bool = False) -> bool:
    """Whether there is a file. Anything but a regular one is refused; so is a link, unless ``follow``."""
    return _is(path, stat.S_IFREG, "a regular file", follow)


def real_folder(path: Path) -> bool:
    """Whether there is a folder. Anything else is refused, a link to a folder too."""
    return _is(path, stat.S_IFDIR, "a folder of its own", False)


def _is(path: Path, kind: int, expected: str, follow: bool) -> bool:
    try:
        found = stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if found != kind:
        raise UnusualFile(f"{path} is {KINDS.get(found, 'something else')}, not {expected}")
    return True


def files_below(folder: Path) -> list[Path]:
    """The files below a folder, sorted; none if there is no folder. Links and special files among them are refused."""
    found, folders = [], [folder]
    while folders:
        here = folders.pop()
        for path in here.iterdir() if real_folder(here) else ():
            if path.is_dir():
                folders.append(path)
            elif regular_file(path):
                found.append(path)
    return sorted(found)


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading bytes; nothing else is opened, so that nothing can block."""
    if not regular_file(path, follow=follow):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0))), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced since it was looked at
        file.close()
        raise UnusualFile(f"{path} is not a regular file")
    return file


def read_regular(path: Path, most: int = MOST_BYTES, *, follow: bool = False) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnusualFile(f"{path} has {size:,} bytes, more than the {most:,} that such a file may have")
        return file.read(most)


def read_json_object(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object that a regular file holds; anything else in it is refused in one line."""
    try:
        content = json.loads(read_regular(path, most))
    except UnusualFile:
        raise
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


@contextlib.contextmanager
def lock_folder(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a folder for this process alone, waiting at most ``patience`` seconds for another to release it."""
    from filelock import FileLock, Timeout

    regular_file(folder / ".lock")
    try:
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=patience)
    except Timeout:
        raise InUse(f"{folder} is in use by another process") from None
    try:
        yield
    finally:
        lock.release()


def write_durably(path: Path, pieces: Iterable[Any]) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename, fsync of the folder."""
    write_together({path: pieces})


def write_together(files: Mapping[Path, Iterable[Any]]) -> None:
    """Write several files, each whole or not at all, and none of them before the content of all is on the disk.

    They take their places one by one, in this order. An error while a content is made or written changes nothing.
    """
    staged: dict[Path, Path] = {}
    try:
        for path, pieces in files.items():
            staged[path] = path.with_name(f".{path.name}.{os.getpid()}.partial")
            _write_partial(staged[path], pieces)
        for path, partial in staged.items():
            os.replace(partial, path)
    except BaseException:
        for partial in staged.values():
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        for place in dict.fromkeys(path.parent for path in files):
            folder = os.open(place, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _write_partial(partial: Path, pieces: Iterable[Any]) -> None:
    partial.unlink(missing_ok=True)  # a link that waits under this name is not followed
    with open(partial, "xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
