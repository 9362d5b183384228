"""Wrappers of one's own, named in a config: ``module:Class`` with the arguments of its constructor."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import gymnasium as gym

from rl_training.base.errors import raised
from rl_training.base.modules import MissingModule, import_named
from rl_training.base.trust import split_name
from rl_training.envs.options import CustomWrapper

__all__ = ["wrapped", "wrapper_class"]


def wrapped(env: gym.Env, wrappers: Iterable[CustomWrapper]) -> gym.Env:
    """The environment in its custom wrappers, the first one innermost."""
    for wrapper in wrappers:
        kind = wrapper_class(wrapper.name)
        try:
            env = kind(env, **copy.deepcopy(wrapper.kwargs))
            env.observation_space  # noqa: B018  (raises where the constructor of gymnasium.Wrapper was not called)
        except Exception as error:  # whatever its constructor may raise
            raise ValueError(f"wrappers.custom: {wrapper.name} cannot be made: {raised(error)}") from None
    return env


def wrapper_class(name: str) -> type[gym.Wrapper]:
    """Import the class that ``module:Class`` names; anything but a gymnasium.Wrapper is refused."""
    module, attribute = split_name(name) or (name, "")
    try:
        found = getattr(import_named(module), attribute)
    except MissingModule as error:
        raise ValueError(f"wrappers.custom: {name}: {error}") from None
    except AttributeError:
        raise ValueError(f"wrappers.custom: {name}: the module {module!r} has no {attribute!r}") from None
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        what = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        raise ValueError(f"wrappers.custom: {name} is not a gymnasium.Wrapper but {what}")
    if issubclass(found, gym.wrappers.RecordVideo):  # writes wherever its arguments say, and a checkpoint may name them
        raise ValueError(
            f"wrappers.custom: {name} writes files: episodes are filmed by record_video and rl-training video"
        )
    return found
