"""Reading a saved state: every value is checked for its type, size and range before anything is made of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from rl_training.base.errors import reason

__all__ = ["LARGEST", "Saved", "StateError", "alike", "within"]

LARGEST = 2**63 - 1  # of whole numbers: what a 64-bit integer holds

Shape = tuple[int | None, ...]  # None: any length


class StateError(ValueError):
    """Raised for a saved state that does not fit; ``place`` names the part, ``problem`` says what is wrong with it."""

    def __init__(self, problem: str, *place: str) -> None:
        self.problem, self.place = problem, place
        super().__init__(f"{'.'.join(place)}: {problem}" if place else problem)


@contextlib.contextmanager
def within(name: str) -> Iterator[None]:
    """Name the part of a state that is being loaded in whatever goes wrong with it."""
    try:
        yield
    except StateError as error:
        raise StateError(error.problem, name, *error.place) from error
    except Exception as error:  # the last resort: of a part that does not check all it takes
        raise StateError(reason(error), name) from error


class Saved:
    """A saved mapping with exactly the given names, and perhaps some of ``optional``; its methods read one value each.

    A value of another type, size or range is refused, and so are missing and unknown names.
    """

    def __init__(self, state: Any, names: Iterable[str], optional: Iterable[str] = ()) -> None:
        if not isinstance(state, dict):
            raise StateError(f"is {_kind(state)}, expected a mapping")
        expected = sorted(names)
        missing = [name for name in expected if name not in state]
        unknown = sorted(map(str, set(state) - {*expected, *optional}))
        if missing or unknown:
            lacks = f"lacks {', '.join(missing)}" if missing else ""
            has = f"has {', '.join(unknown[:5])}, which nothing reads" if unknown else ""
            raise StateError(" and ".join(filter(None, (lacks, has))))
        self._state = state

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def __getitem__(self, name: str) -> Any:
        """A value as it is, for a part that checks it itself."""
        return self._state[name]

    def count(self, name: str, *, least: int = 0, most: int = LARGEST) -> int:
        """A whole number between two bounds."""
        return _count(self._state[name], least, most, name)

    def count_or_none(self, name: str, *, least: int = 0, most: int = LARGEST) -> int | None:
        return None if self._state[name] is None else self.count(name, least=least, most=most)

    def counts(self, name: str, *, most: int = LARGEST, length: int | None = None) -> list[int]:
        """A list of whole numbers from 0 on, of a length if that is given."""
        numbers = [_count(value, 0, most, f"{name}.{i}") for i, value in enumerate(self.items(name))]
        if length is not None and len(numbers) != length:
            raise StateError(f"has {len(numbers)} environments, expected {length}", name)
        return numbers

    def number(self, name: str, *, least: float = -math.inf, finite: bool = True) -> float:
        """A number from ``least`` on; ``finite=False``: any, also none (NaN)."""
        value = self._state[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (isinstance(value, int) and abs(value) > LARGEST)
        ):
            raise StateError(f"is {_kind(value)}, expected a number", name)
        if finite and not (math.isfinite(value) and value >= least):
            raise StateError(
                f"is {value}, expected a finite number" + f" from {least:g} on" * (least > -math.inf), name
            )
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._state[name]
        if not isinstance(value, bool):
            raise StateError(f"is {_kind(value)}, expected true or false", name)
        return value

    def items(self, name: str) -> list[Any]:
        value = self._state[name]
        if not isinstance(value, list | tuple):
            raise StateError(f"is {_kind(value)}, expected a list", name)
        return list(value)

    def array(self, name: str, dtype: Any, shape: Shape, *, finite: bool = False) -> np.ndarray:
        """An array of this type and shape; None in the shape stands for any length, as a type for any type."""
        value = self._state[name]
        if not isinstance(value, torch.Tensor) or not _fits(
            value, None if dtype is None else torch_dtype(dtype), shape
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            what = "a tensor" if dtype is None else np.dtype(dtype).name
            raise StateError(f"is {_kind(value)}, expected {what} of shape ({sizes})", name)
        array: np.ndarray = value.numpy()
        if finite and not np.isfinite(array).all():
            raise StateError("holds numbers that are not finite", name)
        return array

    def indices(self, name: str, shape: Shape, below: int) -> np.ndarray:
        """Whole numbers (int64) of this shape, from 0 on and below a bound."""
        array = self.array(name, np.int64, shape)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= below):
            raise StateError(f"holds {int(array.min())} to {int(array.max())}, expected 0 to {below - 1}", name)
        return array


def alike(saved: Any, present: Any) -> Any:
    """A saved value, if it has the form of the present one: names, types, and the types and shapes of tensors.

    Whole numbers are from 0 on. Where the present value is None or a list, anything passes.
    """
    if isinstance(present, torch.Tensor):
        if not isinstance(saved, torch.Tensor) or not _fits(saved, present.dtype, tuple(present.shape)):
            raise StateError(f"is {_kind(saved)}, expected {_kind(present)}")
    elif isinstance(present, dict):
        Saved(saved, present)
        for name, value in present.items():
            with within(name):
                alike(saved[name], value)
    elif type(present) is int:
        _count(saved, 0, LARGEST)
    elif isinstance(present, bool | float | str):
        kinds = (int, float) if isinstance(present, float) else type(present)
        if not isinstance(saved, kinds) or isinstance(saved, bool) != isinstance(present, bool):
            raise StateError(f"is {_kind(saved)}, expected {_kind(present)}")
    return saved


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch type of a numpy type."""
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def _count(value: Any, least: int, most: int, *place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise StateError(f"is {_kind(value)}, expected a whole number", *place)
    if not least <= value <= most:
        shown = value if abs(value) < 10**20 else "a number of many digits"
        raise StateError(f"is {shown}, expected {least} to {most}", *place)
    return value


def _fits(tensor: torch.Tensor, dtype: torch.dtype | None, shape: Shape) -> bool:
    sizes = tuple(tensor.shape)
    same = len(sizes) == len(shape) and all(want is None or have == want for have, want in zip(sizes, shape))
    return same and dtype in (None, tensor.dtype)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    names = {
        dict: "a mapping",
        list: "a list",
        str: "text",
        type(None): "null",
        bool: "true or false",
        int: "a whole number",
    }
    return names.get(type(value), f"a {type(value).__name__}" if not isinstance(value, float) else "a number")
