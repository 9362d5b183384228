"""Shapes, kinds and bounds of observations and actions, and the maps between the agent's units and the
environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation

from rl_training.base.parts import Parts
from rl_training.base.saved import LARGEST, Saved, StateError, within

__all__ = ["CHANNELS", "SHORTEST", "WIDEST", "RowSpace", "Spaces", "channels_last", "is_image"]

CHANNELS = 16  # an image whose last axis is at most this long has its channels last, if it can be read both ways
SHORTEST = 5  # pixels of an image's side, in the reading of its axes
KINDS = ("discrete", "box", "multi_discrete", "multi_binary")  # of actions
FLOATS = ("float16", "float32", "float64")  # types of boxes of actions in an environment
LONGEST_AXIS = 2**24  # that the observations of a file may have
WIDEST = 1e5  # half the width of a box of actions beyond which its bounds are no scale: it counts as unbounded


class RowSpace(gym.spaces.Box):
    """Rows of an observation's parts, as ``envs.parts`` packs them; a plain image where there is nothing else."""

    def __init__(self, parts: Parts, low: np.ndarray, high: np.ndarray) -> None:
        self.parts = parts
        [*others, last] = parts.all
        plain = not others and last.kind == "image" and last.dtype == "uint8" and last.divisor == 255
        shape = last.shape if plain else (parts.width,)
        super().__init__(low.reshape(shape), high.reshape(shape), dtype=low.dtype.type)


