"""Making environments from a config: gym.make arguments, time limits, wrappers, separate training and evaluation settings."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
from gymnasium.wrappers import FlattenObservation
from pydantic import Field, Strict

from rl_training.base.errors import reason
from rl_training.base.options import ConfigError, Options, opt
from rl_training.envs.copying import copy_env
from rl_training.envs.spaces import CHANNELS, Spaces, is_image
from rl_training.envs.wrappers import AtariPreprocessing, FrameStack, PartialObservation, PixelObservation, layers

EnvSource = str | gym.Env | Callable[[], gym.Env]
Pair = Annotated[tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]], Strict(False)]

PICTURE = 24  # two-dimensional observations with both sides at least this long look like pictures
FRAMESKIP = "must be 1 or left out, as wrappers.atari repeats actions itself: set wrappers.atari.frame_skip"
_given: weakref.WeakValueDictionary[int, gym.Env] = weakref.WeakValueDictionary()  # what functions have made, by id

Indices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)]


class PixelOptions(Options):
    """Learn from the rendered picture instead of the observation."""

    TITLE = "wrappers.pixels"
    resize_shape: Pair | None = opt((84, 84), "height and width; null keeps the rendered size")
    frame_stack: int = opt(1, "pictures side by side in one observation", ge=1)
    grayscale: bool = opt(True, "one channel instead of three")
    channel_first: bool = opt(True, "(C, H, W) instead of (H, W, C)")


class RewardOptions(Options):
    """Changes the rewards learned from; returns are always reported as the environment gave them."""

    TITLE = "wrappers.reward"
    scale: float = opt(1.0, "rewards are multiplied by this")
    clip: float | None = opt(None, "then clipped to [-clip, clip]", gt=0)

    def apply(self, rewards: Any) -> Any:
        """Arrays or tensors of rewards, as learned from."""
        if self.scale != 1.0:
            rewards = rewards * self.scale
        return rewards if self.clip is None else rewards.clip(-self.clip, self.clip)


class AtariOptions(Options):
    """The usual Atari protocol."""

    TITLE = "wrappers.atari"
    frame_skip: int = opt(4, "emulator frames per action", ge=1)
    frame_stack: int = opt(4, "observations side by side", ge=1)
    noop_max: int = opt(30, "at most this many no-ops start an episode", ge=0)
    screen_size: int = opt(84, "side of the square", ge=36)
    grayscale: bool = opt(True, "one channel instead of three")
    terminal_on_life_loss: bool = opt(False, "a lost life ends an episode (training only, by env_kwargs.training)")


class WrapperOptions(Options):
    TITLE = "wrappers"
    pixels: PixelOptions | None = opt(None, "learn from rendered pictures")
    atari: AtariOptions | None = opt(None, "the usual Atari protocol")
    reward: RewardOptions = opt(RewardOptions(), "scale and clip the rewards learned from")
    frame_stack: int = opt(1, "observations side by side", ge=1)
    keep: Indices | None = opt(None, "only these entries of vector observations, such as [0, 2]; the rest is hidden")


class EnvOptions(Options):
    """The parts of ``env_kwargs`` that are ours; everything else goes to gym.make."""

    TITLE = "env_kwargs"
    max_episode_steps: int | None = opt(None, "time limit in steps; null keeps the environment's own", ge=1)
    wrappers: WrapperOptions = opt(WrapperOptions(), "pixels, atari, reward, frame_stack")
    training: dict[str, Any] = opt({}, "env_kwargs that hold for training only")
    evaluation: dict[str, Any] = opt({}, "env_kwargs that hold for evaluation only")


def parse_env_kwargs(env_kwargs: dict[str, Any], *, training: bool) -> tuple[EnvOptions, dict[str, Any]]:
    """Our options and the arguments of gym.make, with the overrides for training or evaluation applied."""
    try:
        options, _ = _split(env_kwargs)
        override = options.training if training else options.evaluation
        merged = _merge({k: v for k, v in env_kwargs.items() if k not in ("training", "evaluation")}, override)
        options, kwargs = _split(merged)
        if options.wrappers.atari is not None and kwargs.get("frameskip", 1) != 1:
            raise ConfigError([(("frameskip",), FRAMESKIP)])
        return options, kwargs
    except ConfigError as error:
        raise error.under("env_kwargs") from None


def _split(env_kwargs: dict[str, Any]) -> tuple[EnvOptions, dict[str, Any]]:
    ours = {name: value for name, value in env_kwargs.items() if name in EnvOptions.model_fields}
    return EnvOptions(**ours), {name: value for name, value in env_kwargs.items() if name not in ours}


def _merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in override.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merge(merged[name], value) if both else value
    return merged


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of one run; ``source`` is an id, a function, or an environment to make copies of."""

    source: EnvSource
    env_kwargs: dict[str, Any]
    render: bool = False  # pictures can be had of the environments

    def reward_options(self, *, training: bool = True) -> RewardOptions:
        return parse_env_kwargs(self.env_kwargs, training=training)[0].wrappers.reward

    @property
    def name(self) -> str:
        return self.source if isinstance(self.source, str) else env_name(self.source)

    def time_limit(self) -> int | None:
        """After how many steps training episodes are cut; None where that is not known."""
        env = self.make(training=True)
        try:
            return time_limit_of(env)
        finally:
            env.close()

    def spaces(self) -> Spaces:
        env = self.make(training=False)
        try:
            return Spaces.of(env)
        finally:
            env.close()

    def make(self, *, training: bool) -> gym.Env:
        options, kwargs = parse_env_kwargs(self.env_kwargs, training=training)
        env = _base_env(self.source, options, kwargs, self.render)
        wrappers = options.wrappers
        if wrappers.atari is not None:
            env = AtariPreprocessing(env, **wrappers.atari.model_dump(exclude={"frame_stack"}))
            if options.max_episode_steps is not None:  # in steps of the agent, not frames of the emulator
                env = gym.wrappers.TimeLimit(env, options.max_episode_steps)
            env = FrameStack(env, wrappers.atari.frame_stack)
        if wrappers.pixels is not None:
            env = PixelObservation(env, **wrappers.pixels.model_dump(exclude={"frame_stack"}))
            if wrappers.pixels.frame_stack > 1:
                env = FrameStack(env, wrappers.pixels.frame_stack)
            if not wrappers.pixels.channel_first and env.observation_space.shape[-1] > CHANNELS:  # type: ignore[index]
                raise ValueError(f"more than {CHANNELS} channels need wrappers.pixels.channel_first: true")
        env = _flat_observations(env, self.name)
        if wrappers.keep is not None:
            env = PartialObservation(env, wrappers.keep)
        return FrameStack(env, wrappers.frame_stack) if wrappers.frame_stack > 1 else env


