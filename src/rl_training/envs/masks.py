"""Masks of actions: how an environment gives them, and how they become the end of each observation's row.

An environment gives the mask of its next action by a method ``action_masks()``, as ``action_mask`` in the info of each
step, or under that key of a Dict observation. From here on it travels with the observation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.base.options import ConfigError
from rl_training.envs.actions import FlatActions
from rl_training.envs.checks import Checks, EnvironmentFailure, described
from rl_training.envs.multi_agent import MultiAgentEnv
from rl_training.envs.options import PartsOptions
from rl_training.envs.parts import is_seen
from rl_training.envs.spaces import MASK, MaskedSpace, Spaces
from rl_training.envs.vector import OneOfVector
from rl_training.envs.wrappers import layers

__all__ = ["MaskInObservation", "MaskedObservation", "lifted", "masked", "read_mask"]

METHOD = "action_masks"


class MaskInObservation(gym.Wrapper):
    """A Dict observation without its mask, which is in the info instead."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gym.spaces.Dict({key: one for key, one in space.spaces.items() if key != MASK})

    def _apart(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not isinstance(obs, dict):
            raise EnvironmentFailure(f"the observation is {described(obs)}, its space says a Dict")
        rest = {key: part for key, part in obs.items() if key != MASK}
        return rest, ({**info, MASK: obs[MASK]} if MASK in obs else info)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self._apart(*self.env.reset(**kwargs))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self._apart(obs, info)
        return obs, reward, terminated, truncated, info


class MaskedObservation(gym.Wrapper):
    """Observations as rows that end with the mask of the next action. Where an episode has terminated there is no next
    action: a mask that is missing there, or allows nothing, allows everything."""

    def __init__(self, env: gym.Env, method: Callable[[], Any] | None) -> None:
        super().__init__(env)
        self._bare = Spaces.of(env)
        spaces, inner = self._bare.masked(), env.observation_space
        assert spaces.parts is not None and isinstance(inner, gym.spaces.Box)
        self.observation_space = MaskedSpace(inner, spaces)
        self._parts, self._method, self._checks = spaces.parts, method, Checks(self._bare)

    def _row(self, obs: Any, info: Any, terminated: bool) -> np.ndarray:
        obs = self._bare.encode(self._checks.observation(obs))
        given = self._method() if self._method is not None else info.get(MASK) if isinstance(info, dict) else None
        try:
            mask = read_mask(given, self._bare.choices, over=terminated)
        except ValueError as error:
            raise EnvironmentFailure(f"{error} (env_kwargs.action_masks: false leaves masks out)") from None
        row: np.ndarray = self._parts.masked(obs.reshape(1, -1), mask[None])[0]
        return row

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._row(obs, info, False), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._row(obs, info, bool(terminated)), reward, terminated, truncated, info


def read_mask(given: Any, choices: Sequence[int], *, over: bool = False) -> np.ndarray:
    """A mask as truth values (A,), from truth values or zeros and ones: one for each choice, those of several choices
    side by side, or a tuple of an array for each. ValueError: it is none, or allows nothing. Where the episode is
    ``over``, what is missing or allows nothing allows everything, each choice for itself."""
    if given is None and over:
        return np.ones(sum(choices), bool)
    if given is None:
        raise ValueError(f"there is no mask of the actions, {MASK!r}")
    try:
        mask = np.concatenate([np.ravel(one) for one in given]) if isinstance(given, tuple) else np.asarray(given)
    except (TypeError, ValueError):
        mask = np.empty(0, object)
    if mask.dtype.kind not in "biuf" or not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"the mask of the actions is {described(given)}, expected truth values or zeros and ones")
    if over and not mask.any():
        return np.ones(sum(choices), bool)
    if mask.shape != (sum(choices),):
        raise ValueError(f"the mask of the actions has shape {mask.shape}, and there are {sum(choices)} choices")
    mask = mask.astype(bool)
    for piece in np.split(mask, np.cumsum(choices)[:-1]):
        if not piece.any() and not over:
            raise ValueError("the mask of the actions allows none")
        piece |= not piece.any()
    return mask


