"""Columns of npz and hdf5 files, read after their headers: types and sizes are known before memory is taken.

A file may take ``EXPANSION`` times its own size in memory (deflate packs at most 1,032 bytes into one) and never more
than the machine has. Nothing is followed out of a file: links, virtual datasets and data that lies in other files are
refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.base.errors import reason
from rl_training.data.dataset_columns import KNOWN, SPELLINGS, Columns
from rl_training.data.errors import DatasetError

__all__ = ["damaged_unless_read", "read_hdf5_columns", "read_npz_columns"]

EXPANSION = 2_000
SMALL = 2**26  # bytes that any file may take
NUMBERS = "buif"  # kinds of numpy types
NAMES = frozenset((*KNOWN, *(other for others in SPELLINGS.values() for other in others)))  # of columns that are used


class _Member(NamedTuple):
    """An array of a file, of which only the header has been read."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[], Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz_columns(path: Path) -> Columns:
    """The arrays of an npz file that are numbers, and its ``meta``."""
    with damaged_unless_read(path, "an npz file"):
        with open(path, "rb") as file:
            start = file.read(6)
        if start == b"\x93NUMPY":
            raise DatasetError(f"{path} holds a single array, not the columns of a dataset")
        if start[:1] == b"\x80":
            raise DatasetError(f"{path} holds pickled objects, which could run code; it was not read")
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            return _read([_npy_member(archive, entry, path) for entry in entries], path, also=("meta",))


def read_hdf5_columns(path: Path, h5py: Any) -> tuple[Columns, list[str], Any]:
    """The datasets at the top of an hdf5 file that are numbers, the names of its groups, and its ``meta``."""
    with damaged_unless_read(path, "an hdf5 file"), h5py.File(path, "r") as file:
        members, groups = [], []
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                _refuse_if_used(path, name, "is a link; links are not followed")
            elif isinstance(node := file[name], h5py.Group):
                groups.append(name)
            elif isinstance(node, h5py.Dataset) and isinstance(node.dtype, np.dtype) and node.shape is not None:
                if node.is_virtual or node.external:
                    _refuse_if_used(path, name, "has its data in other files, which are not read")
                    continue
                members.append(_Member(name, node.dtype, node.shape, partial(node.__getitem__, ())))
        return _read(members, path), groups, file.attrs.get("meta")


@contextlib.contextmanager
def damaged_unless_read(path: Path | str, kind: str) -> Iterator[None]:
    """Turn whatever a library raises for a file into one line that names it."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{path} is damaged or not {kind} ({reason(error)})") from None


def _refuse_if_used(path: Path, name: str, problem: str) -> None:
    if name in NAMES:
        raise DatasetError(f"{path}: {name} {problem}")


def _npy_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> _Member:
    """The header of a member, which must account for its size to the byte."""
    name = entry.filename.removesuffix(".npy")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        size = entry.file_size - file.tell()

    def read() -> np.ndarray:
        with archive.open(entry) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array

    member = _Member(name, dtype, shape, read)
    if dtype.hasobject:
        raise DatasetError(f"{path}: {name} holds pickled objects, which could run code; it was not read")
    if any(type(length) is not int or length < 0 for length in shape) or member.nbytes != size:
        raise DatasetError(f"{path}: {name} has {size:,} bytes, which are not {dtype} of shape {shape}")
    return member


def _read(members: list[_Member], path: Path, also: tuple[str, ...] = ()) -> Columns:
    """Read the members that are numbers, and those named in ``also``, if all of them fit into memory."""
    chosen = [member for member in members if member.dtype.kind in NUMBERS or member.name in also]
    for member in members:
        if member not in chosen:
            what = f"got {member.dtype} of shape {member.shape}"
            _refuse_if_used(path, member.name, f"must be numbers with a row for each transition, {what}")
    total = sum(member.nbytes for member in chosen)
    most = min(max(SMALL, EXPANSION * path.stat().st_size), _memory())
    if total > most:
        raise DatasetError(f"{path} would take {total:,} bytes in memory, and at most {most:,} may be taken for it")
    return {member.name: member.read() for member in chosen}


def _memory() -> int:
    """The machine's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40