def env_name(env: Any) -> str:
    """What to call an environment that was given as an object or a function."""
    spec = getattr(env, "spec", None)
    if spec is not None:
        return spec.id
    inner = env if isinstance(env, type) else getattr(env, "unwrapped", env)
    return getattr(inner, "__name__", type(inner).__name__).replace("<lambda>", "custom")


def time_limit_of(env: gym.Env) -> int | None:
    """The steps after which a wrapper cuts an episode; None without such a wrapper, whatever the environment's spec says."""
    limit: int | None = None
    for layer in reversed([*layers(env)]):
        if isinstance(layer, AtariPreprocessing) and limit is not None:
            limit = -(-limit // layer.frame_skip)
        if isinstance(layer, gym.wrappers.TimeLimit):
            own = layer._max_episode_steps
            limit = own if limit is None else min(own, limit)
    return limit


def has_time_limit(env: gym.Env) -> bool:
    """Whether episodes are known to be cut some time; ALE counts frames itself."""
    return time_limit_of(env) is not None or hasattr(env.unwrapped, "ale")


def _base_env(source: EnvSource, options: EnvOptions, kwargs: dict[str, Any], render: bool) -> gym.Env:
    limit = options.max_episode_steps if options.wrappers.atari is None else None
    if isinstance(source, str):
        return _registered(source, limit, _arguments(source, options, kwargs, render))
    if kwargs:
        raise ConfigError([((name,), "belongs to gym.make, but the environment was given as it is") for name in kwargs])
    env = copy_env(source, render=render) if isinstance(source, gym.Env) else _from_function(source)
    if limit is None:
        return env
    own = time_limit_of(env)
    if own is not None and own < limit:
        raise ConfigError(
            [(("env_kwargs", "max_episode_steps"), f"the environment was given with a time limit of {own} of its own")]
        )
    return gym.wrappers.TimeLimit(env, limit)


def _arguments(env_id: str, options: EnvOptions, kwargs: dict[str, Any], render: bool) -> dict[str, Any]:
    """What gym.make is told."""
    if render:
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    if options.wrappers.pixels is not None:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if options.wrappers.atari is not None:
        _register_games(env_id)
        known = gym.registry.get(env_id)
        if known is None or "frameskip" in known.kwargs:
            kwargs = {"frameskip": 1, "obs_type": "grayscale", **kwargs}
    return kwargs


def _from_function(make: Any) -> gym.Env:
    if not callable(make):
        raise ValueError(
            f"an environment is an id, a gymnasium.Env or a function that makes one, got {type(make).__name__}"
        )
    env = make()
    if not isinstance(env, gym.Env):
        raise ValueError(f"the environment factory gave {type(env).__name__}, not a gymnasium.Env")
    base = env.unwrapped
    if _given.get(id(base)) is base:
        raise ValueError(
            f"{env_name(make)} gave the same environment twice; it must make a new one each time (an object is copied, "
            "if it is passed itself)"
        )
    _given[id(base)] = base
    return env


def _registered(env_id: str, limit: int | None, kwargs: dict[str, Any]) -> gym.Env:
    if env_id.startswith("ALE/"):
        _register_games(env_id)
    try:
        env = gym.make(env_id, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    except Exception as error:  # whatever the environment's own constructor may raise
        raise ValueError(f"cannot make the environment {env_id!r}: {reason(error)}") from None
    if "mujoco" in sys.modules and hasattr(sys.modules["mujoco"], "set_mju_user_warning"):
        sys.modules["mujoco"].set_mju_user_warning(lambda message: None)  # else it writes a log file where it stands
    return env


def _register_games(env_id: str) -> None:
    try:
        import ale_py
    except ImportError:
        raise ValueError(f"{env_id} needs the atari extra: pip install 'rl_training[atari]'") from None
    gym.register_envs(ale_py)


def _flat_observations(env: gym.Env, name: str) -> gym.Env:
    """Vectors and images as they are; other small things flattened to a vector; the rest refused with a reason."""
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    obstacle = _no_vector(space)
    if is_image(space) and obstacle is None:
        return env
    if obstacle is None:
        flat = gym.spaces.utils.flatten_space(space) if space.is_np_flattenable else None
        if isinstance(flat, gym.spaces.Box):
            return FlattenObservation(env)
        raise ValueError(f"{name}: observations of {_brief(space)} cannot be flattened; wrap the environment first")
    raise ValueError(
        f"{name}: {obstacle}; wrap the environment first (in gymnasium.wrappers.FlattenObservation, if a vector will do)"
    )


def _no_vector(space: gym.Space) -> str | None:
    """Why observations of a space are neither the images that our convolutions take nor to be flattened without being asked."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        if any(is_image(part) or _no_vector(part) is not None for part in parts):
            return f"a mix of images and other observations is not supported ({_brief(space)})"
    if not isinstance(space, gym.spaces.Box):
        return None
    shape, what = space.shape, f"observations of shape {space.shape} and type {space.dtype}"
    if is_image(space):
        first, last = shape[0], shape[-1]
        unclear = last > CHANNELS and first > min(shape[1:])
        return f"{what}: it is not clear which axis holds the channels; put them first" if unclear else None
    if len(shape) == 3:
        return f"{what} have three dimensions, and images must be uint8"
    if len(shape) > 3:
        return f"{what} have {len(shape)} dimensions, and images have three: channels and two sides"
    if len(shape) == 2 and min(shape) >= PICTURE:
        return f"{what} look like a picture without an axis for channels, and images are uint8 of three dimensions"
    return None


def _brief(space: gym.Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
