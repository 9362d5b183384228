"""Greedy episodes on environments and seeds of their own; leaves every training random stream untouched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.data.offline_dataset import REFERENCES
from rl_training.envs.checks import Checks, attempt
from rl_training.envs.factory import EnvFactory, has_time_limit
from rl_training.envs.replay import episode_seed
from rl_training.envs.spaces import Spaces

EVALUATION = 2**31  # keeps evaluation seeds apart from those of training environments
LONGEST = 100_000  # steps after which any episode is cut
UNLIMITED = 10_000  # the same for environments without a time limit
Watch = Callable[[int, gym.Env, Any], None]  # the episode's number, the environment, and its observation


def scored(metrics: dict[str, float], references: dict[str, float]) -> dict[str, float]:
    """With the return as a score: 0 is a random policy's, 100 an expert's, where both are known and differ."""
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
) -> dict[str, float]:
    """The same episodes every time for the same seed, so that evaluations of one run can be compared.

    ``most_steps`` cuts every episode. One that goes on for ``LONGEST`` steps is cut too (``UNLIMITED``, if the environment has no time
    limit): it counts as truncated, and ``eval_episodes_cut`` says how many there were. ``watch`` is shown the environment at every observation.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    returns, lengths, cut = [], [], 0
    trained = agent.training
    rng = np.random.default_rng((seed, EVALUATION))
    agent.set_eval_mode()
    env = factory.make(training=False)
    try:
        spaces, name = Spaces.of(env), factory.name
        checks, longest = Checks(spaces), LONGEST if has_time_limit(env) else UNLIMITED

        def start(seed: int) -> Any:
            return checks.reset(env.reset(seed=seed))

        def take(action: Any) -> tuple[Any, float, bool, bool]:
            return checks.step(env.step(action))

        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            for episode in range(episodes):
                obs = attempt(name, "on reset, in evaluation", start, episode_seed(seed, EVALUATION, episode))
                carry, done, total, length = agent.initial_carry(1), False, 0.0, 0
                if watch is not None:
                    watch(episode, env, obs)
                while not done:
                    acting = agent.act(spaces.encode(obs)[None], carry=carry, deterministic=deterministic, rng=rng)
                    carry = acting.carry
                    action = spaces.to_env(acting.actions)[0]
                    obs, reward, terminated, truncated = attempt(name, "in evaluation", take, action)
                    total, length, done = total + reward, length + 1, terminated or truncated
                    if watch is not None:
                        watch(episode, env, obs)
                    if not done and length >= longest and length != most_steps:
                        done, cut = True, cut + 1
                    done = done or length == most_steps
                returns.append(total)
                lengths.append(length)
    finally:
        env.close()
        if trained:
            agent.set_train_mode()
    if cut:
        warnings.warn(
            f"evaluation: {cut} of {episodes} episodes of {name} were cut after {longest:,} steps; "
            "set env_kwargs.max_episode_steps",
            stacklevel=2,
        )
    return {
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_return_min": float(np.min(returns)),
        "eval_return_max": float(np.max(returns)),
        "eval_length_mean": float(np.mean(lengths)),
        "eval_episodes": float(episodes),
        "eval_episodes_cut": float(cut),
    }