@dataclass(frozen=True)
class Spaces:
    """Observations as networks see them (float32 vectors, channel-first uint8 images, or rows of several parts),
    actions as agents give them (indices, or floats in [-1, 1]), and the bounds to translate between these and the
    environment."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    action_kind: str  # discrete, box, multi_discrete, multi_binary
    action_shape: tuple[int, ...]
    choices: tuple[int, ...] = ()  # discrete: (n,); multi_discrete: nvec; multi_binary: (n,)
    start: Any = 0  # the environment's number of the first discrete action; of each, for multi_discrete
    center: Any = None  # boxes: environment units = center + scale * action
    scale: Any = None
    env_shape: tuple[int, ...] = ()  # the action's shape in the environment
    env_dtype: Any = None
    channels_last: bool = False
    low: Any = None  # its bounds, infinite where it has none
    high: Any = None
    frames: int = 1  # images that an image observation stacks
    raw: Any = None  # the space of observations that were flattened to vectors, as the environment gives them
    parts: Parts | None = None  # of observations that the environment gives as several parts, or in another form
    agents: tuple[str, ...] = ()  # of a parallel environment, all of which have these spaces; a row for each

    @classmethod
    def of(cls, env: gym.Env) -> Spaces:
        """The spaces of a wrapped environment."""
        obs, act = env.observation_space, env.action_space
        if not isinstance(obs, gym.spaces.Box):
            raise ValueError(f"observations must be a Box after wrapping, got {obs}")
        shape = tuple(obs.shape)
        image, parts = is_image(obs), obs.parts if isinstance(obs, RowSpace) else None
        last = image and parts is None and channels_last(shape) is True
        if last:
            shape = (shape[2], shape[0], shape[1])
        common: dict[str, Any] = {
            "obs_shape": shape,
            "obs_dtype": np.dtype(np.uint8 if image or (parts is not None and obs.dtype == np.uint8) else np.float32),
            "channels_last": last,
            "frames": _stacked(env) if image else 1,
            "raw": env.env.observation_space if isinstance(env, FlattenObservation) else None,
            "parts": parts,
            "agents": getattr(getattr(env, "unwrapped", None), "agent_names", ()),
        }
        if isinstance(act, gym.spaces.Discrete):
            return cls(**common, action_kind="discrete", action_shape=(), choices=(int(act.n),), start=int(act.start))
        if isinstance(act, gym.spaces.MultiDiscrete) and act.nvec.ndim == 1:
            nvec, start = tuple(int(n) for n in act.nvec), np.asarray(act.start, np.int64)
            return cls(**common, action_kind="multi_discrete", action_shape=(len(nvec),), choices=nvec, start=start)
        if isinstance(act, gym.spaces.MultiBinary) and len(act.shape) == 1:
            return cls(**common, action_kind="multi_binary", action_shape=act.shape, choices=act.shape)
        if isinstance(act, gym.spaces.Box) and np.issubdtype(act.dtype, np.floating):
            return cls(**common, **_box(act.low, act.high, tuple(act.shape), act.dtype))
        raise ValueError(
            f"actions must be Discrete, a Box of floats, or MultiDiscrete or MultiBinary of one dimension, got {act}"
        )

    def facts(self) -> dict[str, Any]:
        """The spaces as plain values, for a file; without the space that observations had before they were flat."""
        arrays = {"start": np.asarray(self.start).tolist()}
        if self.action_kind == "box":
            arrays |= {"low": self.low.tolist(), "high": self.high.tolist(), "env_dtype": np.dtype(self.env_dtype).name}
        if self.parts is not None:
            arrays["parts"] = self.parts.facts()
        return {
            "obs_shape": list(self.obs_shape), "channels_last": self.channels_last, "frames": self.frames,
            "action_kind": self.action_kind, "choices": list(self.choices), "env_shape": list(self.env_shape), **arrays,
        }  # fmt: skip

    def recorded(self) -> dict[str, Any]:
        """What a dataset's metadata say of observations that are rows of parts; nothing of others."""
        return {"parts": self.parts.facts()} if self.mixed and self.parts is not None else {}

    @classmethod
    def of_facts(cls, facts: Any) -> Spaces:
        """The spaces that ``facts`` came from; whatever else a file holds is refused (StateError)."""
        names = ("obs_shape", "channels_last", "frames", "action_kind", "choices", "env_shape", "start")
        saved = Saved(facts, names, ("low", "high", "env_dtype", "parts"))
        shape, choices = tuple(saved.counts("obs_shape", most=LONGEST_AXIS)), tuple(saved.counts("choices"))
        kind, image = facts["action_kind"], len(shape) == 3
        if kind not in KINDS:
            raise StateError(f"is {kind!r:.60}, expected one of {', '.join(KINDS)}", "action_kind")
        if len(shape) not in (1, 3) or (kind != "box") != bool(choices):
            raise StateError("its shapes do not belong together")
        parts = _saved_parts(saved, shape)
        bytes_ = image or (parts is not None and parts.dtype == np.uint8)
        common: dict[str, Any] = {
            "obs_shape": shape,
            "obs_dtype": np.dtype(np.uint8 if bytes_ else np.float32),
            "channels_last": image and saved.flag("channels_last"),
            "frames": saved.count("frames", least=1),
            "parts": parts,
        }
        if kind == "box":
            low, high = (np.array(_numbers(saved, name)) for name in ("low", "high"))
            env_shape = tuple(saved.counts("env_shape"))
            if low.shape != high.shape or math.prod(env_shape) != low.size or facts.get("env_dtype") not in FLOATS:
                raise StateError("its bounds do not belong together")
            return cls(**common, **_box(low, high, env_shape, np.dtype(facts["env_dtype"])))
        shapes = {"discrete": (), "multi_discrete": (len(choices),), "multi_binary": choices}
        start: Any = facts["start"]
        first = start if kind == "multi_discrete" and isinstance(start, list) else [start]
        if any(type(number) is not int or abs(number) > LARGEST for number in first):
            raise StateError("holds more than whole numbers", "start")
        if kind == "multi_discrete":
            start = np.asarray(first, np.int64)
            if len(start) != len(choices):
                raise StateError("its choices do not belong together")
        return cls(**common, action_kind=kind, action_shape=shapes[kind], choices=choices, start=start)

    @property
    def image(self) -> bool:
        return len(self.obs_shape) == 3

    @property
    def obs_kind(self) -> str:
        """What networks have to take: a vector, an image, or a mix of parts (also one image of another type)."""
        if self.image:
            return "image"
        return "mixed" if self.parts is not None and self.parts.images else "vector"

    @property
    def mixed(self) -> bool:
        return self.obs_kind == "mixed"

    @property
    def obs_dim(self) -> int:
        return self.obs_shape[0]

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.action_kind == "box" else np.int64)

    @property
    def num_actions(self) -> int:
        return self.choices[0]

    @property
    def unbounded(self) -> tuple[int, ...]:
        """Dimensions of a box of actions that are not scaled: without a bound on one side or both, or too wide."""
        return () if self.low is None else tuple(np.flatnonzero(~_bounded(self.low, self.high)).tolist())

    @property
    def given_shape(self) -> tuple[int, ...]:
        """The shape of observations as the wrapped environment gives them."""
        return (*self.obs_shape[1:], self.obs_shape[0]) if self.channels_last else self.obs_shape

    @property
    def action_dim(self) -> int:
        return self.action_shape[0]

    def matches(self, other: Spaces) -> bool:
        """Whether an agent that was made for these spaces can go on in the others, bounds of actions included."""
        names = [name for name in type(self).__dataclass_fields__ if name not in ("raw", "parts", "agents")]
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return same and (not (self.mixed or other.mixed) or self.parts == other.parts)

    def describe(self) -> str:
        actions = {
            "discrete": f"Discrete({self.choices[0] if self.choices else 0})",
            "box": f"Box{self.action_shape}",
            "multi_discrete": f"MultiDiscrete{list(self.choices)}",
            "multi_binary": f"MultiBinary({self.choices[0] if self.choices else 0})",
        }[self.action_kind]
        seen = f"({self.parts.describe()})" if self.mixed and self.parts is not None else self.obs_shape
        return f"{self.obs_kind} {seen} and {actions}"

    def require(
        self, who: str, env_id: str, *, obs: tuple[str, ...], actions: tuple[str, ...], shared: bool = False
    ) -> None:
        """Fail early, with one message shape for every algorithm; ``shared``: agents may share its policy."""
        if not shared:
            self.require_one_agent(who, env_id)
        if self.obs_kind in obs and self.action_kind in actions:
            return
        names = {"discrete": "Discrete", "box": "Box", "multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}
        needs = f"{' or '.join(obs)} observations and {' or '.join(names[a] for a in actions)} actions"
        advice = (
            "; env_kwargs.wrappers.parts can drop or flatten parts" if self.mixed and self.obs_kind not in obs else ""
        )
        raise ValueError(f"{who} needs {needs}; {env_id} has {self.describe()}{advice}")

    def require_one_agent(self, who: str, env_id: str) -> None:
        """Refuse a parallel environment."""
        if self.agents:
            several = f"{who} takes environments with one agent, and {env_id} has {len(self.agents)}"
            raise ValueError(f"{several}; ppo, dqn, qr_dqn, iqn and fqf train them with one shared policy")

    def encode(self, obs: Any) -> np.ndarray:
        """One observation of the wrapped environment, or a batch of them, in the networks' layout and type."""
        array = np.asarray(obs, self.obs_dtype)
        return np.moveaxis(array, -1, -3) if self.channels_last else array

    def flatten(self, obs: Any) -> Any:
        """An observation as the environment gives it before it is flattened to a vector; others stay as they are."""
        if self.raw is not None and self.raw.contains(obs):
            return gym.spaces.flatten(self.raw, obs)
        return obs

    def to_env(self, actions: np.ndarray) -> Any:
        """Agent actions (N, ...) in the environment's units and types, one per row; boxes are clipped."""
        if self.action_kind == "discrete":
            return (actions + self.start).tolist() if self.start else actions.tolist()
        if self.action_kind != "box":
            return actions + self.start
        mapped = np.clip(self.center + self.scale * actions, self.low, self.high)
        return mapped.astype(self.env_dtype, copy=False).reshape(len(actions), *self.env_shape)

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse: environment units to agent units."""
        if self.action_kind != "box":
            indices: np.ndarray = np.asarray(actions, np.int64) - self.start
            return indices
        rows: np.ndarray = np.asarray(actions, np.float32).reshape(-1, *self.action_shape) - self.center
        rows = rows / np.where(self.scale > 0, self.scale, np.float32(1))  # a constant is 0
        return rows

    def random_actions(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Uniform agent actions (N, ...)."""
        if self.action_kind == "box":
            return rng.uniform(-1, 1, size=(n, *self.action_shape)).astype(np.float32)
        if self.action_kind == "discrete":
            return rng.integers(self.num_actions, size=n)
        upper = self.choices if self.action_kind == "multi_discrete" else 2
        return rng.integers(upper, size=(n, *self.action_shape))


def _box(low: np.ndarray, high: np.ndarray, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """What a box of actions is made of, from its bounds, its shape and its type in the environment."""
    low, high = low.reshape(-1).astype(np.float64), high.reshape(-1).astype(np.float64)
    bottom, top = _range(low, high)
    center, scale = (top + bottom) / 2, (top - bottom) / 2
    return {
        "action_kind": "box", "action_shape": low.shape,
        "center": center.astype(np.float32), "scale": scale.astype(np.float32),
        "env_shape": shape, "env_dtype": dtype, "low": low.astype(dtype), "high": high.astype(dtype),
    }  # fmt: skip


def _numbers(saved: Saved, name: str) -> list[float]:
    """A list of numbers, also infinite ones."""
    values = saved.items(name) if name in saved else []
    if not all(type(value) in (int, float) and value == value for value in values):
        raise StateError("expected a list of numbers", name)
    return [float(value) for value in values]


def _bounded(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Dimensions whose bounds are a scale."""
    with np.errstate(over="ignore", invalid="ignore"):
        bounded: np.ndarray = np.isfinite(low) & np.isfinite(high) & (high / 2 - low / 2 <= WIDEST)
    return bounded


def _range(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values that -1 and 1 stand for in each dimension: its bounds; in unbounded dimensions -1 and 1 themselves, or
    the two units next to the only bound where they lie beyond it."""
    bounded = _bounded(low, high)
    free = np.where(low >= 1, low, np.where(high <= -1, high - 2, -1.0))
    return np.where(bounded, low, free), np.where(bounded, high, free + 2)


def is_image(space: gym.Space[Any]) -> bool:
    """Whether observations are images: uint8 boxes of three dimensions."""
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def channels_last(shape: tuple[int, ...]) -> bool | None:
    """Whether an image of three dimensions has its channels last; None where its shape does not say.

    A side has at least five pixels, which leaves one reading for most. Of two, the one of a square counts; then short
    last axes are channels, and first axes that are no longer than the sides.
    """
    first, middle, last = shape
    possible = min(first, middle) >= SHORTEST, min(middle, last) >= SHORTEST
    if possible[0] != possible[1]:
        return possible[0]
    if (first == middle) != (middle == last):
        return first == middle
    if last <= CHANNELS:
        return None if first <= CHANNELS and first != middle and all(possible) else True
    return False if first <= min(middle, last) else None


def _saved_parts(saved: Saved, shape: tuple[int, ...]) -> Parts | None:
    """The parts in a file, if they make observations of this shape."""
    if "parts" not in saved:
        return None
    with within("parts"):
        parts = Parts.of_facts(saved["parts"])
    plain = len(parts.all) == 1 and parts.all[0].shape == shape and parts.dtype == np.uint8
    if not plain and shape != (parts.width,):
        raise StateError("do not belong to its shape", "parts")
    return parts


def _stacked(env: gym.Env) -> int:
    """How many frames the outermost stacking wrapper puts side by side, ours or Gymnasium's; 1 without one."""
    while isinstance(env, gym.Wrapper):
        size = getattr(env, "stack_size", None)
        if size is not None:
            return int(size)
        env = env.env
    return 1
