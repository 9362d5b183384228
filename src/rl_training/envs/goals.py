"""Goal environments: where an observation's goals lie in its row, and the rewards of transitions under other goals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.checks import EnvironmentFailure, described, failure
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import ReplayableEnv
from rl_training.envs.spaces import Spaces

__all__ = ["GoalRewards", "Goals", "goals_in"]

GOALS = ("achieved_goal", "desired_goal")  # parts of an observation, in Gymnasium's goal environments
TRIED_STEPS = 4  # of an environment, whose goals its functions are tried with


class Goals(NamedTuple):
    """Where the goals lie in a row of observations, and the shape and type in which the environment knows them."""

    achieved: slice
    desired: slice
    shape: tuple[int, ...]
    dtype: np.dtype

    def as_given(self, rows: np.ndarray) -> np.ndarray:
        """Goals (B, G) of rows as the environment gives them: (B, *shape)."""
        return rows.astype(self.dtype).reshape(len(rows), *self.shape)


def goals_in(spaces: Spaces) -> Goals | None:
    """Where the goals lie in the rows that observations become; None where there are none, or not two of one kind."""
    parts = spaces.parts
    if parts is None or parts.dtype != np.float32:
        return None
    found = {part.name: (part, slice(*span)) for part, span in zip(parts.all, parts.spans)}
    if any(name not in found for name in GOALS):
        return None
    (achieved, reached), (desired, wanted) = (found[name] for name in GOALS)
    if achieved.source != "box" or achieved.kind != "vector" or achieved[2:] != desired[2:]:
        return None
    return Goals(reached, wanted, achieved.given, np.dtype(np.float64))


class GoalRewards:
    """The environment's own ``compute_reward``, and ``compute_terminated`` where it has one, for many goals at once.

    They are methods of an environment made for this alone, and are given an empty info. Whether they take arrays of
    goals is found out once, with the goals of a few steps; where an array's answer is not that of its rows one by one,
    they are asked row by row.
    """

    def __init__(self, factory: EnvFactory, spaces: Spaces) -> None:
        goals = goals_in(spaces)
        if goals is None:
            raise ValueError(
                f"{factory.name} is no goal environment: its observations must be a Dict with observation, "
                f"{' and '.join(GOALS)}, the goals two boxes of one shape, without images, wrappers.keep and "
                "wrappers.frame_stack"
            )
        if spaces.bare is not None:
            raise ValueError(
                f"{factory.name} gives masks of actions, and none where an episode goes on under another goal: "
                "env_kwargs.action_masks: false leaves them out"
            )
        self._env = factory.make(training=True)
        self.goals = goals = goals._replace(dtype=_dtype(self._env))
        try:
            achieved, desired, rewards = _try_out(self._env, factory.name, spaces, goals)
            cases = goals.as_given(np.tile(achieved, (3, 1)))
            others = goals.as_given(np.concatenate([desired, achieved, np.roll(achieved, 1, 0)]))
            self._reward = _ManyAtOnce(self._env, "compute_reward", factory.name, np.float32, cases, others)
            ends = _method(self._env, "compute_terminated") is not None
            self._terminated = (
                _ManyAtOnce(self._env, "compute_terminated", factory.name, np.bool_, cases, others) if ends else None
            )
        except BaseException:
            self._env.close()
            raise
        self._mention_other_pay(factory.name, rewards, self._reward(cases[: len(rewards)], others[: len(rewards)]))

    @property
    def by_row(self) -> tuple[str, ...]:
        """The functions that are asked row by row."""
        functions = [self._reward, *([] if self._terminated is None else [self._terminated])]
        return tuple(function.name for function in functions if not function.arrays)

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Rewards (B,) of transitions that reach ``achieved`` (B, G) under the goals ``desired`` (B, G), and whether
        they terminate (B,); None where the environment does not say."""
        reached, wanted = self.goals.as_given(achieved), self.goals.as_given(desired)
        rewards = self._reward(reached, wanted)
        return rewards, None if self._terminated is None else self._terminated(reached, wanted)

    def close(self) -> None:
        self._env.close()

    def _mention_other_pay(self, name: str, paid: np.ndarray, own: np.ndarray) -> None:
        """Warn if steps were paid otherwise than ``compute_reward`` pays for the goals they reached."""
        apart = np.flatnonzero(~np.isclose(own, paid, rtol=1e-4, atol=1e-5))
        if len(apart):
            warnings.warn(
                f"a step of {name} was paid {paid[apart[0]]:g}, and its compute_reward gives {own[apart[0]]:g} for the "
                "same goals: rows with other goals are paid by compute_reward alone",
                stacklevel=2,
            )


class _ManyAtOnce:
    """A method of goals, called for many at once: with arrays if that gives what its rows give, else row by row."""

    def __init__(
        self, env: gym.Env, name: str, who: str, dtype: Any, achieved: np.ndarray, desired: np.ndarray
    ) -> None:
        method = _method(env, name)
        if method is None:
            raise ValueError(f"{who} has no {name}(achieved_goal, desired_goal, info), which hindsight needs")
        self.name, self._who, self._dtype, self.arrays = name, who, dtype, False
        self._method: Callable[..., Any] = method
        singly = self(achieved, desired)
        try:
            together = np.asarray(method(achieved.copy(), desired.copy(), {}))
        except Exception:  # whatever it raises: it takes single goals only
            return
        self.arrays = together.shape == singly.shape and bool(np.allclose(together, singly, rtol=1e-5, atol=1e-6))

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        try:
            if self.arrays:
                answers = self._method(achieved, desired, {})
            else:
                answers = [self._method(*pair, {}) for pair in zip(achieved, desired)]
        except Exception as error:
            raise failure(self._who, error, f"in {self.name}, given goals and an empty info") from error
        try:
            numbers = np.asarray(answers, np.float64).reshape(len(achieved))
        except (TypeError, ValueError):
            raise EnvironmentFailure(
                f"{self._who}: {self.name} gave {described(answers)}, not a number a row"
            ) from None
        if not np.isfinite(numbers).all():
            raise EnvironmentFailure(f"{self._who}: {self.name} gave a number that is not finite")
        return numbers.astype(self._dtype)


def _dtype(env: gym.Env) -> np.dtype:
    """The type in which the environment itself knows goals."""
    space = env.unwrapped.observation_space
    dtype = space.spaces["achieved_goal"].dtype if isinstance(space, gym.spaces.Dict) else None
    return np.dtype(np.float64 if dtype is None else dtype)


def _method(env: gym.Env, name: str) -> Callable[..., Any] | None:
    """A method of an environment, or of the outermost of its wrappers that has it."""
    try:
        method: Callable[..., Any] = env.get_wrapper_attr(name)
    except AttributeError:
        return None
    return method


def _try_out(env: gym.Env, who: str, spaces: Spaces, goals: Goals) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The achieved and desired goals (T, G) and the rewards (T,) of a few random steps, the same ones each time."""
    slot, rows, rewards = ReplayableEnv(env, seed=0, index=0), [], []
    actions = spaces.to_env(spaces.random_actions(np.random.default_rng(0), TRIED_STEPS))
    try:
        slot.begin()
        for action in actions:
            obs, reward, terminated, truncated, _ = slot.step(action)
            rows.append(spaces.encode(obs))
            rewards.append(float(reward))
            if terminated or truncated:
                break
    except Exception as error:
        raise failure(who, error, "in its first steps") from error
    table = np.stack(rows)
    return table[:, goals.achieved], table[:, goals.desired], np.array(rewards)
