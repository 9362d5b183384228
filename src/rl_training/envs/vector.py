"""Environments that come as a gymnasium.vector.VectorEnv, which steps all of them at once.

What happens when an episode ends is the question. With AutoresetMode.DISABLED we reset, each environment by its own
seed: the same episodes as those of single environments, and an exact resume. With SAME_STEP it resets them itself, and
gives the last observation in ``final_obs``; later episodes then begin with no seed, and cannot be repeated. With
NEXT_STEP an environment spends a step on its reset, which is no transition while those of the others are: refused.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rl_training.base.options import ConfigError
from rl_training.base.saved import Saved
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.incidents import History
from rl_training.envs.options import EnvOptions, WrapperOptions
from rl_training.envs.replay import episode_seed, played_actions, require_actions, saved_actions
from rl_training.envs.watchdog import Watchdog

__all__ = ["OneOfVector", "Together", "VectorEnvs", "VectorPlace", "another_one", "check_vector", "one_of"]

Single = Callable[[], gym.Env]
_singles: weakref.WeakKeyDictionary[Any, Single] = weakref.WeakKeyDictionary()  # by what makes the VectorEnv
HOW = "gym.make_vec(..., vector_kwargs={'autoreset_mode': 'Disabled'})"


class OneOfVector(gym.Wrapper[Any, Any, Any, Any]):
    """An environment as they are in a VectorEnv, alone: for evaluation, and to see its spaces."""


def one_of(vector: VectorEnv, source: Any) -> OneOfVector:
    """An environment as those of ``vector``, which ``source`` has made or is."""
    if isinstance(vector, VectorWrapper):
        raise ValueError(
            f"{type(vector).__name__} wraps a VectorEnv, and evaluation uses a single environment: wrap those, with "
            "gym.make_vec(..., wrappers=[...])"
        )
    made, spec = getattr(vector, "env_fns", None), vector.spec
    if made:
        _singles[source] = made[0]
    elif spec is not None:
        own = {"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"}
        kwargs = {name: value for name, value in spec.kwargs.items() if name not in own}
        _singles[source] = lambda: gym.make(spec.id, disable_env_checker=True, **kwargs)
    else:
        raise ValueError(
            f"{type(vector).__name__} has no spec and no env_fns, and evaluation uses a single environment, which they "
            "would make: give the environment itself, with num_envs"
        )
    return OneOfVector(_singles[source]())


def another_one(source: Any) -> OneOfVector | None:
    """Another environment of a source that was seen to make a VectorEnv; None if it was not."""
    known = _singles.get(source)
    return None if known is None else OneOfVector(known())


class Together(Protocol):
    """What steps several rows of a run at once: a VectorEnv, or a parallel environment with its agents."""

    exact: bool  # whether episodes can be repeated
    action_space: gym.Space[Any]  # of one row

    def result(self, i: int) -> Any: ...

    def first(self, i: int) -> Any: ...

    def replayed(self, i: int) -> tuple[Any, float, int]: ...

    def forget(self) -> None: ...


class VectorPlace:
    """One row of what steps several together, as a ReplayableEnv: results come from a step of all."""

    def __init__(self, envs: Together, index: int, key: tuple[int, int]) -> None:
        self._envs, self._index, self._key = envs, index, key
        self.episode = -1
        self.actions: list[Any] = []
        self.env_kwargs: dict[str, Any] = {}  # as for other environments; these cannot be changed

    def step(self, action: Any) -> Any:
        return self._envs.result(self._index)

    def begin(self) -> Any:
        obs = self._envs.first(self._index)
        self.actions = []
        return obs

    def seed(self) -> int:
        """What its episode begins with."""
        return episode_seed(*self._key, self.episode)

    def history(self) -> History:
        """What led to where the episode is: its seed, and the actions so far."""
        exact = self._envs.exact or self.episode == 0
        return {"episode": self.episode, "seed": self.seed(), "actions": list(self.actions), "exact": exact}

    def state_dict(self) -> dict[str, Any]:
        return {"episode": self.episode, "actions": saved_actions(self.actions) if self._envs.exact else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("episode", "actions"))
        episode = saved.count("episode")
        if saved["actions"] is not None:
            require_actions(saved["actions"], self._envs.action_space)
        self.episode, self.actions = episode, played_actions(saved["actions"])
        self._envs.forget()

    def replay(self, actions: Any) -> tuple[Any, float, int]:
        return self._envs.replayed(self._index)


class VectorEnvs:
    """All environments of a run, in a VectorEnv."""

    def __init__(
        self, vector: VectorEnv, num_envs: int, seed: int, watchdog: Watchdog | None = None, *, own: bool = True
    ) -> None:
        """``own``: it was made for the run, and is closed with it."""
        mode = _mode(vector)
        if vector.num_envs != num_envs:
            raise ConfigError([(("num_envs",), f"is {num_envs}, and the VectorEnv has {vector.num_envs} environments")])
        self.vector, self._watchdog, self._own = vector, watchdog, own
        self.exact = mode is AutoresetMode.DISABLED
        self.action_space = vector.single_action_space
        self.envs = [VectorPlace(self, i, (seed, i)) for i in range(num_envs)]
        self._actions: Any = None
        self._results: list[Any] = []
        self._first: dict[int, Any] = {}  # observations of episodes that have begun, and were not asked for yet
        self._replayed: list[Any] | None = None
        self._to_begin: list[int] = []
        self._reset_before = False

    def step(self, actions: Iterable[Any]) -> None:
        """The actions of the step that is taken when the first result is asked for."""
        self._actions = list(actions)

    def begin(self, which: Iterable[int]) -> None:
        """Environments whose episodes are about to begin."""
        self._to_begin = list(which)

    def send(self) -> None:
        """There is nobody to wait for."""

    def result(self, i: int) -> Any:
        """What environment ``i`` gave in the step of all."""
        if self._actions is not None:
            batch, self._actions = self._batch(self._actions), None
            self._results = self._taken(batch)
        return self._results[i]

    def first(self, i: int) -> Any:
        """The first observation of the next episode of environment ``i``."""
        if i not in self._first:
            every = range(len(self.envs))
            which = (self._to_begin if i in self._to_begin else [i]) if self.exact and self._reset_before else every
            for k in which:
                self.envs[k].episode += 1
            obs = self._reset({k: self.envs[k].seed() for k in which})
            self._first = {k: obs[k].copy() for k in which}
        return self._first.pop(i)

    def forget(self) -> None:
        """A saved state is being loaded: nothing of the episodes under way counts any more."""
        self._first, self._replayed, self._to_begin = {}, None, []

    def replayed(self, i: int) -> tuple[Any, float, int]:
        """Where the saved actions lead environment ``i``, with the rewards and steps on the way."""
        if not self.exact:
            self._reset_before = False
            raise ValueError("its VectorEnv begins episodes with no seed")
        if self._replayed is None:
            self._replayed = self._replay()
        if isinstance(self._replayed[i], Exception):
            raise self._replayed[i]
        found: tuple[Any, float, int] = self._replayed[i]
        return found

    def close(self) -> None:
        if self._own:
            self.vector.close()

    def _batch(self, actions: list[Any]) -> Any:
        return np.asarray(actions, self.vector.action_space.dtype)

    def _taken(self, batch: Any) -> list[Any]:
        """Step all environments: observation, reward, terminated, truncated and info of each. The observation is the
        true successor also where the VectorEnv has begun the next episode."""
        obs, rewards, terminated, truncated, infos = self._call("step", self.vector.step, batch)
        results = []
        for i, place in enumerate(self.envs):
            ends, info, row = bool(terminated[i] or truncated[i]), {}, obs[i]
            if ends and self.exact:
                info = _info_of(infos, i)
            elif ends:
                if "final_obs" not in infos:
                    raise EnvironmentFailure("the VectorEnv resets at the end of an episode, and gave no final_obs")
                info, row = _info_of(infos.get("final_info", {}), i), np.asarray(infos["final_obs"][i])
                self._first[i] = obs[i].copy()
                place.episode += 1
            results.append((row, rewards[i], bool(terminated[i]), bool(truncated[i]), info))
        return results

    def _reset(self, seeds: dict[int, int]) -> Any:
        """Begin the episodes of some environments, or of all."""
        n = len(self.envs)
        if len(seeds) == n:
            obs, _ = self._call("reset", self.vector.reset, seed=[seeds[i] for i in range(n)])
        else:
            mask = np.array([i in seeds for i in range(n)])
            given = [seeds.get(i) for i in range(n)]
            obs, _ = self._call("reset", self.vector.reset, seed=given, options={"reset_mask": mask})
        self._reset_before = True
        return obs

    def _replay(self) -> list[Any]:
        """Repeat the actions of all unfinished episodes, so that all end with the last step. An environment whose
        episode is shorter takes the longest one's actions until its own begins."""
        lengths = [len(place.actions) for place in self.envs]
        last, longest = max(lengths), self.envs[int(np.argmax(lengths))].actions
        seeds = {i: place.seed() for i, place in enumerate(self.envs)}
        obs, found = self._reset(seeds), [0.0] * len(self.envs)
        failed: dict[int, Exception] = {}
        for t in range(last):
            starts = [last - length for length in lengths]
            actions = [p.actions[t - s] if t >= s else longest[t] for p, s in zip(self.envs, starts)]
            obs, rewards, terminated, truncated, _ = self._call("step", self.vector.step, self._batch(actions))
            again = {}
            for i, start in enumerate(starts):
                if t >= start:
                    found[i] += float(rewards[i])
                if terminated[i] or truncated[i] or t + 1 == start:
                    again[i] = seeds[i]
                    if start <= t < last - 1:
                        failed[i] = ValueError("its episode ended sooner than it did before")
            again = {i: seed for i, seed in again.items() if t < last - 1 or not lengths[i]}
            if again:
                obs = self._reset(again)
        return [failed.get(i, (obs[i].copy(), total, lengths[i])) for i, total in enumerate(found)]

    def _call(self, doing: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._watchdog is None:
            return call(*args, **kwargs)
        return self._watchdog.call({**self.envs[0].history(), "training": True}, doing, call, *args, **kwargs)


def check_vector(vector: VectorEnv, single: gym.Env, name: str, options: EnvOptions, backend: str) -> None:
    """Refuse a VectorEnv that cannot be handled rightly; say so if a run on it cannot be resumed exactly."""
    if backend != "local":
        problem = f"{name} is a VectorEnv, which steps its environments itself: take local"
        raise ConfigError([(("execution_backend",), problem)])
    plain = options.wrappers.model_copy(update={"reward": WrapperOptions().reward})
    if plain != WrapperOptions() or options.max_episode_steps is not None or options.remake:
        problem = f"{name} is a VectorEnv: wrap its single environments, with gym.make_vec(..., wrappers=[...])"
        raise ConfigError([(("env_kwargs",), problem)])
    for own, other in (
        (single.observation_space, vector.single_observation_space),
        (single.action_space, vector.single_action_space),
    ):
        if own != other:
            raise ValueError(f"{name}: observations and actions of a VectorEnv are taken as they are, and not {other}")
    if _mode(vector) is AutoresetMode.SAME_STEP:
        warnings.warn(
            f"{name} resets its environments itself (AutoresetMode.SAME_STEP), with no seeds: a run on it that is "
            f"resumed begins new episodes, and differs from one that was not stopped; to resume exactly: {HOW}",
            stacklevel=4,
        )


def _mode(vector: VectorEnv) -> AutoresetMode:
    """When it resets; a VectorEnv that does not say so, or does it at the next step, is refused."""
    given = vector.metadata.get("autoreset_mode")
    mode = next((mode for mode in AutoresetMode if given in (mode, mode.value)), None)
    if mode in (AutoresetMode.DISABLED, AutoresetMode.SAME_STEP):
        return mode
    which = "does not say when it resets" if mode is None else "resets at the next step, which is no transition"
    raise ValueError(f"{type(vector).__name__} {which}: make it with {HOW} (or 'SameStep')")


def _info_of(infos: Any, i: int) -> dict[str, Any]:
    """The entries of a VectorEnv's infos that environment ``i`` has given; those that are mappings hold arrays too."""
    found = {}
    for name, values in infos.items() if isinstance(infos, dict) else ():
        mask = infos.get(f"_{name}")
        if mask is not None and mask[i]:
            found[name] = _info_of(values, i) if isinstance(values, dict) else values[i]
    return found
