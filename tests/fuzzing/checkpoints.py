"""Checkpoints whose container and checksum are right, and whose contents are not.

Written apart from the package's own writer, so that a file may also hold what the package would never write.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["Contents", "mutants"]

CODES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip
TYPES = {code: np.dtype(name) for name, code in CODES.items()}
RUBBISH: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**40, -(2**63) - 1, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), -float("inf"), "", "x", "../../etc/passwd", "\x00", "ü" * 1000, [], [[]], [None], [-1], {}, {"a": 1},
    {"": None}, {"$tensor": "nowhere"}, {"$tensor": 5}, {"$tensor": []}, {"$file": "../elsewhere.ckpt"}, {"$file": 3},
    {"$file": "", "sha256": ""}, {"bit_generator": "MT19937"}, {"bit_generator": "PCG64"},
]  # fmt: skip
Place = tuple[str | int, ...]


class Contents:
    """A checkpoint taken apart: the state tree with references to tensors, and the tensors as arrays."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        self.tree: Any = json.loads(header.pop("__metadata__")["tree"])
        body = data[8 + size :]
        self.arrays: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            flat = np.frombuffer(body[start:stop], TYPES[entry["dtype"]])
            self.arrays[name] = flat.reshape(entry["shape"]).copy()
        self.codes: dict[str, str] = {}  # tensors that claim to be of a type that numpy has not
        self.text: str | None = None  # in place of the tree's own JSON

    def places(self) -> list[Place]:
        """Every node of the tree but the top, a tensor's reference counting as one."""
        return list(_walk(self.tree, ()))

    def at(self, place: Place) -> Any:
        node = self.tree
        for key in place:
            node = node[key]
        return node

    def put(self, place: Place, value: Any) -> None:
        if place:
            self.at(place[:-1])[place[-1]] = value
        else:
            self.tree = value

    def array_at(self, place: Place) -> tuple[str, np.ndarray]:
        name = self.at(place)["$tensor"]
        return name, self.arrays[name]

    def bytes(self) -> bytes:
        """The file, with a checksum that matches."""
        text = json.dumps(self.tree) if self.text is None else self.text
        sha = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        for name, array in sorted(self.arrays.items()):
            sha.update(f"{name}|{array.dtype.name}|{array.shape}|".encode())
            sha.update(array.tobytes())
        header: dict[str, Any] = {"__metadata__": {"tree": text, "sha256": sha.hexdigest()}}
        offset = 0
        for name, array in self.arrays.items():
            code = self.codes.get(name, CODES.get(array.dtype.name, "U8"))
            offsets = [offset, offset + array.nbytes]
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
            offset += array.nbytes
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        return len(head).to_bytes(8, "little") + head + b"".join(array.tobytes() for array in self.arrays.values())


def _walk(node: Any, place: Place) -> Iterator[Place]:
    items: Any = ()
    if isinstance(node, dict) and "$tensor" not in node:
        items = node.items()
    elif isinstance(node, list):
        items = enumerate(node)
    for key, value in items:
        yield (*place, key)
        yield from _walk(value, (*place, key))


def mutants(good: bytes, seed: int, count: int | None = None, *, depth: int = 2) -> Iterator[tuple[str, bytes]]:
    """Yield files made from the checkpoint ``good``, each with one to ``depth`` things wrong and a valid checksum."""
    rng, whole = random.Random(seed), Contents(good)
    for number in itertools.count() if count is None else range(count):
        contents, words = copy.deepcopy(whole), []
        for _ in range(rng.randint(1, depth)):
            words.append(_mutate(contents, rng))
            if contents.text is not None or not isinstance(contents.tree, dict):
                break
        try:
            yield f"{number}: {'; '.join(words)}", contents.bytes()
        except (RecursionError, KeyError):  # the mutations do not go together
            yield f"{number}: untouched", good


def _mutate(contents: Contents, rng: random.Random) -> str:
    places = contents.places()
    if not places or rng.random() < 0.04:
        return _mutate_top(contents, rng)
    place = _choose(places, rng)
    node = contents.at(place)
    tensor = isinstance(node, dict) and isinstance(node.get("$tensor"), str) and node["$tensor"] in contents.arrays
    kinds = (
        TENSOR
        if tensor
        else NUMBER
        if isinstance(node, int | float)
        else NESTED
        if isinstance(node, dict | list)
        else []
    )
    kind = rng.choice([*kinds, *ANY])
    return f"{kind.__name__.strip('_')} {'.'.join(map(str, place))[:120]}: {kind(contents, place, rng)}"


def _choose(places: list[Place], rng: random.Random) -> Place:
    """A place, each part of the checkpoint and each level of it as likely as its siblings."""
    prefix: Place = ()
    while True:
        below = sorted(
            {p[: len(prefix) + 1] for p in places if p[: len(prefix)] == prefix and len(p) > len(prefix)}, key=str
        )
        if not below or (prefix and rng.random() < 0.15):
            return prefix
        prefix = rng.choice(below)


