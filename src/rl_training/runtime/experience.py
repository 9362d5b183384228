"""Recording the experience of a trained or a random policy as a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.base.state import Rng
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.recorder import Recorder
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import provenance
from rl_training.runtime.workflows import config_of, find_checkpoint
from rl_training.tracking.progress import Progress

__all__ = ["collect", "collect_from_checkpoint", "facts_of_collection"]


def collect(
    config: TrainConfig,
    agent: Learner | None,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    deterministic: bool = False,
    seed: int = 0,
    progress: str = "off",
    most_steps: int | None = None,
) -> TransitionDataset:
    """Record a number of steps, or of whole episodes, of an agent (None: of uniformly random actions).

    The same seed gives the same data. ``most_steps`` ends the collection in any case. A stochastic policy is sampled
    from unless ``deterministic``; a value-based one is greedy either way.
    """
    if (steps is None) == (episodes is None):
        raise ValueError("say how many steps or how many episodes to collect, one of the two")
    factory = EnvFactory(config.env_id, {**config.env_kwargs, "training": config.env_kwargs.get("evaluation", {})})
    factory.spaces().require_one_agent("collect", config.env_id)
    rng, total = Rng(seed, "collection").generator, steps if steps is not None else episodes
    assert total is not None
    collector = Collector(factory, 1, seed, rewards=lambda rewards: rewards)
    unit = "steps" if steps is not None else "episodes"
    bar = Progress(progress, title=f"collect {config.env_id}", total=total, start=0, unit=unit)
    recorder = Recorder(collector.spaces)
    random_state = torch.get_rng_state()  # restored below: a collection within a run leaves its stream untouched
    torch.manual_seed(seed)
    try:
        carry, ended = None, True
        while (done := len(recorder) if steps is not None else collector.episodes) < total:
            bar.tick(done)
            if most_steps is not None and len(recorder) >= most_steps:
                break
            if agent is None:
                actions = collector.spaces.random_actions(rng, 1)
            else:
                carry = agent.initial_carry(1) if ended else carry
                acting = agent.act(collector.obs, carry=carry, deterministic=deterministic, rng=rng)
                actions, carry = acting.actions, acting.carry
            step = collector.step(actions)
            ended = bool(step.terminated[0] or step.truncated[0])
            recorder.add(actions, step)
        bar.tick(total)
    finally:
        torch.set_rng_state(random_state)
        bar.close()
        collector.close()
    behaviour = {"algo": "random" if agent is None else config.algo, "deterministic": deterministic}
    return recorder.dataset(facts_of_collection(config, seed, behaviour))


def collect_from_checkpoint(path: str | Path, **options: Any) -> TransitionDataset:
    """``collect`` with the agent of a checkpoint, or of the newest one of a run."""
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    agent = get_algorithm_spec(config.algo).load_fn(config, state)
    data = collect(config, agent, **options)
    data.meta["behaviour"]["step"] = int(state.trainer_state["step"])
    return data


def facts_of_collection(config: TrainConfig, seed: int, behaviour: dict[str, Any]) -> dict[str, Any]:
    """Where a dataset comes from: environment, seed, behaviour policy, versions."""
    where = provenance()
    facts = {"env_id": config.env_id, "env_kwargs": config.env_kwargs, "seed": seed, "behaviour": behaviour}
    return {**facts, "versions": where["versions"], "git": where["git"]}
