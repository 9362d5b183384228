"""Observations of several parts (a Dict or Tuple of vectors and images, or an image of floats) as one row of numbers.

A row travels like any vector: collectors, buffers, checkpoints and devices need not know of its parts. It holds the
vectors first, then images of floats, then images of bytes. Without the latter it is float32; with them it is uint8, and
each float is four of its bytes. ``Parts`` packs on the host; ``models.parts`` takes rows apart on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_training.base.saved import LARGEST, Saved, StateError, within

__all__ = ["WIDEST_ROW", "Part", "PartError", "Parts", "drawn_allowed"]

FLOAT = 4  # bytes of a number
WIDEST_ROW = 2**24  # numbers or bytes that a row may have
KINDS = ("vector", "image", "mask")  # networks encode the first two; a mask says which actions are allowed
SOURCES = ("box", "discrete", "multi_discrete")
NUMBERS = "biuf"  # kinds of arrays: truth values, whole numbers, floats


class PartError(ValueError):
    """Raised where an observation does not have the parts that its space says."""


class Part(NamedTuple):
    """One part: where it stands in the environment's observation, how it is given there, and what networks see."""

    name: str  # its keys from the outside in, joined by dots; "obs" for an observation without parts
    path: tuple[str | int, ...]  # those keys
    kind: str
    shape: tuple[int, ...]  # as networks see it: (n,) of a vector, (C, H, W) of an image
    dtype: str = "float32"  # in the row; uint8 for images of bytes or truth values
    source: str = "box"  # the environment's space; choices become one-hot
    given: tuple[int, ...] = ()  # its shape in the environment
    choices: tuple[int, ...] = ()  # of a discrete part, one number; of a multi-discrete one, one for each entry
    first: tuple[int, ...] = ()  # the environment's numbers of the first choices
    channels_last: bool = False
    boolean: bool = False  # an image of truth values, stored as 0 and 255
    divisor: float = 1.0  # networks see an image divided by this

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def described(self) -> str:
        return f"{self.name} {self.shape}"