def lifted(env: gym.Env, option: Any, parts: PartsOptions) -> tuple[gym.Env, Any, PartsOptions]:
    """The environment with a mask that is part of a Dict observation in its info, what is left of the ``option``, and
    the ``parts`` to see of the rest; a mask that these leave out is no mask."""
    space = env.observation_space
    if option is False or not (isinstance(space, gym.spaces.Dict) and MASK in space.spaces and _can_mask(env)):
        return env, option, parts
    if not is_seen(MASK, parts):
        return env, False if option == "auto" else option, parts
    if parts.keep is not None:
        parts = parts.model_copy(update={"keep": tuple(name for name in parts.keep if name != MASK)})
    return MaskInObservation(env), option, parts


def masked(env: gym.Env, option: Any, known: dict[str, bool], name: str) -> gym.Env:
    """The environment with masks in its observations, if it gives some.

    ``known`` remembers whether infos have them, which a reset shows where nothing else does.
    """
    if option is False:
        return env
    if not _can_mask(env):
        if option is True:
            problem = (
                "masks are of Discrete or MultiDiscrete actions, of one agent, in environments that are no VectorEnv"
            )
            raise ConfigError([(("env_kwargs", METHOD), problem)])
        _mention_unused(env, known, name)
        return env
    if any(isinstance(layer, MaskInObservation) for layer in layers(env)):
        return MaskedObservation(env, None)
    if _has_method(env):
        return MaskedObservation(env, lambda: _asked(env))
    return MaskedObservation(env, None) if option != "auto" or _in_info(env, known, name) else env


def _has_method(env: gym.Env) -> bool:
    if any(hasattr(type(layer), METHOD) for layer in layers(env)):  # also a property that has no value before a reset
        return True
    try:
        env.get_wrapper_attr(METHOD)
    except AttributeError:
        return False
    return True


def _asked(env: gym.Env) -> Any:
    """The mask of an environment, which may have been made anew, by its method or property."""
    given = env.get_wrapper_attr(METHOD)
    return given() if callable(given) else given


def _mention_unused(env: gym.Env, known: dict[str, bool], name: str) -> None:
    """Warn once where an environment gives masks of actions that have none here."""
    joint = any(isinstance(layer, FlatActions) and layer.form.kind == "joint" for layer in layers(env))
    if "unused" in known or not _alone(env) or not (joint or isinstance(env.action_space, gym.spaces.MultiBinary)):
        return
    known["unused"] = True
    if _has_method(env) or _in_info(env, known, name):
        kind = "a mix of choices and numbers" if joint else "MultiBinary"
        warnings.warn(f"{name} gives masks of its actions, which are {kind}: these masks are not used", stacklevel=2)


def _alone(env: gym.Env) -> bool:
    """Whether the environment has one agent, and is stepped by itself."""
    return not (
        isinstance(env.unwrapped, MultiAgentEnv) or any(isinstance(layer, OneOfVector) for layer in layers(env))
    )


def _can_mask(env: gym.Env) -> bool:
    space = env.action_space
    several = isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1
    return _alone(env) and (several or isinstance(space, gym.spaces.Discrete))


def _in_info(env: gym.Env, known: dict[str, bool], name: str) -> bool:
    """Whether a reset's info has a mask, which is asked once. An environment that fails is left to fail when used,
    and is asked again if it does not: masks that were not seen at first are refused."""
    if hasattr(env.unwrapped, "ale"):  # whose first reset takes long, and which has none
        return False
    if "info" not in known:
        try:
            known["info"] = MASK in env.reset(seed=0)[1]
        except Exception:  # whatever a reset may raise
            known["failed"] = True
            return False
        if known["info"] and "failed" in known:
            problem = "gives masks of actions, which was not seen at first, as a reset failed"
            raise EnvironmentFailure(f"{name} {problem}: set env_kwargs.{METHOD}: true, or false to leave them out")
    return known["info"]