def _mutate_top(contents: Contents, rng: random.Random) -> str:
    text = json.dumps(contents.tree)
    texts = {
        "tree is not JSON": text[:-3],
        "tree is a list": "[]",
        "tree is null": "null",
        "tree is deep": "[" * 100_000 + "]" * 100_000,
        "part is deep": json.dumps({**contents.tree, "metadata": None})[:-5] + '{"a":' * 5000 + "1" + "}" * 5001,
        "a number of many digits": json.dumps({**contents.tree, "metadata": None})[:-5] + '{"format": ' + "9" * 9000 + "}}",
        "two of one key": text[:-1] + ', "config": {}}',
        "a lone surrogate": text[:-1] + ', "\\ud800": 1}',
        "metadata without a format": json.dumps({**contents.tree, "metadata": {}}),
    }  # fmt: skip
    kind = rng.choice(sorted(texts))
    contents.text = texts[kind]
    return kind


# ---- one thing wrong: each takes the contents, a place and a random stream, and says what it did


def _rubbish(contents: Contents, place: Place, rng: random.Random) -> str:
    value = copy.deepcopy(rng.choice(RUBBISH))
    contents.put(place, value)
    return repr(value)[:60]


def _drop(contents: Contents, place: Place, rng: random.Random) -> str:
    del contents.at(place[:-1])[place[-1]]
    return "gone"


def _another(contents: Contents, place: Place, rng: random.Random) -> str:
    other = rng.choice(contents.places())
    contents.put(place, copy.deepcopy(contents.at(other)))
    return f"as {'.'.join(map(str, other))[:60]}"


def _wrap(contents: Contents, place: Place, rng: random.Random) -> str:
    node = contents.at(place)
    kind = rng.choice(["list", "dict"])
    contents.put(place, [node] if kind == "list" else {"a": node})
    return f"in a {kind}"


def _add_key(contents: Contents, place: Place, rng: random.Random) -> str:
    node = contents.at(place)
    if isinstance(node, list):
        node.append(copy.deepcopy(rng.choice(node if node and rng.random() < 0.5 else RUBBISH)))
        return "one more"
    node[rng.choice(["extra", "", "__class__", "0"])] = copy.deepcopy(rng.choice(RUBBISH))
    return "an extra key"


def _rename_key(contents: Contents, place: Place, rng: random.Random) -> str:
    node = contents.at(place)
    if not node:
        return "nothing to rename"
    if isinstance(node, list):
        rng.shuffle(node)
        return "shuffled"
    key = rng.choice(sorted(node))
    node[key + "x"] = node.pop(key)
    return f"{key}x"


def _number(contents: Contents, place: Place, rng: random.Random) -> str:
    value = contents.at(place)
    new = rng.choice(
        [-value, value + 1, value * 1000, -1, 2**63, 10**30, float(value), float("nan"), float("inf"), str(value)]
    )
    contents.put(place, new)
    return repr(new)[:40]


def _dtype(contents: Contents, place: Place, rng: random.Random) -> str:
    name, array = contents.array_at(place)
    if rng.random() < 0.3 and array.dtype.itemsize in (1, 2, 8):
        code = {1: "F8_E4M3", 2: "BF16", 8: "C64"}[array.dtype.itemsize]
        contents.codes[name] = code
        return code
    dtype = np.dtype(rng.choice(sorted(CODES)))
    with np.errstate(all="ignore"):
        contents.arrays[name] = array.astype(dtype)
    return dtype.name


def _shape(contents: Contents, place: Place, rng: random.Random) -> str:
    name, array = contents.array_at(place)
    makers: list[Callable[[], np.ndarray]] = [
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: array[..., None],
        lambda: array.T,
        lambda: np.atleast_1d(array)[:-1],
        lambda: np.concatenate([np.atleast_1d(array)] * 2),
        lambda: np.zeros((), array.dtype),
        lambda: np.zeros((0, *array.shape[1:]), array.dtype),
        lambda: np.zeros((0, 2**40), array.dtype),
        lambda: np.zeros((2**40, 0), array.dtype),
        lambda: np.zeros(300_000, array.dtype),
    ]
    contents.arrays[name] = np.ascontiguousarray(rng.choice(makers)())
    return str(contents.arrays[name].shape)


def _values(contents: Contents, place: Place, rng: random.Random) -> str:
    _, array = contents.array_at(place)
    if array.dtype.kind == "f":
        value: float = rng.choice([float("nan"), float("inf"), -1.0, 1e30])
    elif array.dtype.kind in "iu":
        value = rng.choice([np.iinfo(array.dtype).max, np.iinfo(array.dtype).min, 0])
    else:
        value = 1
    if array.size and rng.random() < 0.5:
        array.reshape(-1)[rng.randrange(array.size)] = value
        return f"{value} at one place"
    array[...] = value
    return f"all {value}"


def _bytes(contents: Contents, place: Place, rng: random.Random) -> str:
    name, array = contents.array_at(place)
    data = bytearray(array.tobytes())
    for _ in range(min(len(data), rng.choice([1, 8, 64]))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    contents.arrays[name] = np.frombuffer(bytes(data), array.dtype).reshape(array.shape).copy()
    return "random bytes"


def _as_numbers(contents: Contents, place: Place, rng: random.Random) -> str:
    _, array = contents.array_at(place)
    contents.put(place, array.reshape(-1)[:50].tolist() if rng.random() < 0.5 else array.size)
    return "plain numbers"


ANY = [_rubbish, _rubbish, _drop, _another, _wrap]
NESTED = [_add_key, _rename_key]
NUMBER = [_number, _number]
TENSOR = [_dtype, _shape, _shape, _values, _bytes, _as_numbers]