class Parts:
    """The parts of an observation in the order in which they lie in a row, and where: ``spans``, in the row's own
    numbers."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.all = tuple(sorted(parts, key=_order))  # stable: vectors keep the order of the space
        self.dtype = np.dtype(np.uint8 if any(part.dtype == "uint8" for part in self.all) else np.float32)
        self.vector_size = sum(part.size for part in self.all if part.kind == "vector")
        self.floats = sum(part.size for part in self.all if part.dtype == "float32")
        self._each = FLOAT if self.dtype == np.uint8 else 1  # of the row's numbers for one float
        spans, start = [], 0
        for part in self.all:
            stop = start + part.size * (self._each if part.dtype == "float32" else 1)
            spans.append((start, stop))
            start = stop
        self.spans = tuple(spans)
        whole = self._each if self.floats else 1  # so that a batch of rows can be viewed as floats
        self.width = -(-start // whole) * whole
        self._writers = [_WRITERS[part.source] for part in self.all]
        plain = all(part.kind == "vector" and part.source == "box" and len(part.path) == 1 for part in self.all)
        flat = plain and all(len(part.given) == 1 for part in self.all)
        self._vectors = [(p.path[0], p.given, slice(*span)) for p, span in zip(self.all, spans)] if flat else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parts) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    @property
    def images(self) -> tuple[Part, ...]:
        return tuple(part for part in self.all if part.kind == "image")

    @property
    def mask(self) -> Part | None:
        """The mask of actions, whose numbers are the last of a row's floats."""
        return next((part for part in self.all if part.kind == "mask"), None)

    def describe(self) -> str:
        return ", ".join(part.described() for part in self.all)

    # ---- on the host

    def pack(self, obs: Any) -> np.ndarray:
        """The row (width,) of one observation as the environment gives it."""
        row = None if self._vectors is None else self._joined(self._vectors, obs)
        return self._packed([_leaf(obs, part) for part in self.all]) if row is None else row

    def _joined(self, vectors: list[tuple[Any, tuple[int, ...], slice]], obs: Any) -> np.ndarray | None:
        """The row of an observation that is nothing but arrays of floats, as most are, in a fraction of the time; None
        for any other, which ``_packed`` takes or refuses."""
        row = np.empty(self.width, np.float32)
        try:
            for key, given, where in vectors:
                leaf = obs[key]
                if leaf.__class__ is not np.ndarray or leaf.shape != given or leaf.dtype.char not in "fd":
                    return None
                row[where] = leaf
        except (KeyError, IndexError, TypeError):
            return None
        return row

    def _packed(self, leaves: Sequence[Any]) -> np.ndarray:
        row = np.zeros(self.width, self.dtype)
        floats = self.floats_of(row)
        for part, value, write, (start, stop) in zip(self.all, leaves, self._writers, self.spans):
            if part.dtype == "float32":
                write(part, floats[start // self._each : stop // self._each], value)
            else:
                write(part, row[start:stop], value)
        return row

    def floats_of(self, rows: np.ndarray) -> np.ndarray:
        """A view of the floats of rows (..., width): (..., floats)."""
        if self.dtype == np.float32:
            return rows[..., : self.floats]
        floats: np.ndarray = rows[..., : FLOAT * self.floats].view(np.float32)
        return floats

    def masked(self, rows: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Rows (N, width) of rows without their mask (N, ...), and the masks (N, A)."""
        whole, floats = np.zeros((len(rows), self.width), self.dtype), self.floats - masks.shape[1]
        start, stop = self._each * floats, self._each * self.floats
        rest = rows[:, start : start + self.width - stop]
        whole[:, :start], whole[:, stop : stop + rest.shape[1]] = rows[:, :start], rest
        self.floats_of(whole)[:, floats:] = masks
        return whole

    def unmasked(self, rows: np.ndarray, width: int) -> np.ndarray:
        """The rows (N, width) that ``masked`` was given."""
        assert self.mask is not None
        start, stop = self._each * (self.floats - self.mask.size), self._each * self.floats
        return np.concatenate([rows[:, :start], rows[:, stop : stop + width - start]], 1)

    def allowed(self, rows: np.ndarray) -> np.ndarray:
        """Which actions the masks of rows (..., width) allow, (..., A)."""
        assert self.mask is not None
        allowed: np.ndarray = self.floats_of(rows)[..., self.floats - self.mask.size :] > 0
        return allowed

    def read(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Rows (N, width) of what somebody gives: one observation, a list of them, or one whose parts are batches
        (N, ...); and whether it was a single one."""
        singles = self._listed(obs)
        if singles is not None:
            rows = [self._one(self._leaves(single)) for single in singles]
            return np.stack(rows) if rows else np.zeros((0, self.width), self.dtype), False
        leaves = self._leaves(obs)
        depths = {leaf.ndim - len(part.given) for part, leaf in zip(self.all, leaves)}
        if depths == {0}:
            return self._one(leaves)[None], True
        if depths != {1} or len({len(leaf) for leaf in leaves}) > 1:
            raise PartError(f"the parts of observations have shapes {self._shapes()}, or all of them one more axis")
        rows = [self._one([leaf[i] for leaf in leaves]) for i in range(len(leaves[0]))]
        return np.stack(rows) if rows else np.zeros((0, self.width), self.dtype), False

    def _listed(self, obs: Any) -> list[Any] | None:
        """Observations that were given as a list of them; None if they were not."""
        path = self.all[0].path
        if not path or not isinstance(obs, list | tuple):
            return None
        if isinstance(path[0], str) or not obs:
            return list(obs)
        try:  # a tuple of parts, or a list of such tuples
            fits = all(np.ndim(_leaf(obs, part)) - len(part.given) in (0, 1) for part in self.all)
        except (PartError, ValueError):
            fits = False
        return None if fits else list(obs)

    def _leaves(self, obs: Any) -> list[np.ndarray]:
        leaves = []
        for part in self.all:
            try:
                leaf = np.asarray(_leaf(obs, part))
            except (TypeError, ValueError, OverflowError) as error:  # rows of different lengths, among others
                if isinstance(error, PartError):
                    raise
                leaf = np.empty(0, object)
            if leaf.dtype.kind not in NUMBERS:
                raise PartError(f"part {part.name!r} of an observation has shape {part.given} and holds numbers alone")
            leaves.append(leaf)
        return leaves

    def _one(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """One row of numbers of any type: checked for its values, as those of a stranger."""
        typed = []
        for part, leaf in zip(self.all, leaves):
            if part.dtype == "uint8":
                top = 1 if part.boolean else 255
                if not bool(((leaf >= 0) & (leaf <= top)).all()):
                    raise PartError(f"part {part.name!r} of an observation holds numbers from 0 to {top}")
                leaf = leaf.astype(bool if part.boolean else np.uint8)
            typed.append(leaf)
        with np.errstate(over="ignore", invalid="ignore"):
            row = self._packed(typed)
        if not np.isfinite(self.floats_of(row)).all():
            raise PartError("observations must be finite numbers (in 32 bits)")
        return row

    def _shapes(self) -> str:
        return ", ".join(f"{part.name} {part.given}" for part in self.all)

    def unpack(self, rows: np.ndarray) -> list[np.ndarray]:
        """The parts of rows (N, width) as the environment gives them, (N, ...), in this order."""
        floats, columns = self.floats_of(rows), []
        for part, (start, stop) in zip(self.all, self.spans):
            own = rows if part.dtype == "uint8" else floats
            each = 1 if part.dtype == "uint8" else self._each
            columns.append(_given(part, own[:, start // each : stop // each]))
        return columns

    # ---- as plain values, for a file

    def facts(self) -> list[dict[str, Any]]:
        return [
            {name: list(value) if isinstance(value, tuple) else value for name, value in part._asdict().items()}
            for part in self.all
        ]

    @classmethod
    def of_facts(cls, facts: Any) -> Parts:
        """The parts that ``facts`` came from; whatever else a file holds is refused (StateError)."""
        if not isinstance(facts, list) or not 0 < len(facts) <= 10_000:
            raise StateError("is no list of parts")
        read = []
        for i, fact in enumerate(facts):
            with within(str(i)):
                read.append(_part(fact))
        if len({part.path for part in read}) < len(read) or sum(FLOAT * part.size for part in read) > WIDEST_ROW:
            raise StateError("its parts do not belong together")
        return cls(read)


def drawn_allowed(allowed: np.ndarray, choices: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """A uniform choice of those allowed (N, A) for each of several ``choices`` side by side: (N, number of them)."""
    chances = np.where(allowed, rng.random(allowed.shape, dtype=np.float32), -1)
    pieces = np.split(chances, np.cumsum(choices)[:-1], axis=-1)
    return np.stack([piece.argmax(-1) for piece in pieces], -1)


def _order(part: Part) -> int:
    """Vectors, images of floats, other floats, images of bytes, other bytes."""
    return 3 * (part.dtype == "uint8") + {"vector": 0, "image": 1, "mask": 2}[part.kind]


def _leaf(obs: Any, part: Part) -> Any:
    """The part of an observation."""
    try:
        for key in part.path:
            obs = obs[key]
    except (KeyError, IndexError, TypeError):
        raise PartError(f"the observation has no part {part.name!r}") from None
    return obs


def _write_box(part: Part, target: np.ndarray, value: Any) -> None:
    array = np.asarray(value)
    if array.shape != part.given:
        raise PartError(f"part {part.name!r} of the observation has shape {array.shape}, its space says {part.given}")
    kind = array.dtype.kind
    if kind not in NUMBERS or (part.dtype == "uint8" and array.dtype != np.uint8 and kind != "b"):
        said = "truth values" if part.boolean else "uint8" if part.dtype == "uint8" else "numbers"
        raise PartError(f"part {part.name!r} of the observation has type {array.dtype}, its space says {said}")
    if part.channels_last:
        array = array.transpose(2, 0, 1)
    if part.boolean:
        array = array.astype(bool) * np.uint8(255)
    target.reshape(part.shape if part.kind == "image" else part.given)[...] = (
        array if array.ndim == 3 or part.kind != "image" else array[None]
    )


def _write_choice(part: Part, target: np.ndarray, value: Any) -> None:
    try:
        index = int(value) - part.first[0]
        whole = index + part.first[0] == value and np.ndim(value) == 0
    except (TypeError, ValueError, OverflowError):
        index, whole = -1, False
    if not whole or not 0 <= index < part.choices[0]:
        raise PartError(
            f"part {part.name!r} of the observation is {str(value)[:40]}, its space says a whole number from "
            f"{part.first[0]} to {part.first[0] + part.choices[0] - 1}"
        )
    target[index] = 1


def _write_choices(part: Part, target: np.ndarray, value: Any) -> None:
    array, sizes = np.asarray(value), np.array(part.choices)
    if array.shape != part.given:
        raise PartError(f"part {part.name!r} of the observation has shape {array.shape}, its space says {part.given}")
    index = array.reshape(-1) - np.array(part.first)
    if array.dtype.kind not in NUMBERS or not ((index >= 0) & (index < sizes) & (index == np.round(index))).all():
        raise PartError(f"part {part.name!r} of the observation holds choices that its space does not have")
    target[(np.cumsum(sizes) - sizes + index).astype(np.int64)] = 1


_WRITERS: dict[str, Callable[[Part, np.ndarray, Any], None]] = {
    "box": _write_box,
    "discrete": _write_choice,
    "multi_discrete": _write_choices,
}


def _given(part: Part, column: np.ndarray) -> np.ndarray:
    """A part of rows, (N, size), as the environment gives it."""
    n = len(column)
    given: np.ndarray
    if part.source == "discrete":
        given = column.argmax(-1) + part.first[0]
        return given
    if part.source == "multi_discrete":
        pieces = np.split(column, np.cumsum(part.choices)[:-1], axis=-1)
        given = np.stack([piece.argmax(-1) for piece in pieces], -1) + np.array(part.first)
        return given.reshape(n, *part.given)
    if part.kind == "image":
        column = column.reshape(n, *part.shape)
        column = np.moveaxis(column, 1, -1) if part.channels_last else column
    column = np.ascontiguousarray(column).reshape(n, *part.given)
    return column > 0 if part.boolean else column


def _part(fact: Any) -> Part:
    """A part of somebody's file."""
    saved = Saved(fact, Part._fields)
    name, path = fact["name"], tuple(saved.items("path"))
    kind, dtype, source = fact["kind"], fact["dtype"], fact["source"]
    keys = all(type(key) is str or (type(key) is int and 0 <= key <= LARGEST) for key in path)
    known = kind in KINDS and dtype in ("float32", "uint8") and source in SOURCES
    if not isinstance(name, str) or not keys or not known:
        raise StateError("is no part of an observation")
    names = ("shape", "given", "choices")
    counts: dict[str, Any] = {field: tuple(saved.counts(field, most=WIDEST_ROW)) for field in names}
    first = tuple(saved.items("first"))
    if any(type(number) is not int or abs(number) > LARGEST // 2 for number in first):
        raise StateError("holds more than whole numbers", "first")
    flags: dict[str, Any] = {field: saved.flag(field) for field in ("channels_last", "boolean")}
    part = Part(
        name, path, kind, dtype=dtype, source=source, first=first, divisor=saved.number("divisor"), **counts, **flags
    )
    if not part.divisor > 0 or not 0 < part.size <= WIDEST_ROW or not _consistent(part):
        raise StateError("its shapes do not belong together")
    return part


def _consistent(part: Part) -> bool:
    """Whether a part's shapes, choices and type say the same."""
    number = math.prod(part.given)
    if part.source == "box":
        if part.choices or part.first or number != part.size:
            return False
        if part.kind != "image":
            return len(part.shape) == 1 and part.dtype == "float32" and not (part.channels_last or part.boolean)
        order = (*part.shape[1:], part.shape[0]) if part.channels_last else part.shape
        fits = part.given == order or (len(part.given) == 2 and part.given == part.shape[1:])
        return len(part.shape) == 3 and fits and (part.dtype == "uint8" or not part.boolean)
    plain = part.kind == "vector" and part.dtype == "float32" and not (part.channels_last or part.boolean)
    one = part.source == "multi_discrete" or (part.given == () and len(part.choices) == 1)
    counted = len(part.choices) == len(part.first) == number and min(part.choices, default=0) > 0
    return plain and one and counted and part.shape == (sum(part.choices),)
