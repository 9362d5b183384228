"""Videos of trained agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film, headless
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.workflows import config_of, find_checkpoint

__all__ = ["record", "record_checkpoint"]


def record(
    agent: Learner,
    factory: EnvFactory,
    film: Film,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    most_steps: int | None = None,
) -> dict[str, float]:
    """Record whole episodes, the same that an evaluation with this seed plays; returns its metrics."""
    with film:
        return evaluate(
            agent, replace(factory, render=True), episodes=episodes, seed=seed, deterministic=deterministic,
            most_steps=most_steps, watch=film,
        )  # fmt: skip


def record_checkpoint(
    path: str | Path,
    film: Film,
    *,
    device: str = "auto",
    seed: int | None = None,
    env: Any = None,
    network: Any = None,
    **much: Any,
) -> tuple[str, dict[str, float]]:
    """Record the agent of a checkpoint or run; returns the environment's id and the metrics."""
    headless()
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state, env=env)
    agent, _ = get_algorithm_spec(config.algo).load(config, state, device, env=env, network=network)
    factory = EnvFactory(config.env_id if env is None else env, config.env_kwargs)
    return config.env_id, record(agent, factory, film, seed=config.seed if seed is None else seed, **much)
