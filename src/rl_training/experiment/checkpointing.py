"""Checkpoint files: tensors and plain data only, checked by a digest, written whole or not at all.

A checkpoint is a safetensors file. Its header carries the state tree as JSON, in which each tensor stands as a
reference, and a sha256 of everything. Reading it parses JSON and copies bytes: there is nothing in it that could run.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from rl_training.base.errors import reason
from rl_training.base.files import regular_file, write_durably
from rl_training.base.saved import Saved, StateError, within
from rl_training.experiment.migrations import FORMAT, STEPS, upgrade

__all__ = [
    "SUFFIX",
    "CheckpointError",
    "CheckpointState",
    "agent_state",
    "buffers_path",
    "checksum_of",
    "count_numbers",
    "first_nonfinite",
    "load_checkpoint",
    "raise_on_mismatch",
    "save_checkpoint",
]

SUFFIX = ".ckpt"
PARTS = ("algorithm_state", "buffer_state", "trainer_state", "config", "metadata")
SIBLING_BYTES = 1 << 20  # buffers of more bytes than this go into a sibling file, so that the agent alone stays small
DIGITS = 12  # of the checksum, in the name of a sibling file beside an earlier one
DTYPES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip


class CheckpointError(ValueError):
    """Raised for a file that is not a whole checkpoint of this package."""


@dataclass(slots=True)
class CheckpointState:
    """Everything a checkpoint holds; ``buffer_state`` is None when the agent was saved alone."""

    algorithm_state: dict[str, Any]
    buffer_state: dict[str, Any] | None
    trainer_state: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(path: str | Path, state: CheckpointState) -> Path:
    """Write a checkpoint; a crash at any moment leaves the previous file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = {
        "algorithm_state": state.algorithm_state,
        "buffer_state": state.buffer_state,
        "trainer_state": state.trainer_state,
        "config": state.config,
        "metadata": {**state.metadata, "format": FORMAT},
    }
    if _nbytes(state.buffer_state) > SIBLING_BYTES:
        tree["buffer_state"] = _store_buffers(path, state.buffer_state)
    _write(path, tree)
    stored = tree["buffer_state"] or {}
    if "$file" in stored:
        named = path.parent.glob(f"{glob.escape(path.stem)}.buffers-{'?' * DIGITS}{path.suffix}")
        for sibling in (buffers_path(path), *named):  # of an earlier save of the same step
            if sibling.name != stored["$file"]:
                sibling.unlink(missing_ok=True)
    return path


def _store_buffers(path: Path, buffers: Any) -> dict[str, str]:
    """Write large buffers into a sibling file and return the reference to it.

    A step that is saved again must not touch the file that its last checkpoint refers to: the same buffers are not
    written again, and others get another name.
    """
    packed = _packed({"buffer_state": buffers})
    sibling = buffers_path(path)
    if sibling.exists() and _stored_digest(sibling) != packed.digest:
        sibling = path.with_name(f"{path.stem}.buffers-{packed.digest[:DIGITS]}{path.suffix}")
    if not sibling.exists():
        _write_packed(sibling, packed)
    return {"$file": sibling.name, "sha256": packed.digest}


def checksum_of(path: Path) -> str:
    """The checksum that a checkpoint, which has been loaded, holds of itself."""
    return _stored_digest(path) or ""


def _stored_digest(path: Path) -> str | None:
    """The checksum that a file holds of itself, without reading the rest."""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError, ValueError):
        return None


def load_checkpoint(path: str | Path, *, buffers: bool = True) -> CheckpointState:
    """Read and verify a checkpoint of any format; ``buffers=False`` does not read a sibling file of buffers."""
    path = Path(path)
    tree, _ = _read(path)
    if not isinstance(tree, dict) or set(tree) != set(PARTS):
        raise CheckpointError(f"{path} is not a checkpoint of rl_training")
    with _named(path):
        _check_parts(tree)
    number = tree["metadata"].get("format")
    if type(number) is not int or (number != FORMAT and number not in STEPS):
        raise CheckpointError(f"{path} has format {number}; this version reads formats {min(STEPS)} to {FORMAT}")
    stored = tree["buffer_state"]
    if stored is not None and "$file" in stored:
        tree["buffer_state"] = _read_buffers(path, stored) if buffers else None
    with _named(path):
        upgrade(tree, number)
    return CheckpointState(**tree)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file whose contents are not what a checkpoint's are, whatever they are."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(f"{path} does not hold what a checkpoint holds: {reason(error)}") from error


def _check_parts(tree: dict[str, Any]) -> None:
    """Every part is a mapping; the config and the metadata are plain values."""
    for name in PARTS:
        with within(name):
            if name != "buffer_state" or tree[name] is not None:
                Saved(tree[name], (), tree[name])
            if name in ("config", "metadata") and any(True for _ in _tensors(tree[name])):
                raise StateError("holds tensors")


def agent_state(state: CheckpointState) -> dict[str, Any]:
    """The state of a checkpoint's agent, whose numbers are all finite: no other is ever saved."""
    bad = first_nonfinite(state.algorithm_state)
    if bad:
        raise StateError("is not finite", bad)
    return state.algorithm_state


