"""Which parts an observation has: Dicts, Tuples and boxes of many forms to vectors and images, packed into rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation

from rl_training.base.parts import WIDEST_ROW, Part, PartError, Parts
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.options import PartsOptions
from rl_training.envs.spaces import SHORTEST, RowSpace, channels_last, is_image

__all__ = ["ChosenObservation", "PackedObservation", "is_seen", "packed"]

IMAGE_SIDE = 24  # matrices of numbers with both sides at least this long are images, smaller ones vectors
LARGEST_RANGE = 65_535.0  # finite bounds up to this are the range of an image's numbers


class PackedObservation(gym.ObservationWrapper):
    """The environment's observation as one row, or as a plain image where it is nothing else."""

    def __init__(self, env: gym.Env, parts: Parts) -> None:
        super().__init__(env)
        self.observation_space = RowSpace(parts, *_bounds(env.observation_space, parts))
        self._parts, self._shape = parts, self.observation_space.shape
        self._check = parts.dtype == np.uint8 and parts.floats > 0  # the collector sees only bytes of these

    def observation(self, observation: Any) -> np.ndarray:
        try:
            row = self._parts.pack(observation)
        except PartError as error:
            raise EnvironmentFailure(str(error)) from None
        if self._check and not np.isfinite(floats := self._parts.floats_of(row)).all():
            raise EnvironmentFailure(f"the observation is not finite ({int((~np.isfinite(floats)).sum())} entries)")
        return row.reshape(self._shape)


