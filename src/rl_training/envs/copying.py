"""Copies of environments that were given as objects, with everything that was changed on them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from rl_training.base.errors import reason

__all__ = ["copy_env"]

Memo = dict[int, Any]  # copies by the id of their originals, as copy.deepcopy keeps them


def copy_env(env: gym.Env, *, render: bool = False) -> gym.Env:
    """An independent copy that leaves the original as it is; with ``render``, one that renders rgb arrays.

    What holds something that cannot be copied, such as a simulator or a window, is made again from its arguments, with
    the plain attributes of the original. If that is not possible either, a ValueError asks for a function.
    """
    memo: Memo = {}
    for part in _parts(env, set()):
        memo = _with_copy(part, memo)
    made = copy.deepcopy(env, memo)
    base = made.unwrapped
    if render and env.spec is not None and "rgb_array" in base.metadata.get("render_modes", ()):
        base.render_mode = "rgb_array"
    return made


def _parts(env: gym.Env, seen: set[int]) -> Iterator[gym.Env]:
    """The environments within an environment, whether it wraps or holds them, from the inside out; then itself."""
    seen.add(id(env))
    for value in vars(env).values():
        if isinstance(value, gym.Env) and id(value) not in seen:
            yield from _parts(value, seen)
    yield env


def _with_copy(env: gym.Env, memo: Memo) -> Memo:
    """The copies so far, and a copy of ``env``."""
    trial = dict(memo)  # a copy that fails leaves useless entries behind
    try:
        _exact(env, trial)
        return trial
    except Exception as error:  # whatever may be in it, and whatever that may raise
        why, name = reason(error), type(env).__name__
    try:
        twin = _made_again(env, memo)
    except Exception:  # its constructor may raise anything
        twin = None
    if twin is None:
        raise ValueError(f"{name} cannot be copied ({why}); pass a function that makes it instead") from None
    for attribute, value in vars(env).items():
        if _is_plain(value) and _is_plain(vars(twin).get(attribute)):
            setattr(twin, attribute, copy.deepcopy(value))
    twin.spec = copy.deepcopy(env.spec) if not isinstance(env, gym.Wrapper) else twin.spec
    warnings.warn(
        f"{name} holds something that cannot be copied ({why}): it was made again from its arguments, with its plain "
        "attributes, and other changes are lost; to be sure, pass a function that makes it",
        stacklevel=2,
    )
    memo[id(env)] = twin
    return memo


def _exact(env: gym.Env, memo: Memo) -> None:
    kind = type(env)
    if getattr(kind, "__getstate__", None) is EzPickle.__getstate__ and not hasattr(kind, "__deepcopy__"):
        memo[id(env)] = twin = kind.__new__(kind)  # EzPickle's own way would make it again from its arguments
        vars(twin).update(copy.deepcopy(vars(env), memo))
    else:
        copy.deepcopy(env, memo)


def _made_again(env: gym.Env, memo: Memo) -> gym.Env | None:
    kind = type(env)
    if hasattr(kind, "__deepcopy__"):
        return None
    if issubclass(kind, EzPickle):
        return copy.deepcopy(env, dict(memo))
    if issubclass(kind, gym.Wrapper) or env.spec is None:
        return None
    made = gym.make(env.spec, disable_env_checker=True).unwrapped
    return made if type(made) is kind else None


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, text, an array, a space, or a collection of those."""
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind != "O")
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | gym.Space)
