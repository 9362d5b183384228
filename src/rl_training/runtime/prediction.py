"""The action for an observation that somebody gives, with the state of agents that remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.algorithms.base import Learner
from rl_training.envs.masks import read_mask
from rl_training.envs.spaces import MASK, Spaces

__all__ = ["merged_state", "predict", "read_observations"]

NUMBERS = "biuf"  # kinds of arrays: truth values, whole numbers, floats


def predict(
    agent: Learner,
    spaces: Spaces,
    obs: Any,
    *,
    deterministic: bool = True,
    state: Any = None,
    episode_start: Any = None,
    return_state: bool = False,
    action_mask: Any = None,
) -> Any:
    """The action for one observation, or an array of actions for a batch, in the environment's own units.

    Dreamer, PETS and agents with a memory carry a state from one observation of an episode to the next:
    ``return_state`` returns it beside the action, and ``state`` gives it back, a row for each observation of a batch.
    Without one, episodes start, and so they do in the rows that ``episode_start`` marks. Other agents have no state:
    theirs is None. ``action_mask`` says which actions are allowed, a row for each observation of a batch, where the
    observations do not say it themselves.
    """
    rows, single = read_observations(spaces, obs, action_mask)
    carry = merged_state(agent, len(rows), single, state, episode_start)
    acting = agent.act(rows, carry=carry, deterministic=deterministic)
    actions = spaces.to_env(acting.actions)
    if spaces.form is None:
        chosen = actions[0] if single else np.asarray(actions)
    else:
        given, part = spaces.as_given(actions), spaces.form.parts[0]
        many = given if part.path else np.array(given, part.dtype).reshape(-1, *part.shape)
        chosen = given[0] if single else many
    if not return_state:
        return chosen
    if carry is None:
        return chosen, None
    return chosen, acting.carry[0] if single else acting.carry


def read_observations(spaces: Spaces, obs: Any, action_mask: Any = None) -> tuple[np.ndarray, bool]:
    """Observations as networks see them, (N, ...), and whether one was given by itself; refuses what is none.

    Those of several parts are given as the environment gives them: one of them, a list of them, or one whose parts are
    batches. Vectors may also come flat. Masks of actions come beside them, or as their part ``action_mask``.
    """
    if spaces.bare is not None:
        return _with_masks(spaces, spaces.bare, *_apart(obs, action_mask, spaces.bare))
    if action_mask is not None:
        raise ValueError("this agent learned without masks of actions: leave action_mask out")
    if spaces.parts is not None and not (spaces.obs_kind == "vector" and _flat(obs, spaces)):
        rows, single = spaces.parts.read(obs)
        return rows.reshape(len(rows), *spaces.obs_shape), single
    obs = spaces.flatten(obs)
    try:
        given = np.asarray(obs)
    except (TypeError, ValueError, OverflowError):  # rows of different lengths, among others
        raise _refusal(spaces, type(obs).__name__) from None
    if given.dtype.kind not in NUMBERS:
        raise _refusal(spaces, f"{type(obs).__name__} that does not hold numbers alone")
    shape = spaces.given_shape
    single = given.ndim == len(shape)
    if given.shape[-len(shape) :] != shape or given.ndim - (not single) != len(shape):
        raise _refusal(spaces, str(given.shape))
    if spaces.image and given.dtype != np.uint8 and not bool(((given >= 0) & (given <= 255)).all()):
        raise ValueError("pixels of observations are numbers from 0 to 255")
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = spaces.encode(given)
    if not spaces.image and not np.isfinite(encoded).all():
        raise ValueError("observations must be finite numbers (in 32 bits)")
    return encoded[None] if single else encoded, single


def _with_masks(spaces: Spaces, bare: Spaces, obs: Any, masks: Any) -> tuple[np.ndarray, bool]:
    """Rows (N, width) of observations without masks, and the masks."""
    if masks is None:
        raise ValueError(
            "this agent chooses among allowed actions, and it is not said which these are: give action_mask, "
            f"{sum(bare.choices)} truth values for each observation (or {{'observation': ..., '{MASK}': ...}})"
        )
    rows, single = read_observations(bare, obs)
    each = [masks] if single else list(masks)
    if len(each) != len(rows):
        raise ValueError(f"there are {len(rows)} observations and {len(each)} masks of actions")
    table = np.array([read_mask(one, bare.choices) for one in each], bool).reshape(len(rows), sum(bare.choices))
    assert spaces.parts is not None
    return spaces.parts.masked(rows.reshape(len(rows), -1), table), single


def _apart(obs: Any, masks: Any, bare: Spaces) -> tuple[Any, Any]:
    """Observations, and masks that are among their parts."""
    if masks is not None:
        return obs, masks
    if isinstance(obs, list | tuple) and obs and all(isinstance(one, Mapping) and MASK in one for one in obs):
        pairs = [_apart(one, None, bare) for one in obs]
        return [one for one, _ in pairs], [mask for _, mask in pairs]
    if not isinstance(obs, Mapping) or MASK not in obs:
        return obs, None
    rest = {name: part for name, part in obs.items() if name != MASK}
    keys = () if bare.parts is None else bare.parts.all[0].path
    own = bool(keys) and isinstance(keys[0], str)  # the environment's observations are mappings too
    return (rest if own or len(rest) != 1 else next(iter(rest.values()))), obs[MASK]


def _flat(obs: Any, spaces: Spaces) -> bool:
    """Whether observations of several vectors are given as flat ones."""
    try:
        given = np.asarray(obs)
    except (TypeError, ValueError, OverflowError):
        return False
    return given.dtype.kind in NUMBERS and given.ndim in (1, 2) and given.shape[-1:] == spaces.obs_shape


def _refusal(spaces: Spaces, got: str) -> ValueError:
    return ValueError(f"observations have shape {spaces.given_shape} (or a batch of them), got {got}")


def merged_state(agent: Learner, count: int, single: bool, state: Any, episode_start: Any) -> Any:
    """The state that ``count`` observations are met with: what is given, and fresh rows where episodes start."""
    starts = _starts(count, single, episode_start)
    fresh = agent.initial_carry(count)
    if fresh is None:
        if state is not None:
            raise ValueError(f"{type(agent).__name__} has no state from one observation to the next: leave it out")
        return None
    if state is None:
        return fresh
    shape = fresh.shape[1:] if single else fresh.shape
    try:
        given = np.asarray(state)
    except (TypeError, ValueError, OverflowError):
        given = np.empty(0, object)
    if given.dtype.kind not in NUMBERS or given.shape != shape:
        what = given.shape if given.dtype.kind in NUMBERS else type(state).__name__
        raise ValueError(f"the state has shape {shape} here, as an earlier prediction returned it; got {what}")
    with np.errstate(over="ignore"):
        rows = given.astype(fresh.dtype)[None] if single else given.astype(fresh.dtype)
    rows[starts] = fresh[starts]
    if not np.isfinite(rows).all():
        raise ValueError("the state must be finite numbers")
    return rows


def _starts(count: int, single: bool, episode_start: Any) -> np.ndarray:
    """Which rows start an episode, (N,)."""
    if episode_start is None:
        return np.zeros(count, bool)
    try:
        given = np.asarray(episode_start)
    except (TypeError, ValueError):
        given = np.empty(0, object)
    shapes = ((), (1,)) if single else ((count,),)
    if given.dtype != bool or given.shape not in shapes:
        wanted = "one truth value" if single else f"an array of {count} truth values, one for each observation"
        what = f"shape {given.shape}" if given.dtype == bool else f"{type(episode_start).__name__}"
        raise ValueError(f"episode_start is {wanted}; got {what}")
    return given.reshape(count)
