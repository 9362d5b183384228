"""The collector: steps several environments, and rebuilds them exactly on resume."""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.base.errors import raised
from rl_training.base.saved import Saved, StateError, within
from rl_training.envs.checks import BOOLEANS, LARGEST, Checks, EnvironmentFailure, attempt, failure
from rl_training.envs.endings import Episode, last_numbers, mean_numbers, only
from rl_training.envs.factory import EnvFactory, has_time_limit
from rl_training.envs.incidents import incident
from rl_training.envs.options import EnvOptions
from rl_training.envs.replay import changed_arguments, replayable
from rl_training.envs.seats import Seats
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import VectorEnvs
from rl_training.envs.workers import Workers, make_workers

__all__ = ["Collector", "Step"]

VECTORS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))  # the types of most observations


class Step(NamedTuple):
    """One step of every environment. ``next_obs`` is the true successor, never a reset observation.

    The arrays are reused by the next step: copy what must last.
    """

    obs: np.ndarray
    next_obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Collector:
    """N environments stepped together, with explicit resets: ``obs`` is always the observation of the next action.

    ``backend`` says where: ``local``, in this process; in ``process``es or ``ray`` actors, of which there are
    ``workers``, all at once and with the same results. ``check_rewards=False`` lets rewards pass that are not finite,
    for loops that do not use them. ``rewards`` maps them (float32) to those learned from, by default as in
    ``env_kwargs.wrappers.reward``; returns are reported without it. ``log_info`` names the numbers of an episode's last
    info that are averaged, beside its success; ``on_episode`` is told of every episode that ends.
    """

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        seed: int,
        *,
        check_rewards: bool = True,
        rewards: Callable[[Any], Any] | None = None,
        backend: str = "local",
        workers: int | None = None,
        log_info: Sequence[str] = (),
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        self._log_info, self._on_episode = log_info, on_episode
        first = factory.make(training=True)
        self.spaces = Spaces.of(first)
        _warn_of_endless_episodes(first, factory.name)
        self._workers = _elsewhere(factory, first, num_envs, seed, backend, workers, log_info)
        self._envs: list[Any] = (
            _in_this_process(factory, first, num_envs, seed) if self._workers is None else list(self._workers.envs)
        )
        self._factory, self.env_kwargs = factory, dict[str, Any]()  # arguments changed for episodes to come
        self._name, self._checks, self._shape = factory.name, Checks(self.spaces), self.spaces.given_shape
        self._transform = rewards if rewards is not None else factory.reward_options().apply
        self._box = self.spaces.action_kind in ("box", "joint")
        self._check_rewards, self._check_obs = check_rewards, self.spaces.obs_dtype != np.uint8
        shape, dtype = (num_envs, *self.spaces.obs_shape), self.spaces.obs_dtype
        self.obs, self._previous, self._next = (np.zeros(shape, dtype) for _ in range(3))
        size = self._next[0].size if self._check_obs else 0
        self._zeros = np.zeros((num_envs, size), np.float32)  # times these, what is not finite becomes NaN
        self._rewards, self._terminated, self._truncated = (np.zeros(num_envs, np.float32) for _ in range(3))
        self._encode = self.spaces.encode if self.spaces.channels_last else None
        self._returns, self._lengths = [0.0] * num_envs, [0] * num_envs
        self._at: int | None = None  # the environment that was called last
        self._taken: Any = None  # the actions that are being taken
        self._ended: list[int] = []  # the environments whose episode ended at the last step
        self._infos: dict[int, Any] = {}  # and their last infos
        self._changed = False  # whether arguments of environments have been changed
        self.steps, self.episodes = 0, 0
        self.recent: deque[Episode] = deque(maxlen=100)  # returns, lengths and numbers of finished ones
        self._begin_all(range(num_envs))

    def set_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> None:
        """Make each environment with these arguments too, from its next episode on. Refused where nothing can be made
        with them, or where observations or actions would be others."""
        wanted = dict(env_kwargs)
        ours = sorted(set(wanted) & set(EnvOptions.model_fields) - {"max_episode_steps"})
        if ours:
            raise ValueError(f"env_kwargs.{ours[0]} cannot be changed while a run goes on")
        if isinstance(self._workers, VectorEnvs):
            raise ValueError("the arguments of a VectorEnv cannot be changed while a run goes on")
        if self._factory.name.startswith("ALE/"):
            raise ValueError("the arguments of an Atari environment cannot be changed while a run goes on")
        try:
            if json.loads(json.dumps(wanted)) != wanted:
                raise ValueError
        except (TypeError, ValueError):
            text = "numbers, texts, lists and mappings of them, which a checkpoint can keep"
            raise ValueError(f"env_kwargs can be changed to {text}, not to {wanted!r:.80}") from None
        env = self._factory.make_changed(wanted)
        try:
            spaces = Spaces.of(env)
        finally:
            env.close()
        if not spaces.matches(self.spaces):
            was, now = self.spaces.describe(), spaces.describe()
            other = f"{now} instead of {was}" if was != now else "other bounds of its actions"
            raise ValueError(f"with {wanted}, {self._name} has {other}, and the agent cannot go on")
        self.env_kwargs, self._changed = wanted, True

    def _begin_all(self, which: Iterable[int]) -> None:
        if self._changed:
            when = f"on a change of its arguments, step {self.steps}"
            for i in which:
                self._at = i
                attempt(self._who(i), when, self._envs[i].change, self.env_kwargs)
        if self._workers is not None:
            self._workers.begin(which)
        for i in which:
            self._begin(i)

    def _begin(self, i: int) -> None:
        self._at = i
        try:  # not by attempt(): episodes may be short
            obs = self._envs[i].begin()
        except Exception as error:
            raise failure(self._culprit(error), error, f"on reset, step {self.steps}") from error
        vector = self._check_obs and isinstance(obs, np.ndarray) and obs.dtype in VECTORS and obs.shape == self._shape
        if not vector:
            obs = attempt(self._who(i), f"on reset, step {self.steps}", self._checks.observation, obs)
        self.obs[i] = obs if self._encode is None else self._encode(obs)
        if vector and self.obs[i].dot(self._zeros[i]) != 0:
            attempt(self._who(i), f"on reset, step {self.steps}", self._checks.observation, self.obs[i])
        self._returns[i], self._lengths[i] = 0.0, 0

    def _culprit(self, error: Exception) -> str:
        """The environment that was called last, or the one for which its worker was lost."""
        index = getattr(error, "index", None)
        self._at = index if index is not None else self._at
        assert self._at is not None
        return self._who(self._at)

    def _who(self, i: int) -> str:
        return f"environment {i} ({self._name})"

    def step(self, actions: np.ndarray) -> Step:
        """Step every environment with the agent's actions (N, ...), boxes in [-1, 1]; episodes that end begin anew."""
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Let workers begin a step; ``receive`` waits for it. In this process it is ``receive`` that steps."""
        self._at = None
        if self._box and not isfinite(actions.sum()):
            raise EnvironmentFailure(f"the agent's action is not finite at step {self.steps}: {actions}")
        self._taken = self.spaces.to_env(actions)
        if self._workers is not None:
            self._workers.step(self._taken)

    def receive(self) -> Step:
        """The step that ``send`` began."""
        try:
            return self._step_all(self._taken)
        except EnvironmentFailure as error:
            error.incident = self._incident()
            raise

    def _incident(self) -> dict[str, Any] | None:
        """What led to the failure of the environment that was called last."""
        if self._at is None:
            return None
        history = self._envs[self._at].history()
        if self._taken is not None and len(history["actions"]) == self._lengths[self._at]:
            history["actions"].append(self._taken[self._at])  # the action whose step failed
        return incident(history, training=True, index=self._at)

    def _step_all(self, env_actions: Any) -> Step:
        np.copyto(self._previous, self.obs)
        for i in self._ended:  # of the step before
            self._terminated[i] = self._truncated[i] = 0
        self._ended = ended = []
        encode, obs_rows, next_rows, rewards = self._encode, self.obs, self._next, self._rewards
        for i, action in enumerate(env_actions):
            obs, reward, terminated, truncated, info = self._step_one(i, action)
            try:
                next_rows[i] = obs_rows[i] = obs if encode is None else encode(obs)
            except (TypeError, ValueError):  # of the right shape, and no numbers
                attempt(self._who(i), f"at step {self.steps}", self._checks.observation, obs)
                raise
            rewards[i] = reward
            self._returns[i] += reward
            self._lengths[i] += 1
            if terminated or truncated:
                self._terminated[i], self._truncated[i] = terminated, truncated and not terminated
                ended.append(i)
                self._infos[i] = info
        self._taken = None
        if self._check_obs and next_rows.ravel().dot(self._zeros.ravel()) != 0:
            for i, row in enumerate(next_rows):
                self._at = i
                attempt(self._who(i), f"at step {self.steps}", self._checks.observation, row)
        self.steps += len(obs_rows)
        if ended:
            self._end_episodes(ended)
        return Step(self._previous, self._next, self._transform(rewards), self._terminated, self._truncated)

    def _step_one(self, i: int, action: Any) -> tuple[Any, float, Any, Any, Any]:
        """Step environment ``i``: observation, reward, terminated, truncated, info. A usual result passes with few
        comparisons, any other goes through all checks."""
        slot, self._at = self._envs[i], i
        try:  # not by attempt(): this is the hot path
            result = slot.step(action)
        except Exception as error:
            raise failure(self._culprit(error), error, f"at step {self.steps}") from error
        slot.actions.append(action)
        try:
            obs, reward, terminated, truncated, info = result
            reward = float(reward)
            flags = terminated is truncated is False or (
                terminated.__class__ in BOOLEANS and truncated.__class__ in BOOLEANS
            )
            usual = flags and obs.shape == self._shape and result.__class__ is tuple
        except (TypeError, ValueError, AttributeError, OverflowError):
            usual = False
        if not usual or (not self._check_obs and obs.dtype != np.uint8):
            when = f"at step {self.steps}"
            obs, reward, terminated, truncated = attempt(self._who(i), when, self._checks.step, result)
            info = result[4]
        if not -LARGEST <= reward <= LARGEST and self._check_rewards:
            raise EnvironmentFailure(f"{self._who(i)} gave the reward {reward} at step {self.steps}")
        return obs, reward, terminated, truncated, info

    def _end_episodes(self, ended: list[int]) -> None:
        """Report the returns of the environments ``ended``, and begin their next episodes."""
        for i in ended:
            info, self._at = self._infos.pop(i), i
            numbers = attempt(self._who(i), f"at step {self.steps}", last_numbers, info, self._log_info)
            if not self.episodes and self._log_info:
                self._warn_of_missing(info)
            self.episodes += 1
            self.recent.append(self._finished(i, numbers))
            if self._on_episode is not None:
                self._on_episode(self.recent[-1]._replace(env_index=i, env_kwargs=self._envs[i].env_kwargs))
        self._begin_all(ended)

    def _finished(self, i: int, numbers: Mapping[str, float]) -> Episode:
        """The episode that row ``i`` has finished."""
        return Episode(self._returns[i], self._lengths[i], numbers)

    def _warn_of_missing(self, info: Any) -> None:
        missing = [name for name in self._log_info if not only(info, [name])]
        if missing:
            there = (
                ""
                if self._workers is not None
                else f"; it has {', '.join(sorted(map(str, info or ()))) or 'no entries'}"
            )
            warnings.warn(
                f"log_info: the first episode of {self._name} ended without {', '.join(missing)} in its info{there}",
                stacklevel=2,
            )

    def metrics(self) -> dict[str, float]:
        """Means over the last hundred finished episodes, in the environment's own rewards."""
        if not self.recent:
            return {"episodes": float(self.episodes)}
        returns, lengths = zip(*(episode[:2] for episode in self.recent))
        means = {"episode_return": float(np.mean(returns)), "episode_length": float(np.mean(lengths))}
        return {**means, **mean_numbers(self.recent, self._log_info), "episodes": float(self.episodes)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "envs": [slot.state_dict() for slot in self._envs],
            "obs": torch.from_numpy(self.obs.copy()),
            "steps": self.steps,
            "episodes": self.episodes,
            "recent": [episode.saved() for episode in self.recent],
            **({"env_kwargs": self.env_kwargs} if self.env_kwargs else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Rebuild every environment. Those that could not be, and began anew, are 1 in ``lost`` (N,); ``lost_at`` are
        the saved observations."""
        saved = Saved(state, ("envs", "obs", "steps", "episodes", "recent"), ("env_kwargs",))
        envs, recent = saved.items("envs"), [Episode.restored(one) for one in saved.items("recent")]
        if len(envs) != len(self._envs):
            raise StateError(f"the run has {len(envs)} environments, not {len(self._envs)}: num_envs cannot change")
        self.lost_at = saved.array("obs", self.obs.dtype, self.obs.shape)
        self.steps, self.episodes = saved.count("steps"), saved.count("episodes")
        self.recent = deque(recent, maxlen=100)
        self.env_kwargs = changed_arguments(saved)
        for i, (slot, one) in enumerate(zip(self._envs, envs)):
            with within(f"envs.{i}"):
                slot.load_state_dict(one)
        if self._workers is not None:
            self._workers.send()
        self.lost = np.zeros(len(self._envs), np.float32)
        whys = [self._replay(i, one["actions"]) for i, one in enumerate(envs)]
        self._begin_lost(whys)
        self._changed = bool(self.env_kwargs) or any(slot.env_kwargs for slot in self._envs)

    def _replay(self, i: int, actions: Any) -> str:
        """Repeat the saved actions of an unfinished episode; returns why that failed, where it is known."""
        try:
            obs, self._returns[i], self._lengths[i] = self._envs[i].replay(actions)
            self.obs[i] = obs if self._encode is None else self._encode(obs)
            self.lost[i] = not np.array_equal(self.obs[i], self.lost_at[i])
        except Exception as error:  # an episode that ended sooner this time may refuse further steps
            self.lost[i] = 1.0
            return f" ({raised(error)})"
        return ""

    def _begin_lost(self, whys: Sequence[str]) -> None:
        """Begin anew where an episode was lost."""
        for i in np.flatnonzero(self.lost).tolist():
            _warn_of_lost(i, whys[i])
            self._begin(i)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
            return
        for slot in self._envs:
            slot.env.close()


def _warn_of_lost(i: int, why: str) -> None:
    warnings.warn(
        f"environment {i} cannot be rebuilt from its seed and actions{why}: it starts a new episode, "
        "and the resumed run will differ from an uninterrupted one",
        stacklevel=5,
    )


def _in_this_process(factory: EnvFactory, first: Any, num_envs: int, seed: int) -> list[Any]:
    """The slots of environments that are stepped here, of which ``first`` is one."""
    envs = [first, *(factory.make(training=True) for _ in range(num_envs - 1))]
    return [replayable(env, seed=seed, index=i, make=factory.make_changed) for i, env in enumerate(envs)]


def _elsewhere(
    factory: EnvFactory, first: Any, num_envs: int, seed: int, backend: str, workers: int | None, info: Sequence[str]
) -> Workers | VectorEnvs | Seats | None:
    """What steps rows together: workers, a VectorEnv, or parallel environments; None where each is stepped in this
    process."""
    together = factory.together(first, num_envs, seed, backend)
    if together is not None or backend == "local":
        return together
    spaces = Spaces.of(first)
    first.close()
    return make_workers(backend, factory, spaces, num_envs, seed, workers=workers, info=info)


def _warn_of_endless_episodes(env: Any, name: str) -> None:
    if not has_time_limit(env):
        warnings.warn(
            f"{name} has no time limit: if its episodes may go on for ever, set env_kwargs.max_episode_steps",
            stacklevel=3,
        )
