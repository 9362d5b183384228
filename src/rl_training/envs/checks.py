"""Checks of what an environment returns from ``reset`` and ``step``; a mistake is an error of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.base.errors import raised
from rl_training.envs.spaces import Spaces

__all__ = [
    "BOOLEANS",
    "LARGEST",
    "Checks",
    "EnvironmentFailure",
    "attempt",
    "described",
    "failure",
    "first_observation",
]

BOOLEANS = frozenset((bool, np.bool_))
LARGEST = float(np.finfo(np.float32).max)  # of rewards, which are learned from in 32 bits
RESET = "(observation, info)"
STEP = "(observation, reward, terminated, truncated, info)"


class EnvironmentFailure(RuntimeError):
    """An environment raised, or returned something that cannot be learned from."""

    incident: dict[str, Any] | None = None  # what led to it, where that is known
    index: int | None = None  # which environment it was, where the one that was called is not it


def attempt(who: str, when: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call into an environment; any exception becomes an EnvironmentFailure with its name and the time."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise failure(who, error, when) from error


def failure(who: str, error: Exception, when: str) -> EnvironmentFailure:
    """The EnvironmentFailure for an exception, or for a wrong result, with the environment's name and the time."""
    if isinstance(error, EnvironmentFailure):
        return EnvironmentFailure(f"{who}: {error} {when}")
    return EnvironmentFailure(f"{who} raised {raised(error)} {when}{_advice(error)}")


def _advice(error: Exception) -> str:
    text = str(error)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text and "'seed'" in text:
        return "; Gymnasium's reset is reset(self, *, seed=None, options=None)"
    if isinstance(error, ValueError) and "values to unpack" in text:
        return f"; Gymnasium's reset returns {RESET}, and step {STEP}"
    return ""


def first_observation(result: Any) -> Any:
    """The observation in what ``reset`` returned."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvironmentFailure(f"reset returned {described(result)}, not {RESET}")
    if not isinstance(result[1], dict):
        raise EnvironmentFailure(f"reset returned info as {described(result[1])}, not a dict")
    return result[0]


class Checks:
    """Compares what an environment returns with its spaces. Lists for arrays and numbers for booleans are accepted."""

    def __init__(self, spaces: Spaces) -> None:
        self._shape, self._dtype = spaces.given_shape, spaces.obs_dtype

    def reset(self, result: Any) -> np.ndarray:
        return self.observation(first_observation(result))

    def observation(self, obs: Any) -> np.ndarray:
        try:
            array = np.asarray(obs)
        except ValueError:  # lists of several lengths
            raise EnvironmentFailure(f"the observation is {described(obs)}, its space says {self._shape}") from None
        if array.shape != self._shape:
            raise EnvironmentFailure(
                f"the environment gave an observation of shape {array.shape}, its space says {self._shape}"
            )
        if array.dtype.kind not in "fiub" or (self._dtype == np.uint8 and array.dtype != np.uint8):
            expected = "uint8" if self._dtype == np.uint8 else "numbers"
            raise EnvironmentFailure(
                f"the environment gave an observation of type {_type(array)}, its space says {expected}"
            )
        finite = np.isfinite(array)
        if not finite.all():
            wrong = array[~finite]
            raise EnvironmentFailure(
                f"the observation is not finite ({len(wrong)} of {array.size} entries, such as {wrong[0]})"
            )
        return array

    def step(self, result: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, terminated and truncated."""
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvironmentFailure(f"step returned {described(result)}, not {STEP}")
        obs, reward, terminated, truncated, _ = result
        flags = _flag("terminated", terminated), _flag("truncated", truncated)
        return self.observation(obs), _number(reward), *flags


def _type(array: np.ndarray) -> str:
    return array.dtype.str if array.dtype.kind in "US" else str(array.dtype)


def _number(reward: Any) -> float:
    try:
        return float(np.asarray(reward).item())
    except (TypeError, ValueError, OverflowError):
        raise EnvironmentFailure(f"step returned the reward {described(reward)}, not a number") from None


def _flag(name: str, value: Any) -> bool:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise EnvironmentFailure(f"step returned {name} as {described(value)}, not a bool")
    return bool(array.item())


def described(value: Any) -> str:
    """A value as it can stand in a sentence."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape") and value.shape:
        return f"an array of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__