class ChosenObservation(FlattenObservation):
    """One choice, or several, as Gymnasium flattens them: a one for each, among zeros. A number that is none of the
    choices, which Gymnasium takes for another one, is refused."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self._first = space.start
        self._beyond = space.start + (space.n if isinstance(space, gym.spaces.Discrete) else space.nvec)

    def observation(self, observation: Any) -> Any:
        array, space = np.asarray(observation), self.env.observation_space
        fits = array.dtype.kind in "iub" and (array.size == 1 or array.shape == space.shape)
        if not fits or not ((array >= self._first) & (array < self._beyond)).all():
            raise EnvironmentFailure(f"the observation is {str(array.tolist())[:40]}, its space says {space}")
        return super().observation(observation)


def packed(env: gym.Env, options: PartsOptions) -> gym.Env | None:
    """The environment with observations as rows of their parts; None where they are a vector or an image as they are,
    or a small space that Gymnasium flattens. What networks cannot see is refused (ValueError)."""
    space = env.observation_space
    composite = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    leaves = list(_leaves(space, ()))
    _require_known(options, [name for name, _, _ in leaves], composite)
    chosen = [leaf for leaf in leaves if is_seen(leaf[0], options)]
    if not chosen:
        raise ValueError("env_kwargs.wrappers.parts leaves nothing of the observation")
    parts = Parts(_part(name, path, one, options, composite) for name, path, one in chosen)
    if parts.width > WIDEST_ROW:
        raise ValueError(f"an observation of {parts.width:,} numbers is too large; the most is {WIDEST_ROW:,}")
    if composite:
        return PackedObservation(env, parts)
    [part] = parts.all
    as_it_is = part.kind == "vector" and not options.flatten
    if is_image(space) and part.divisor == 255:
        as_it_is = as_it_is or part.channels_last == (channels_last(space.shape or ()) is True)
    return None if as_it_is else PackedObservation(env, parts)


def _leaves(space: gym.Space[Any], path: tuple[str | int, ...]) -> Iterator[tuple[str, tuple[str | int, ...], Any]]:
    """Every space that is no Dict or Tuple: its name, its keys and itself, in the order in which Gymnasium flattens."""
    if isinstance(space, gym.spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, index))
    else:
        yield ".".join(map(str, path)) or "obs", path, space


def _within(name: str, names: tuple[str, ...]) -> bool:
    """Whether a part, or a Dict that it is in, is named."""
    return any(name == one or name.startswith(f"{one}.") for one in names)


def is_seen(name: str, options: PartsOptions) -> bool:
    """Whether ``drop`` and ``keep`` leave a part to be seen."""
    return not _within(name, options.drop) and (options.keep is None or _within(name, options.keep))


def _require_known(options: PartsOptions, names: list[str], composite: bool) -> None:
    """Refuse names of parts that the observation does not have."""
    given = {option: getattr(options, option) or () for option in ("drop", "keep", "flatten", "images")}
    for option, named in given.items():
        for one in named:
            if not any(_within(name, (one,)) for name in names):
                has = ", ".join(names) if composite else "one part, obs"
                raise ValueError(f"env_kwargs.wrappers.parts.{option} names {one!r}; the observation has {has}")


def _part(name: str, path: tuple[str | int, ...], space: Any, options: PartsOptions, composite: bool) -> Part:
    """What networks see of one space."""
    which = f"part {name!r} of the observation" if composite else "the observation"
    if isinstance(space, gym.spaces.Discrete):
        n, first = int(space.n), int(space.start)
        return Part(name, path, "vector", (n,), source="discrete", choices=(n,), first=(first,))
    if isinstance(space, gym.spaces.MultiDiscrete):
        choices, starts = (tuple(map(int, np.ravel(values))) for values in (space.nvec, space.start))
        many: dict[str, Any] = {"source": "multi_discrete", "given": tuple(space.shape), "choices": choices}
        return Part(name, path, "vector", (sum(choices),), first=starts, **many)
    if not isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary) or space.dtype is None:
        leave = f": leave it out by env_kwargs.wrappers.parts.drop: [{name}]" if composite else ""
        raise ValueError(f"{which} is {type(space).__name__}, which no network here can see{leave}")
    if isinstance(space, gym.spaces.Box) and not _within(name, options.flatten) and _looks_like_image(space, options):
        return _image(name, path, space, options, which)
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 2 and _within(name, options.images):
        return _image(name, path, space, options, which)
    given = tuple(space.shape)
    if len(given) > 2 and isinstance(space, gym.spaces.Box) and not _within(name, options.flatten):
        raise ValueError(
            f"{which} has {len(given)} dimensions {given}, and images have at most three: channels and two sides; "
            f"env_kwargs.wrappers.parts.flatten: [{name}] makes a vector of it"
        )
    return Part(name, path, "vector", (int(np.prod(given)),), given=given)


def _looks_like_image(space: gym.spaces.Box, options: PartsOptions) -> bool:
    """Three dimensions; or two, of bytes from 0 to 255, or with both sides long."""
    if len(space.shape) != 2:
        return len(space.shape) == 3
    pixels = space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())
    return min(space.shape) >= (SHORTEST if pixels else IMAGE_SIDE)


def _image(name: str, path: tuple[str | int, ...], space: Any, options: PartsOptions, which: str) -> Part:
    given = tuple(space.shape)
    last = len(given) == 3 and _last(given, options, which, name)
    shape = (1, *given) if len(given) == 2 else (given[2], *given[:2]) if last else given
    if min(shape[1:]) < SHORTEST:
        raise ValueError(
            f"{which} has shape {given}, and images have at least {SHORTEST} x {SHORTEST} pixels; "
            f"env_kwargs.wrappers.parts.flatten: [{name}] makes a vector of it"
        )
    boolean = space.dtype == np.bool_
    dtype = "uint8" if boolean or space.dtype == np.uint8 else "float32"
    divisor = _divisor(space, options, boolean)
    return Part(
        name, path, "image", shape, dtype=dtype, given=given, channels_last=last, boolean=boolean, divisor=divisor
    )


def _last(shape: tuple[int, ...], options: PartsOptions, which: str, name: str) -> bool:
    """Whether an image has its channels last: by its shape, or by the option where both are possible."""
    possible = min(shape[:2]) >= SHORTEST, min(shape[1:]) >= SHORTEST
    if options.channels is not None and all(possible):
        return options.channels == "last"
    last = channels_last(shape)
    if last is None:
        raise ValueError(
            f"{which} has shape {shape}: it is not clear which axis holds the channels; say so by "
            f"env_kwargs.wrappers.parts.channels: first or last (or flatten: [{name}])"
        )
    return last


def _divisor(space: gym.spaces.Box, options: PartsOptions, boolean: bool) -> float:
    """What brings an image's numbers to at most one in size, by its bounds where they say so."""
    if boolean:
        return 255.0
    if options.image_range is not None:
        return options.image_range
    if space.dtype == np.uint8:
        return 255.0
    largest = float(max(np.abs(space.low).max(), np.abs(space.high).max()))
    return largest if 1 < largest <= LARGEST_RANGE else 1.0


def _bounds(space: gym.Space[Any], parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a row: those of its floats where they are numbers of the environment, all bytes otherwise."""
    if parts.dtype == np.uint8:
        return np.zeros(parts.width, np.uint8), np.full(parts.width, 255, np.uint8)
    low, high = np.zeros(parts.width, np.float32), np.ones(parts.width, np.float32)
    for part, (start, stop) in zip(parts.all, parts.spans):
        inner: Any = space
        for key in part.path:
            inner = inner.spaces[key]
        if isinstance(inner, gym.spaces.Box):
            for row, bound in ((low, inner.low), (high, inner.high)):
                with np.errstate(over="ignore"):
                    array = np.asarray(bound, np.float32)
                row[start:stop] = (np.moveaxis(array, -1, 0) if part.channels_last else array).reshape(-1)
    return low, high
