"""Shapes, kinds and bounds of observations and actions, and the maps between the agent's units and the
environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation

from rl_training.base.parts import WIDEST_ROW, Part, Parts, drawn_allowed
from rl_training.base.saved import LARGEST, Saved, StateError, within
from rl_training.envs.actions import ActionForm

__all__ = ["CHANNELS", "MASK", "SHORTEST", "WIDEST", "MaskedSpace", "RowSpace", "Spaces", "channels_last", "is_image"]

CHANNELS = 16  # an image whose last axis is at most this long has its channels last, if it can be read both ways
SHORTEST = 5  # pixels of an image's side, in the reading of its axes
KINDS = {  # of actions, and what they are called
    "discrete": "Discrete",
    "box": "Box",
    "multi_discrete": "MultiDiscrete",
    "multi_binary": "MultiBinary",
    "joint": "joint (Tuple or Dict)",
}
FLOATS = ("float16", "float32", "float64")  # types of boxes of actions in an environment
LONGEST_AXIS = 2**24  # that the observations of a file may have
MASK = "action_mask"  # what masks are called: in an info, in a Dict, and as a part of a row
WIDEST = 1e5  # half the width of a box of actions beyond which its bounds are no scale: it counts as unbounded


class RowSpace(gym.spaces.Box):
    """Rows of an observation's parts, as ``envs.parts`` packs them; a plain image where there is nothing else."""

    def __init__(self, parts: Parts, low: np.ndarray, high: np.ndarray) -> None:
        self.parts = parts
        [*others, last] = parts.all
        plain = not others and last.kind == "image" and last.dtype == "uint8" and last.divisor == 255
        shape = last.shape if plain else (parts.width,)
        super().__init__(low.reshape(shape), high.reshape(shape), dtype=low.dtype.type)


class MaskedSpace(RowSpace):
    """Rows of observations with masks of actions, and the ``spaces`` that agents see."""

    def __init__(self, inner: gym.spaces.Box, spaces: Spaces) -> None:
        parts = spaces.parts
        assert parts is not None
        low, high = np.zeros(parts.width, parts.dtype), np.full(parts.width, 255, parts.dtype)
        if parts.dtype != np.uint8:
            bounds, masks = (inner.low.reshape(1, -1), inner.high.reshape(1, -1)), (np.zeros, np.ones)
            low, high = (parts.masked(bound, one((1, sum(spaces.choices))))[0] for bound, one in zip(bounds, masks))
        super().__init__(parts, low, high)
        self.spaces = spaces


