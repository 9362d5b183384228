"""Greedy episodes on environments and seeds of their own; leaves every training random stream untouched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.data.offline_dataset import REFERENCES
from rl_training.envs.checks import Checks, EnvironmentFailure, attempt
from rl_training.envs.endings import Episode, last_numbers, mean_numbers
from rl_training.envs.factory import EnvFactory, has_time_limit, time_limit_of
from rl_training.envs.incidents import History, incident
from rl_training.envs.multi_agent import Game, MultiAgentEnv
from rl_training.envs.replay import episode_seed
from rl_training.envs.spaces import Spaces
from rl_training.envs.watchdog import Watchdog

__all__ = ["LONGEST", "UNLIMITED", "EvaluationStopped", "evaluate", "scored"]

EVALUATION = 2**31  # keeps evaluation seeds apart from those of training environments
LONGEST = 100_000  # steps after which any episode is cut
UNLIMITED = 10_000  # the same for environments without a time limit
Env = gym.Env[Any, Any]
Watch = Callable[[int, Env, Any], None]  # the episode's number, the environment, and its observation


class EvaluationStopped(Exception):
    """The evaluation was stopped before its end; the agent and all random streams are as they were before it."""


def scored(metrics: dict[str, float], references: dict[str, float]) -> dict[str, float]:
    """Add ``eval_score``, on which a random policy has 0 and an expert 100, where both returns are known and differ."""
    low, high = (references.get(name) for name in REFERENCES)
    if low is None or high is None or low == high:
        return metrics
    return {**metrics, "eval_score": 100 * (metrics["eval_return_mean"] - low) / (high - low)}


def evaluate(
    agent: Learner,
    factory: EnvFactory,
    *,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    most_steps: int | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] | None = None,
    log_info: Sequence[str] = (),
) -> dict[str, float]:
    """Play the same episodes every time for the same seed, so that evaluations of one run can be compared.

    ``most_steps`` cuts every episode. One that goes on for ``LONGEST`` steps is cut too (``UNLIMITED``, if the
    environment has no time limit): it counts as truncated, and ``eval_episodes_cut`` says how many there were.
    ``watch`` is shown the environment at every observation; ``stop`` is asked before every step, and if it says so, the
    evaluation ends with ``EvaluationStopped``. Means over the episodes include the success that the environment
    reports in their last info, and the numbers there that ``log_info`` names. In a parallel environment the agent acts
    for everyone; the return of an episode is the mean over those who took part, and means by name stand beside it.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    trained = agent.training
    agent.set_eval_mode()
    env = factory.make(training=False)
    kind = _GamePlayer if isinstance(env.unwrapped, MultiAgentEnv) else _Player
    try:
        player = kind(agent, env, factory.name, seed, deterministic, most_steps, watch, stop, log_info)
        player.watchdog = factory.watchdog
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            played, cut = zip(*map(player.play, range(episodes)))
    finally:
        env.close()
        if trained:
            agent.set_train_mode()
    if any(cut):
        warnings.warn(
            f"evaluation: {sum(cut)} of {episodes} episodes of {factory.name} were cut after {player.longest:,} steps; "
            "set env_kwargs.max_episode_steps",
            stacklevel=2,
        )
    return {**_summary(played, cut), **mean_numbers(played, log_info, "eval_")}


def _summary(episodes: Sequence[Episode], cut: Sequence[bool]) -> dict[str, float]:
    returns, lengths = [episode.episode_return for episode in episodes], [episode.length for episode in episodes]
    return {
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_return_min": float(np.min(returns)),
        "eval_return_max": float(np.max(returns)),
        "eval_length_mean": float(np.mean(lengths)),
        "eval_episodes": float(len(returns)),
        "eval_episodes_cut": float(sum(cut)),
    }