def _read_buffers(path: Path, stored: dict[str, Any]) -> Any:
    """Read the sibling file in which a checkpoint's large buffers lie."""
    if set(stored) != {"$file", "sha256"} or not all(isinstance(value, str) for value in stored.values()):
        raise CheckpointError(f"{path} does not say which file holds its buffers")
    sibling = path.parent / Path(stored["$file"]).name
    if not sibling.exists():
        lost = f"{path} has lost its buffers ({sibling.name} is gone)"
        raise CheckpointError(f"{lost}: it can be evaluated, but not resumed exactly")
    tree, digest = _read(sibling)
    if digest != stored["sha256"]:
        raise CheckpointError(f"{sibling} does not belong to {path.name}: its checksum differs")
    if not isinstance(tree, dict) or not isinstance(tree.get("buffer_state"), dict):
        raise CheckpointError(f"{sibling} does not hold buffers")
    return tree["buffer_state"]


@contextlib.contextmanager
def raise_on_mismatch() -> Iterator[None]:
    """Turns the errors of loading a state into something of another shape into one that says so."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"the checkpoint does not fit (another network, algorithm or environment?): {reason(error)}"
        ) from error


def buffers_path(path: Path) -> Path:
    """The sibling file of a checkpoint that holds its large buffers."""
    return path.with_name(f"{path.stem}.buffers{path.suffix}")


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nested state."""
    if isinstance(state, torch.Tensor):
        yield state
    for part in state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ():
        yield from _tensors(part)


def count_numbers(state: Any) -> int:
    """How many numbers the tensors of a nested state have."""
    return sum(tensor.numel() for tensor in _tensors(state))


def _nbytes(state: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(state))


def _pack(state: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    """Turn a state tree into JSON values; tensors go to ``arrays`` and leave a reference."""
    if isinstance(state, torch.Tensor):
        state = state.detach().cpu().numpy()
    if isinstance(state, np.ndarray):
        arrays[path] = np.asarray(state, order="C")
        return {"$tensor": path}
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str) or (key.startswith("$") and key not in ("$file",)):
                raise TypeError(f"checkpoint state: {path or 'top'} has the key {key!r}; keys are names")
        return {key: _pack(value, arrays, f"{path}.{key}".lstrip(".")) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_pack(value, arrays, f"{path}.{i}") for i, value in enumerate(state)]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise TypeError(f"checkpoint state: {path} is a {type(state).__name__}; only tensors and plain values are saved")


def _unpack(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, dict):
        if "$tensor" in tree:
            name = tree["$tensor"]
            if not isinstance(name, str) or name not in tensors:
                raise ValueError(f"it refers to a tensor that it does not hold: {str(name)[:60]}")
            return tensors[name]
        return {k: _unpack(v, tensors) for k, v in tree.items()}
    return [_unpack(value, tensors) for value in tree] if isinstance(tree, list) else tree


def _digest(tree: str, arrays: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256(tree.encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name}|{array.dtype.name}|{array.shape}|".encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


class _Packed(NamedTuple):
    """A state as it is written: its tree as JSON, its arrays, and the checksum over both."""

    tree: str
    arrays: dict[str, np.ndarray]
    digest: str


def _packed(state: dict[str, Any]) -> _Packed:
    arrays: dict[str, np.ndarray] = {}
    tree = json.dumps(_pack(state, arrays, ""))
    return _Packed(tree, arrays, _digest(tree, arrays))


def _write(path: Path, state: dict[str, Any]) -> None:
    _write_packed(path, _packed(state))


def _write_packed(path: Path, packed: _Packed) -> None:
    tree, arrays, digest = packed
    header: dict[str, Any] = {"__metadata__": {"tree": tree, "sha256": digest}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    write_durably(
        path, [len(head).to_bytes(8, "little"), head, *(a.reshape(-1).view(np.uint8).data for a in arrays.values())]
    )


def _read(path: Path) -> tuple[Any, str]:
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory, not a checkpoint file")
    if not regular_file(path, follow=True):
        raise CheckpointError(f"no checkpoint at {path}")
    with open(path, "rb") as file:
        start = file.read(9)
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise CheckpointError(f"{path} holds pickled objects, which could run code; it was not opened")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118
                if (kind := file.get_slice(name).get_dtype()) not in DTYPES.values():
                    raise ValueError(f"a tensor of type {kind}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({reason(error)})") from None
    if "tree" not in metadata or "sha256" not in metadata:
        raise CheckpointError(f"{path} is not a checkpoint of rl_training")
    digest = _digest(metadata["tree"], {name: tensor.numpy() for name, tensor in tensors.items()})
    if digest != metadata["sha256"]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    try:
        return _unpack(json.loads(metadata["tree"]), tensors), digest
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({reason(error)})") from None


def first_nonfinite(state: Any, path: str = "") -> str | None:
    """Find the first tensor in a nested state that holds a NaN or an infinity: its name, or None."""
    if isinstance(state, torch.Tensor):
        return None if not state.is_floating_point() or bool(torch.isfinite(state).all()) else path
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return next((bad for key, part in items if (bad := first_nonfinite(part, f"{path}.{key}".lstrip(".")))), None)