@dataclass(frozen=True)
class Spaces:
    """Observations as networks see them (float32 vectors, channel-first uint8 images, or rows of several parts),
    actions as agents give them (indices, or floats in [-1, 1]), and the bounds to translate between these and the
    environment."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    action_kind: str  # discrete, box, multi_discrete, multi_binary, joint (choices and numbers of a box)
    action_shape: tuple[int, ...]
    choices: tuple[int, ...] = ()  # discrete: (n,); multi_discrete: nvec; multi_binary: (n,); joint: 0 for a number
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
    form: ActionForm | None = None  # how the environment has these actions, if it is in other ones
    bare: Spaces | None = None  # the same without masks of actions, where rows end with them
    agents: tuple[str, ...] = ()  # of a parallel environment, all of which have these spaces; a row for each

    @classmethod
    def of(cls, env: gym.Env) -> Spaces:
        """The spaces of a wrapped environment."""
        obs, act = env.observation_space, env.action_space
        if isinstance(obs, MaskedSpace):
            return obs.spaces
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
            "form": _form(env),
            "agents": getattr(getattr(env, "unwrapped", None), "agent_names", ()),
        }
        if common["form"] is not None and common["form"].kind == "joint":
            return cls(**common, **_joint(common["form"]))
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
            f"actions must be Discrete, MultiDiscrete, MultiBinary, a Box of numbers, or a Tuple or Dict of these, "
            f"got {act}"
        )

    def masked(self) -> Spaces:
        """The spaces with a mask of the actions in each row: a truth value for each choice."""
        if self.parts is not None:
            seen = self.parts.all
        elif self.image:
            how: dict[str, Any] = {"channels_last": self.channels_last, "divisor": 255.0}
            seen = (Part("obs", (), "image", self.obs_shape, dtype="uint8", given=self.given_shape, **how),)
        else:
            seen = (Part("obs", (), "vector", self.obs_shape, given=self.obs_shape),)
        size = (sum(self.choices),)
        parts = Parts([*seen, Part(MASK, (MASK,), "mask", size, given=size)])
        rows: dict[str, Any] = {"obs_shape": (parts.width,), "obs_dtype": parts.dtype, "channels_last": False}
        return replace(self, **rows, frames=1, raw=None, parts=parts, bare=self)

    def facts(self) -> dict[str, Any]:
        """The spaces as plain values, for a file; without the space that observations had before they were flat."""
        if self.bare is not None:
            return {**self.bare.facts(), "masked": True}
        arrays = {"start": np.asarray(self.start).tolist()}
        if self.action_kind == "box":  # a joint one is its form
            arrays |= {"low": self.low.tolist(), "high": self.high.tolist(), "env_dtype": np.dtype(self.env_dtype).name}
        if self.parts is not None:
            arrays["parts"] = self.parts.facts()
        if self.form is not None:
            arrays["form"] = self.form.facts()
        if self.choices:
            arrays["masked"] = False
        return {
            "obs_shape": list(self.obs_shape), "channels_last": self.channels_last, "frames": self.frames,
            "action_kind": self.action_kind, "choices": list(self.choices), "env_shape": list(self.env_shape), **arrays,
        }  # fmt: skip

    def recorded(self) -> dict[str, Any]:
        """What a dataset's metadata say of observations that are rows of parts; nothing of others."""
        seen = self.bare or self  # masks are not recorded
        return {"parts": seen.parts.facts()} if seen.in_rows and seen.parts is not None else {}

    def unmasked(self, rows: np.ndarray) -> np.ndarray:
        """Observations (N, ...) without masks of actions."""
        if self.bare is None or self.parts is None:
            return rows
        return self.parts.unmasked(rows, math.prod(self.bare.obs_shape)).reshape(len(rows), *self.bare.obs_shape)

    @classmethod
    def of_facts(cls, facts: Any) -> Spaces:
        """The spaces that ``facts`` came from; whatever else a file holds is refused (StateError)."""
        if isinstance(facts, dict) and facts.get("masked") is True:
            bare = cls.of_facts({name: fact for name, fact in facts.items() if name != "masked"})
            if bare.action_kind not in ("discrete", "multi_discrete"):
                raise StateError("has masks of actions that are no choices", "masked")
            if sum(bare.choices) > WIDEST_ROW:
                raise StateError("has more choices than a mask may have", "choices")
            return bare.masked()
        names = ("obs_shape", "channels_last", "frames", "action_kind", "choices", "env_shape", "start")
        saved = Saved(facts, names, ("low", "high", "env_dtype", "parts", "masked", "form"))
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
            "form": _saved_form(saved, kind, choices),
        }
        if kind == "joint":
            return cls(**common, **_joint(common["form"]))
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
    def in_rows(self) -> bool:
        """Whether networks take rows of parts, of which they encode some: a mix, or observations with masks."""
        return self.mixed or self.bare is not None

    @property
    def obs_dim(self) -> int:
        return self.obs_shape[0]

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.action_kind in ("box", "joint") else np.int64)

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
        names = [name for name in type(self).__dataclass_fields__ if name not in ("raw", "parts", "bare", "agents")]
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return same and (not (self.in_rows or other.in_rows) or self.parts == other.parts)

    def describe(self) -> str:
        actions = {
            "discrete": f"Discrete({self.choices[0] if self.choices else 0})",
            "box": f"Box{self.action_shape}",
            "multi_discrete": f"MultiDiscrete{list(self.choices)}",
            "multi_binary": f"MultiBinary({self.choices[0] if self.choices else 0})",
            "joint": "joint",
        }[self.action_kind] + (f" actions {self.form.describe()}" if self.form is not None else "")
        seen = f"({self.parts.describe()})" if self.in_rows and self.parts is not None else self.obs_shape
        return f"{self.obs_kind} {seen} and {actions}"

    def require(
        self,
        who: str,
        env_id: str,
        *,
        obs: tuple[str, ...],
        actions: tuple[str, ...],
        masks: bool = False,
        shared: bool = False,
    ) -> None:
        """Fail early, with one message shape for every algorithm; ``shared``: agents may share its policy."""
        if not shared:
            self.require_one_agent(who, env_id)
        if self.bare is not None and not masks:
            advice = "env_kwargs.action_masks: false leaves them out"
            raise ValueError(f"{who} takes no masks of actions, and {env_id} gives some: {advice}")
        if self.obs_kind in obs and self.action_kind in actions:
            return
        needs = f"{' or '.join(obs)} observations and {' or '.join(KINDS[a] for a in actions)} actions"
        advice = (
            "; env_kwargs.wrappers.parts can drop or flatten parts" if self.mixed and self.obs_kind not in obs else ""
        )
        if self.action_kind not in actions:
            advice += self._other_actions(actions)
        raise ValueError(f"{who} needs {needs}; {env_id} has {self.describe()}{advice}")

    def require_one_agent(self, who: str, env_id: str) -> None:
        """Refuse a parallel environment."""
        if self.agents:
            several = f"{who} takes environments with one agent, and {env_id} has {len(self.agents)}"
            raise ValueError(f"{several}; ppo, dqn, qr_dqn, iqn and fqf train them with one shared policy")

    def _other_actions(self, actions: tuple[str, ...]) -> str:
        """Why these actions are not taken, and what can be done about it; nothing where it is plain."""
        parts = () if self.form is None else self.form.parts
        if "box" in actions and parts and all(part.integers or not part.chosen for part in parts):
            return "; env_kwargs.integer_actions: rounded makes numbers of them"
        if self.action_kind in ("multi_discrete", "multi_binary") and "discrete" in actions:
            number = math.prod(self.choices) if self.action_kind == "multi_discrete" else 2 ** self.choices[0]
            which = (
                "docs/actions.md has a wrapper that makes one choice of them" if number <= 1_000 else "ppo takes them"
            )
            return f"; there, each of {number:,} combinations would need a value of its own: {which}"
        return "; ppo and ppg take them" if self.action_kind == "joint" else ""

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
        if self.action_kind not in ("box", "joint"):
            return actions + self.start
        rows = np.clip(self.center + self.scale * actions, self.low, self.high).astype(self.env_dtype, copy=False)
        return (rows if self.form is None else self.form.rounded(rows)).reshape(len(actions), *self.env_shape)

    def as_given(self, actions: Any) -> list[Any]:
        """Actions that ``to_env`` has made, as the environment itself has them, which may be a Dict or Tuple."""
        return list(actions) if self.form is None else [self.form.restored(action) for action in actions]

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse: environment units to agent units."""
        if self.action_kind not in ("box", "joint"):
            indices: np.ndarray = np.asarray(actions, np.int64) - self.start
            return indices
        rows: np.ndarray = np.asarray(actions, np.float32).reshape(-1, *self.action_shape) - self.center
        rows = rows / np.where(self.scale > 0, self.scale, np.float32(1))  # a constant is 0
        return rows

    def random_actions(self, rng: np.random.Generator, n: int, obs: np.ndarray | None = None) -> np.ndarray:
        """Uniform agent actions (N, ...), of those that the masks of ``obs`` (N, ...) allow, if it has masks."""
        if self.bare is not None and obs is not None and self.parts is not None:
            return drawn_allowed(self.parts.allowed(obs), self.choices, rng).reshape(n, *self.action_shape)
        if self.action_kind == "box":
            return rng.uniform(-1, 1, size=(n, *self.action_shape)).astype(np.float32)
        if self.action_kind == "joint":
            columns = np.array(self.choices)
            drawn = rng.random((n, *self.action_shape))
            return np.where(columns > 0, np.floor(columns * drawn), 2 * drawn - 1).astype(np.float32)
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


def _joint(form: ActionForm) -> dict[str, Any]:
    """What actions of choices and numbers are made of: choices have the environment's numbers as units."""
    fields, chosen = _box(form.low, form.high, form.low.shape, np.dtype(np.float64)), np.array(form.columns) > 0
    center, scale = np.where(chosen, form.low, fields["center"]), np.where(chosen, 1, fields["scale"])
    units = {"center": center.astype(np.float32), "scale": scale.astype(np.float32)}
    return {**fields, **units, "action_kind": "joint", "choices": form.columns}


def _saved_form(saved: Saved, kind: str, choices: tuple[int, ...]) -> ActionForm | None:
    """The form of actions in a file, if it is that of these actions."""
    if "form" not in saved:
        if kind == "joint":
            raise StateError("are not said", "form")
        return None
    with within("form"):
        form = ActionForm.of_facts(saved["form"])
    if form.kind != kind or (kind != "box" and form.columns != choices):
        raise StateError("does not belong to its actions", "form")
    return form


def _form(env: gym.Env) -> ActionForm | None:
    """How the outermost wrapper that flattens actions does it; None without such a wrapper."""
    while isinstance(env, gym.Wrapper):
        form = getattr(env, "form", None)
        if isinstance(form, ActionForm):
            return form
        env = env.env
    return None


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
