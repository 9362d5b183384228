"""Actions that the environment takes as a Tuple, a Dict or whole numbers in a Box: agents give them as one flat array.

Where every part is a choice, that is a MultiDiscrete action; where every part is a Box, a Box; a mix of both is joint.
Each number of the array has the environment's units, and ``ActionForm.restored`` makes the environment's own action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.base.options import ConfigError
from rl_training.base.saved import LARGEST, Saved, StateError, within

__all__ = ["ActionForm", "ActionPart", "FlatActions", "Integers", "plain_action"]

Integers = Literal["auto", "choices", "rounded"]
MOST_CHOICES = 64  # of a whole number in a Box, up to which it is a choice
MOST_COLUMNS = 2**16
WIDEST_CHOICE = 2**24  # whole numbers that float32 can hold
TYPES = "biuf"  # of arrays: truth values, whole numbers, floats


class ActionPart(NamedTuple):
    """One part of an action: its keys in the environment's, its shape and type there, and the bounds of its numbers."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    chosen: bool  # whether its numbers are choices, all whole numbers from low to high
    integers: bool = False  # whether the environment has them in a Box

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path)) or "action"

    def value(self, numbers: np.ndarray) -> Any:
        """The part as the environment takes it."""
        dtype = np.dtype(self.dtype)
        whole = numbers if dtype.kind == "f" else np.rint(numbers)
        array: np.ndarray = whole.astype(dtype).reshape(self.shape)
        return array if self.shape else array[()]

    def described(self) -> str:
        if not self.chosen:
            return f"{self.name} Box{self.shape}"
        return f"{self.name} {[int(high - low) + 1 for low, high in zip(self.low, self.high)]}"


@dataclass(frozen=True)
class ActionForm:
    """The parts of an environment's actions, in the order of their numbers in the flat array."""

    parts: tuple[ActionPart, ...]

    @classmethod
    def of(cls, space: gym.Space[Any], integers: Integers = "auto") -> ActionForm | None:
        """The form of a space; None where agents take it as it is. ValueError: it has parts that none can give."""
        whole = isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.integer)
        many = isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary) and len(space.shape) != 1
        if not (whole or many or isinstance(space, gym.spaces.Tuple | gym.spaces.Dict)):
            return None
        return cls(tuple(_part(path, one, integers) for path, one in _leaves(space, ())))

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Of each number, how many choices it has; 0 for one of a Box."""
        return tuple(
            int(high - low) + 1 if part.chosen else 0 for part in self.parts for low, high in zip(part.low, part.high)
        )

    @property
    def kind(self) -> str:
        chosen = {bool(n) for n in self.columns}
        return "joint" if len(chosen) > 1 else "multi_discrete" if True in chosen else "box"

    @property
    def low(self) -> np.ndarray:
        return np.array([number for part in self.parts for number in part.low], np.float64)

    @property
    def high(self) -> np.ndarray:
        return np.array([number for part in self.parts for number in part.high], np.float64)

    @property
    def dtype(self) -> np.dtype:
        """Of boxes: that of all parts, if it is one."""
        types = {np.dtype(part.dtype) for part in self.parts}
        return types.pop() if len(types) == 1 and all(t.kind == "f" for t in types) else np.dtype(np.float64)

    @property
    def space(self) -> gym.Space[Any]:
        """What a wrapped environment takes."""
        if self.kind == "multi_discrete":
            return gym.spaces.MultiDiscrete(list(self.columns), start=self.low.astype(np.int64))
        dtype: Any = self.dtype.type
        return gym.spaces.Box(self.low.astype(dtype), self.high.astype(dtype), dtype=dtype)

    def restored(self, numbers: Any) -> Any:
        """The environment's own action from the flat one."""
        given, start, tree = np.asarray(numbers), 0, dict[Any, Any]()
        for part in self.parts:
            stop = start + len(part.low)
            value, start, place = part.value(given[start:stop]), stop, tree
            if not part.path:
                return value
            for key in part.path[:-1]:
                place = place.setdefault(key, {})
            place[part.path[-1]] = value
        return _tuples(tree)

    @cached_property
    def _rounded(self) -> np.ndarray:
        """Of each number, whether it is one of a Box that the environment takes as a whole number."""
        whole = [np.dtype(part.dtype).kind != "f" and not part.chosen for part in self.parts for _ in part.low]
        return np.array(whole, bool)

    def rounded(self, numbers: np.ndarray) -> np.ndarray:
        """Flat actions (N, A) with whole numbers where the environment takes these."""
        return np.where(self._rounded, np.rint(numbers), numbers)

    def describe(self) -> str:
        return f"({', '.join(part.described() for part in self.parts)})"

    # ---- as plain values, for a file

    def facts(self) -> list[dict[str, Any]]:
        return [
            {name: list(value) if isinstance(value, tuple) else value for name, value in part._asdict().items()}
            for part in self.parts
        ]

    @classmethod
    def of_facts(cls, facts: Any) -> ActionForm:
        """The form that ``facts`` came from; whatever else a file holds is refused (StateError)."""
        if not isinstance(facts, list) or not 0 < len(facts) <= 10_000:
            raise StateError("is no list of parts of actions")
        parts = []
        for i, fact in enumerate(facts):
            with within(str(i)):
                parts.append(_saved_part(fact))
        paths = [part.path for part in parts]
        if len(set(paths)) < len(paths) or sum(len(part.low) for part in parts) > MOST_COLUMNS:
            raise StateError("its parts do not belong together")
        return cls(tuple(parts))


