"""The options in ``env_kwargs``: time limit, wrappers, and settings for training or evaluation alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, field_validator

from rl_training.base.options import ConfigError, Options, opt
from rl_training.base.trust import split_name

__all__ = [
    "AtariOptions",
    "CustomWrapper",
    "EnvOptions",
    "PartsOptions",
    "PixelOptions",
    "RewardOptions",
    "WrapperOptions",
    "parse_env_kwargs",
]

Pair = Annotated[tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]], Strict(False)]
Indices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)]
FRAMESKIP = "must be 1 or left out, as wrappers.atari repeats actions itself: set wrappers.atari.frame_skip"


class PixelOptions(Options):
    """Learn from the rendered image instead of the observation."""

    TITLE = "wrappers.pixels"
    resize_shape: Pair | None = opt((84, 84), "height and width; null keeps the rendered size")
    frame_stack: int = opt(1, "images side by side in one observation", ge=1)
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
    grayscale: bool = opt(True, "one channel instead of three")
    noop_max: int = opt(30, "at most this many no-ops start an episode", ge=0)
    screen_size: int = opt(84, "side of the square", ge=36)
    terminal_on_life_loss: bool = opt(False, "a lost life ends an episode (training only, by env_kwargs.training)")


class CustomWrapper(Options):
    """A wrapper of one's own: a subclass of gymnasium.Wrapper, by the module that it lies in."""

    TITLE = "wrappers.custom"
    name: str = Field(description="module:Class, such as my_module:MyWrapper")
    kwargs: dict[str, Any] = opt({}, "arguments of its constructor, beside the environment")

    @field_validator("name")
    @classmethod
    def _module_and_class(cls, value: str) -> str:
        parts = split_name(value)
        if parts is None or not parts[1].isidentifier():
            raise ValueError(f"must be module:Class, such as my_module:MyWrapper, got {value!r}")
        return value


Names = Annotated[tuple[str, ...], Strict(False)]


class PartsOptions(Options):
    """Which parts of an observation the agent sees, and how; parts of Dicts and Tuples are named by their keys, joined
    by dots."""

    TITLE = "wrappers.parts"
    drop: Names = opt((), "parts that are left out, such as [mission]")
    keep: Names | None = opt(None, "only these parts")
    flatten: Names = opt((), "images and stacks that become vectors (an observation without parts: [obs])")
    images: Names = opt((), "matrices of numbers that are images although they are small")
    channels: Literal["first", "last"] | None = opt(
        None, "the axis of channels, of images whose shape allows both; null: by their shape"
    )
    image_range: float | None = opt(
        None, "images are divided by this; null: bytes by 255, numbers by their largest bound", gt=0
    )


Custom = Annotated[CustomWrapper, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)]


class WrapperOptions(Options):
    """What is done to observations and rewards."""

    TITLE = "wrappers"
    pixels: PixelOptions | None = opt(None, "learn from rendered images")
    atari: AtariOptions | None = opt(None, "the usual Atari protocol")
    custom: Annotated[tuple[Custom, ...], Strict(False)] = opt(
        (), "wrappers of your own, from the inside out: module:Class, or {name: module:Class, kwargs: {...}}"
    )
    reward: RewardOptions = opt(RewardOptions(), "scale and clip the rewards learned from")
    parts: PartsOptions = opt(PartsOptions(), "which parts of an observation the agent sees, and how")
    frame_stack: int = opt(1, "observations side by side", ge=1)
    keep: Indices | None = opt(None, "only these entries of vector observations, such as [0, 2]; the rest is hidden")


class EnvOptions(Options):
    """The parts of ``env_kwargs`` that are ours; everything else goes to gym.make."""

    TITLE = "env_kwargs"
    max_episode_steps: int | None = opt(None, "time limit in steps; null keeps the environment's own", ge=1)
    remake: bool = opt(
        False, "make the environment anew for every episode: for one that keeps something from the episode before"
    )
    action_masks: bool | Literal["auto"] = opt(
        "auto", "masks of actions: auto, where the environment gives them; true: it must; false: they are left out"
    )
    integer_actions: Literal["auto", "choices", "rounded"] = opt(
        "auto",
        "whole numbers in a Box of actions: choices, or numbers that are rounded; auto: choices, of up to 64 each",
    )
    wrappers: WrapperOptions = opt(WrapperOptions(), "pixels, atari, custom, reward, parts, frame_stack, keep")
    training: dict[str, Any] = opt({}, "env_kwargs for training only")
    evaluation: dict[str, Any] = opt({}, "env_kwargs for evaluation only")

    @field_validator("training", "evaluation")
    @classmethod
    def _one_kind_of_actions(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("action_masks", "integer_actions"):
            if name in value:
                raise ValueError(f"{name} is for training and evaluation alike: set env_kwargs.{name}")
        return value


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
