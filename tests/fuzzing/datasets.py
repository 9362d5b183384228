"""Files of transitions whose headers or columns are wrong: sizes beyond the file, objects, links, damage."""

from __future__ import annotations

import io
import itertools
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.damage import damaged

__all__ = ["good_columns", "hdf5_mutants", "npz_mutants", "write_hdf5", "write_npz"]

THEIRS = {
    "obs": "observations",
    "next_obs": "next_observations",
    "terminations": "terminals",
    "truncations": "timeouts",
}
Columns = dict[str, np.ndarray]


def good_columns(rows: int = 40, obs: int = 3, actions: int = 1) -> Columns:
    """Two or more episodes of Pendulum's shape."""
    rng = np.random.default_rng(0)
    ends = np.arange(1, rows + 1) % 20 == 0
    observations = rng.normal(size=(rows + 1, obs)).astype(np.float32)
    return {
        "obs": observations[:-1],
        "actions": rng.uniform(-1, 1, (rows, actions)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_obs": observations[1:],
        "terminations": ends & (np.arange(rows) < 20),
        "truncations": ends & (np.arange(rows) >= 20),
    }


def write_npz(columns: Columns, headers: dict[str, bytes] | None = None, compress: bool = False) -> bytes:
    """An npz file; ``headers`` replaces the start of some members, whose data stays."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, array in columns.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=True)
            data = member.getvalue()
            if headers and name in headers:
                data = headers[name] + array.tobytes()
            entry = zipfile.ZipInfo(f"{name}.npy")
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED)
    return memory.getvalue()


def write_hdf5(columns: Columns, finish: Callable[[Any], None] | None = None) -> bytes:
    """An hdf5 file in D4RL's layout; ``finish`` may add to the open file."""
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, array in columns.items():
            file[THEIRS.get(name, name)] = array
        if finish is not None:
            finish(file)
    return memory.getvalue()


def npz_mutants(seed: int, count: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield npz files of transitions, each with something wrong."""
    rng, good = random.Random(seed), write_npz(good_columns())
    for number in itertools.count() if count is None else range(count):
        columns = good_columns()
        name = rng.choice(sorted(columns))
        kind = rng.choice(["damage", "header", "header", "object", "bomb", "members", "column", "column", "meta"])
        if kind == "damage":
            words, data = next(damaged(good, rng.randrange(2**32)))
        elif kind == "header":
            header, words = _header(columns[name], rng)
            data = write_npz(columns, {name: header})
        elif kind == "object":
            words, data = f"objects in {name}", write_npz({**columns, name: np.array([_Harmless()] * 3, object)})
        elif kind == "bomb":
            rows = rng.choice([200_000, 2_000_000])
            words, data = (
                f"{rows} zeros in {name}",
                write_npz({**columns, name: np.zeros(rows, np.float64)}, compress=True),
            )
        elif kind == "members":
            words, data = _members(rng, good)
        elif kind == "meta":
            meta = rng.choice(
                ["{", "[1]", '{"random_return": "x"}', "[" * 100_000, '{"env_id": 7}', '{"a": ' + "9" * 9000 + "}"]
            )
            words, data = f"meta {meta[:30]}", write_npz({**columns, "meta": np.array(meta)})
        else:
            words = _column(columns, name, rng)
            data = write_npz(columns)
        yield f"{number}: {kind}: {words}", data


def hdf5_mutants(seed: int, count: int | None = None, *, outside: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield hdf5 files of transitions, each with something wrong; ``outside`` is a file that links lead to."""
    rng, good, elsewhere = random.Random(seed), write_hdf5(good_columns()), str(outside or "elsewhere.hdf5")
    adders = {"huge": _add_huge, "link": _add_link, "type": _add_type, "group": _add_group}
    for number in itertools.count() if count is None else range(count):
        columns = good_columns()
        name = rng.choice(sorted(columns))
        kind = rng.choice(["damage", "huge", "huge", "link", "link", "type", "column", "column", "meta", "group"])
        if kind == "damage":
            words, data = next(damaged(good, rng.randrange(2**32)))
        elif kind == "column":
            words = _column(columns, name, rng, [kind for kind in MAKERS if kind != "dates"])
            data = write_hdf5(columns)
        elif kind == "meta":
            words, data = _with_meta(columns, rng)
        else:
            words, data = _with_member(adders[kind], columns, name, rng, elsewhere)
        yield f"{number}: {kind}: {words}", data


def _with_member(add: Any, columns: Columns, name: str, rng: random.Random, elsewhere: str) -> tuple[str, bytes]:
    column, said = columns.pop(name), []
    data = write_hdf5(columns, lambda file: said.append(add(file, name, column, rng, elsewhere)))
    return f"{name} {said[0]}", data


def _with_meta(columns: Columns, rng: random.Random) -> tuple[str, bytes]:
    meta: Any = rng.choice(["{", "[1]", '{"random_return": "x"}', "[" * 10_000, 7, np.arange(5), b"\xff\xfe"])
    return repr(meta)[:30], write_hdf5(columns, lambda file: file.attrs.__setitem__("meta", meta))


# ---- one member of an hdf5 file: each adds it in place of a column, and says what it is


def _add_huge(file: Any, name: str, column: np.ndarray, rng: random.Random, elsewhere: str) -> str:
    shape: tuple[int, ...] = rng.choice([(2**40,), (2**34, 3), (2**20, 2**20), (2**62,)])
    chunks = (1024,) * len(shape) if rng.random() < 0.5 else None
    filters = {"compression": "gzip"} if chunks and rng.random() < 0.5 else {}
    dtype = rng.choice([np.float32, np.int8])
    try:
        file.create_dataset(THEIRS.get(name, name), shape, dtype, chunks=chunks, **filters)
    except (ValueError, OSError):  # beyond what hdf5 itself can address
        shape = (2**33,)
        file.create_dataset(THEIRS.get(name, name), shape, dtype, chunks=(1024,))
    return str(shape)


def _add_link(file: Any, name: str, column: np.ndarray, rng: random.Random, elsewhere: str) -> str:
    import h5py

    form, theirs = rng.choice(["external", "soft", "loop", "virtual", "raw", "dangling"]), THEIRS.get(name, name)
    if form == "virtual":
        layout = h5py.VirtualLayout(column.shape, column.dtype)
        layout[...] = h5py.VirtualSource(elsewhere, theirs, column.shape)
        file.create_virtual_dataset(theirs, layout)
    elif form == "raw":
        file.create_dataset(theirs, column.shape, column.dtype, external=[(elsewhere, 0, column.nbytes)])
    elif form == "external":
        file[theirs] = h5py.ExternalLink(elsewhere, f"/{theirs}")
    else:
        file["group/inner"] = column
        file[theirs] = h5py.SoftLink({"soft": "/group/inner", "loop": f"/{theirs}"}.get(form, "/nowhere"))
    return form


def _add_type(file: Any, name: str, column: np.ndarray, rng: random.Random, elsewhere: str) -> str:
    import h5py

    rows, theirs = len(column), THEIRS.get(name, name)
    values: dict[str, Callable[[], Any]] = {
        "text": lambda: ["x"] * rows,
        "compound": lambda: np.zeros(rows, [("a", np.float32), ("b", np.int64)]),
        "complex": lambda: np.zeros(rows, np.complex64),
        "reference": lambda: np.array([file.ref] * 3, h5py.ref_dtype),
        "opaque": lambda: np.zeros(rows, "V8"),
        "scalar": lambda: 1.0,
        "empty": lambda: h5py.Empty("f"),
    }
    form = rng.choice(["vlen", *values])
    if form == "vlen":
        file.create_dataset(theirs, (rows,), h5py.vlen_dtype(np.float32))
    else:
        file[theirs] = values[form]()
    return form


def _add_group(file: Any, name: str, column: np.ndarray, rng: random.Random, elsewhere: str) -> str:
    file.create_group(THEIRS.get(name, name))["inner"] = np.zeros(3)
    return "is a group"


class _Harmless:
    """An object, to be pickled."""


def _header(array: np.ndarray, rng: random.Random) -> tuple[bytes, str]:
    """The header of an npy member that claims something else than its data are."""
    shape = rng.choice(
        [(2**40,), (2**62, 2**62), (-1,), (10**30,), (0, 2**60), (10**6, 10**6), "x", (1.5,), (True, 3), ()]
    )
    descr: Any = rng.choice(
        ["<f4", "<f4", "|O", "<U99999999", "|V1000000000", [("a", "<f4")], "x", 7, "<c16", "<M8[s]"]
    )
    if rng.random() < 0.5:
        shape = array.shape
    text = repr({"descr": descr, "fortran_order": rng.choice([False, False, True, "no"]), "shape": shape})
    if rng.random() < 0.1:
        text = rng.choice(["(" * 500, "{}", "[1]", "'" * 20, "{'descr': __import__('os'), }", text + " " * 70_000])
    body = text.encode() + b"\n"
    if len(body) < 2**16 and rng.random() < 0.9:
        return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body, text[:80]
    version = rng.choice([b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    return b"\x93NUMPY" + version + len(body).to_bytes(4, "little") + body, text[:80]


def _members(rng: random.Random, good: bytes) -> tuple[str, bytes]:
    """Archives that are not the members of a dataset."""
    memory = io.BytesIO()
    kind = rng.choice(["empty", "text", "twice", "many", "pickle", "paths", "npy"])
    if kind == "npy":
        np.save(memory, np.zeros(3))
        return kind, memory.getvalue()
    with zipfile.ZipFile(memory, "w") as archive:
        if kind == "text":
            archive.writestr("obs.npy", "hello")
        elif kind == "twice":
            with zipfile.ZipFile(io.BytesIO(good)) as source:
                for name in source.namelist():
                    archive.writestr(zipfile.ZipInfo(name), source.read(name))
                    archive.writestr(zipfile.ZipInfo(name + " "), source.read(name))
        elif kind == "many":
            for i in range(2000):
                archive.writestr(zipfile.ZipInfo(f"column{i}.npy"), b"")
        elif kind == "pickle":
            archive.writestr("obs.npy", pickle.dumps([1, 2]))
        elif kind == "paths":
            archive.writestr("../../obs.npy", b"x")
    return kind, memory.getvalue()


MAKERS: dict[str, Callable[[np.ndarray], Any]] = {
    "gone": lambda array: None,
    "shorter": lambda array: array[:-1],
    "empty": lambda array: array[:0],
    "scalar": lambda array: np.float32(1),
    "flat": lambda array: array.reshape(-1),
    "deeper": lambda array: array[..., None],
    "nan": lambda array: np.full(array.shape, np.nan, np.float32),
    "infinite": lambda array: np.full(array.shape, np.inf, np.float64),
    "halves": lambda array: array.astype(np.float16),
    "huge": lambda array: np.full(array.shape, 1e300),
    "unsigned": lambda array: array.astype(np.int64).astype(np.uint64),
    "complex": lambda array: array.astype(np.complex128),
    "text": lambda array: array.astype("S4"),
    "dates": lambda array: np.zeros(array.shape, "i8").astype("M8[s]"),
    "wide": lambda array: np.zeros((len(array), 5000), np.float32),
    "no columns": lambda array: np.zeros((len(array), 0), np.float32),
}


def _column(columns: Columns, name: str, rng: random.Random, kinds: list[str] | None = None) -> str:
    """Change one column into something that is not part of a dataset; says what it did."""
    kind = rng.choice(sorted(MAKERS if kinds is None else kinds))
    new = MAKERS[kind](columns[name])
    if new is None:
        del columns[name]
    else:
        columns[name] = np.asarray(new)
    return f"{name} {kind}"