class _Player:
    """Plays the episodes of an evaluation in one environment, with a random stream of its own."""

    def __init__(
        self,
        agent: Learner,
        env: Env,
        name: str,
        seed: int,
        deterministic: bool,
        limit: int | None,
        watch: Watch | None,
        stop: Callable[[], bool] | None = None,
        log_info: Sequence[str] = (),
    ) -> None:
        self._agent, self._env, self._name, self._seed = agent, env, name, seed
        self._deterministic, self._limit, self._watch = deterministic, limit, watch
        self._stop, self._log_info = stop, log_info
        self.watchdog: Watchdog | None = None  # where calls go past the environment's wrappers
        self._info: Any = None  # of the last step
        self._rng, self._spaces = np.random.default_rng((seed, EVALUATION)), Spaces.of(env)
        self._checks = Checks(self._spaces)
        self.longest = LONGEST if has_time_limit(env) else UNLIMITED

    def play(self, episode: int) -> tuple[Episode, bool]:
        """One episode, and whether it was cut for going on too long."""
        seed = episode_seed(self._seed, EVALUATION, episode)
        self._history: History = {"episode": episode, "seed": seed, "actions": [], "exact": True}
        try:
            return self._play(episode, seed)
        except EnvironmentFailure as error:
            error.incident = incident(self._history, training=False)
            raise

    def _play(self, episode: int, seed: int) -> tuple[Episode, bool]:
        agent, spaces = self._agent, self._spaces
        obs = attempt(self._name, "on reset, in evaluation", self._reset, seed)
        carry, done, cut, total, length = agent.initial_carry(1), False, False, 0.0, 0
        if self._watch is not None:
            self._watch(episode, self._env, obs)
        while not done:
            if self._stop is not None and self._stop():
                raise EvaluationStopped
            actions, _, carry = agent.act(
                spaces.encode(obs)[None], carry=carry, deterministic=self._deterministic, rng=self._rng
            )
            obs, reward, terminated, truncated = attempt(
                self._name, "in evaluation", self._step, spaces.to_env(actions)[0]
            )
            total, length, done = total + reward, length + 1, terminated or truncated
            if self._watch is not None:
                self._watch(episode, self._env, obs)
            cut = not done and length >= self.longest and length != self._limit
            done = done or cut or length == self._limit
        numbers = attempt(self._name, "in evaluation", last_numbers, self._info, self._log_info)
        return Episode(total, length, numbers), cut

    def _reset(self, seed: int) -> Any:
        return self._checks.reset(self._env.reset(seed=seed))

    def _step(self, action: Any) -> tuple[Any, float, bool, bool]:
        self._history["actions"].append(action)
        result = self._env.step(action)
        checked = self._checks.step(result)
        self._info = result[4]
        return checked


class _GamePlayer(_Player):
    """Plays a parallel environment, with the agent in every seat."""

    def _play(self, episode: int, seed: int) -> tuple[Episode, bool]:
        game, length, cut = Game(self._env, time_limit_of(self._env)), 0, False
        obs = attempt(self._name, "on reset, in evaluation", self._begin, game, seed)
        returns: dict[str, float] = {}  # of those who took part
        infos: dict[str, Any] = {}  # their last ones
        self._show(episode, game, obs)
        while not game.over and not cut and length != self._limit:
            if self._stop is not None and self._stop():
                raise EvaluationStopped
            rows = np.stack([self._spaces.encode(one) for one in obs])
            actions = self._agent.act(rows, deterministic=self._deterministic, rng=self._rng).actions
            acting = {str(game.ids[i]): i for i in np.flatnonzero(game.present)}
            results = attempt(self._name, "in evaluation", self._step_all, game, self._spaces.to_env(actions))
            obs, rewards, last = zip(*results)
            for name, i in acting.items():
                returns[name], infos[name] = returns.get(name, 0.0) + rewards[i], last[i]
            length += 1
            self._show(episode, game, obs)
            cut = not game.over and length >= self.longest and length != self._limit
        numbers = attempt(self._name, "in evaluation", self._mean_numbers, [*infos.values()])
        return Episode(float(np.mean([*returns.values()])), length, numbers, agents=returns), cut

    def _begin(self, game: Game, seed: int) -> list[Any]:
        return [self._checks.observation(obs) for obs in self._watched("reset", game.begin, seed)]

    def _watched(self, doing: str, call: Callable[..., Any], *args: Any) -> Any:
        if self.watchdog is None:
            return call(*args)
        return self.watchdog.call({**self._history, "training": False}, doing, call, *args)

    def _step_all(self, game: Game, actions: Any) -> list[tuple[Any, float, Any]]:
        """Observation, reward and info of every seat."""
        self._history["actions"].append(list(actions))
        results = self._watched("step", game.step, actions)
        return [(*self._checks.step(result)[:2], result[4]) for result in results]

    def _mean_numbers(self, infos: list[Any]) -> dict[str, float]:
        """Means over agents of the numbers in their last infos."""
        numbers = [last_numbers(info, self._log_info) for info in infos]
        names = dict.fromkeys(chain(*numbers))
        return {name: float(np.mean([own[name] for own in numbers if name in own])) for name in names}

    def _show(self, episode: int, game: Game, obs: Sequence[Any]) -> None:
        """Show whoever watches the observation of the first agent that is there."""
        if self._watch is not None:
            self._watch(episode, self._env, obs[int(np.argmax(game.present))])