class FlatActions(gym.ActionWrapper):
    """The environment with flat actions of a form."""

    def __init__(self, env: gym.Env, form: ActionForm) -> None:
        super().__init__(env)
        self.form, self.action_space = form, form.space

    def action(self, action: Any) -> Any:
        return self.form.restored(action)

    @classmethod
    def around(cls, env: gym.Env, integers: Integers, name: str) -> gym.Env:
        """The environment, in this wrapper if agents cannot give its actions as they are."""
        space = env.action_space
        try:
            form = ActionForm.of(space, integers)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if form is None and integers != "auto":
            problem = f"is for actions that are whole numbers in a Box, and those of {name} are {space}"
            raise ConfigError([(("env_kwargs", "integer_actions"), problem)])
        return env if form is None else cls(env, form)


def plain_action(action: Any) -> Any:
    """An environment's action as JSON can say it."""
    if isinstance(action, dict):
        return {name: plain_action(part) for name, part in action.items()}
    return [plain_action(part) for part in action] if isinstance(action, tuple) else np.asarray(action).tolist()


def _leaves(space: gym.Space[Any], path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        pairs: Any = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        for key, inner in pairs:
            yield from _leaves(inner, (*path, key))
    else:
        yield path, space


def _part(path: tuple[str | int, ...], space: Any, integers: Integers) -> ActionPart:
    name, shape = ".".join(map(str, path)) or "action", tuple(space.shape or ())
    low: Any
    high: Any
    if isinstance(space, gym.spaces.Discrete):
        low, high, chosen = [space.start], [space.start + space.n - 1], True
    elif isinstance(space, gym.spaces.MultiDiscrete):
        low, high, chosen = space.start, space.start + space.nvec - 1, True
    elif isinstance(space, gym.spaces.MultiBinary):
        low, high, chosen = np.zeros(shape), np.ones(shape), True
    elif isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind in TYPES:
        low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
        few = bool((high - low < MOST_CHOICES).all())
        chosen = np.dtype(space.dtype).kind != "f" and (few if integers == "auto" else integers == "choices")
        if chosen and not (high - low < WIDEST_CHOICE).all():
            raise ValueError(f"{name!r} has too many whole numbers to choose from: env_kwargs.integer_actions: rounded")
    else:
        raise ValueError(f"part {name!r} of the actions is {type(space).__name__}, which no algorithm here can give")
    least, most = (tuple(np.ravel(bound).astype(np.float64).tolist()) for bound in (low, high))
    whole = isinstance(space, gym.spaces.Box) and np.dtype(space.dtype).kind != "f"
    return ActionPart(path, shape, np.dtype(space.dtype).name, least, most, chosen, whole)


def _tuples(tree: Any) -> Any:
    """Mappings by places as the tuples that they stand for."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _tuples(part) for key, part in tree.items()}
    return tuple(inner[i] for i in range(len(inner))) if all(isinstance(key, int) for key in inner) else inner


def _saved_part(fact: Any) -> ActionPart:
    saved = Saved(fact, ActionPart._fields)
    path, shape = tuple(saved.items("path")), tuple(saved.counts("shape", most=MOST_COLUMNS))
    bounds = [saved.items(name) for name in ("low", "high")]
    keys = all(type(key) is str or (type(key) is int and 0 <= key <= LARGEST) for key in path)
    numbers = all(type(number) is float and number == number for bound in bounds for number in bound)
    dtype, chosen = fact["dtype"], saved.flag("chosen")
    try:
        known = isinstance(dtype, str) and np.dtype(dtype).kind in TYPES
    except TypeError:
        known = False
    if not (keys and numbers and known) or {len(bound) for bound in bounds} != {math.prod(shape)}:
        raise StateError("is no part of an action")
    pairs = list(zip(*bounds))
    if any(low > high for low, high in pairs):
        raise StateError("has bounds that leave nothing")
    if chosen and any(not low.is_integer() or abs(low) > LARGEST or high - low >= WIDEST_CHOICE for low, high in pairs):
        raise StateError("has choices that are no whole numbers")
    return ActionPart(path, shape, dtype, tuple(bounds[0]), tuple(bounds[1]), chosen, saved.flag("integers"))
