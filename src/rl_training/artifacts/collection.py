"""Datasets of transitions from a run's replay buffer, reference returns, and descriptions of datasets."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_options import DatasetOptions
from rl_training.data.environment_match import match_environment
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.factory import EnvFactory
from rl_training.envs.options import RewardOptions
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import LONGEST
from rl_training.runtime.experience import collect, facts_of_collection
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import config_of, evaluate_checkpoint, find_checkpoint

__all__ = ["add_references", "add_returns", "describe_dataset", "export_replay"]

REFERENCE_EPISODES = 10


def export_replay(path: str | Path) -> TransitionDataset:
    """Take every transition of a run's replay buffer, oldest first, environment by environment."""
    _, state = find_checkpoint(path, buffers=True)
    config = config_of(state)
    if not state.buffer_state or "replay" not in state.buffer_state:
        raise DatasetError(
            f"{path} holds no replay buffer: {config.algo} keeps none, or the checkpoint is without its own"
        )
    _check_single_unscaled_transitions(path, config)
    replay, spaces = _load_replay(path, config, state.buffer_state["replay"])
    columns = replay.columns()
    columns["terminations"] = columns.pop("dones")  # a step at the time limit may terminate too
    truncations = columns["truncations"] > 0
    first = (replay.written - len(replay)) % config.num_envs
    streams = [np.arange((i - first) % config.num_envs, len(replay), config.num_envs) for i in range(config.num_envs)]
    for rows in streams:
        if len(rows):  # the next row of the file belongs to another environment
            truncations[rows[-1]] |= not columns["terminations"][rows[-1]]
    order = np.concatenate(streams)
    data = {name: column[order] for name, column in {**columns, "truncations": truncations}.items()}
    data["actions"] = np.asarray(spaces.to_env(data["actions"]))
    data |= {name: spaces.unmasked(np.asarray(data[name])) for name in ("obs", "next_obs")}
    behaviour = {"algo": config.algo, "replay": True, "step": int(state.trainer_state["step"])}
    facts = {**facts_of_collection(config, config.seed, behaviour), **spaces.recorded()}
    return TransitionDataset.from_dict({**data, "meta": facts})


def _check_single_unscaled_transitions(path: str | Path, config: TrainConfig) -> None:
    """Refuse a replay of n-step returns, or of rewards that are not the environment's."""
    options = get_algorithm_spec(config.algo).options(config)
    n_step = getattr(options, "n_step", 1)
    if n_step > 1:
        raise DatasetError(f"the replay of {path} holds returns over {n_step} steps, not single transitions")
    defaults = {name: field.default for name, field in DatasetOptions.model_fields.items()}
    names = [name for name in defaults if name.startswith("reward_")]
    changed = any(getattr(options, name, defaults[name]) != defaults[name] for name in names)
    if changed or EnvFactory(config.env_id, config.env_kwargs).reward_options() != RewardOptions():
        raise DatasetError(f"the replay of {path} holds rewards that were scaled or clipped, not the environment's")


def _load_replay(path: str | Path, config: TrainConfig, state: dict[str, Any]) -> tuple[ReplayBuffer, Spaces]:
    """Build the loop of a run as training would, and load its replay buffer."""
    spec, factory = get_algorithm_spec(config.algo), EnvFactory(config.env_id, config.env_kwargs)
    options, plan = spec.options(config), spec.blueprint(config, factory, None, "cpu")
    run = Run(config, options, factory, plan.spaces, device=plan.device, callbacks=[])
    loop: Any = spec.loop_for(options, run.spaces)(run, spec.build(options, plan), options)
    try:
        if not isinstance(loop.replay, ReplayBuffer):
            raise DatasetError(f"the replay of {path} holds sequences of observations, not single transitions")
        loop.replay.load_state_dict(state)
        return loop.replay, plan.spaces
    finally:
        loop.close()


def add_references(data: TransitionDataset, config: TrainConfig, *, seed: int, expert: str | float | None) -> None:
    """Add the returns of a random policy and of an expert (a number, or a checkpoint to evaluate) to the metadata."""
    drawn = collect(config, None, episodes=REFERENCE_EPISODES, seed=seed + 1, most_steps=LONGEST)
    data.meta["random_return"] = float(drawn.returns().mean())
    if expert is not None:
        try:
            value = float(expert)
        except ValueError:
            value = evaluate_checkpoint(str(expert), REFERENCE_EPISODES)["eval_return_mean"]
        data.meta["expert_return"] = value


def add_returns(data: TransitionDataset) -> None:
    """Add the returns of the episodes to the metadata."""
    data.meta["returns"] = [round(float(value), 4) for value in data.returns()]


def describe_dataset(data: TransitionDataset, factory: EnvFactory | None = None) -> dict[str, Any]:
    """Describe a dataset; with an environment, also whether it fits that."""
    known, ordered = data.finished_returns(), data.in_order
    episodes = data.episodes() if ordered else []
    returns = known if len(known) or not ordered else data.returns()
    lengths = [rows.stop - rows.start for rows in episodes]
    quantiles = np.quantile(returns, [0, 0.25, 0.5, 0.75, 1]) if len(returns) else []
    actions = data.actions
    facts: dict[str, Any] = {
        "transitions": len(data),
        "episodes": len(episodes),
        "unfinished": len(episodes) - len(known),
        "terminations": int((data.dones > 0).sum()),
        "truncations": 0 if data.truncations is None else int((data.truncations > 0).sum()),
        "return_mean": float(returns.mean()) if len(returns) else None,
        "return_quantiles": [float(value) for value in quantiles],
        "length_mean": float(np.mean(lengths)) if lengths else None,
        "observations": f"{str(data.obs.dtype).removeprefix('torch.')} {tuple(data.obs.shape[1:])}",
        "actions": f"{str(actions.dtype).removeprefix('torch.')} {tuple(actions.shape[1:])}",
        "action_range": [float(actions.min()), float(actions.max())] if len(data) else [],
        "reward_range": [float(data.rewards.min()), float(data.rewards.max())] if len(data) else [],
        "concerns": data.concerns() + ([] if factory is None else _misfits(data, factory)),
    }
    return {**facts, "meta": {name: value for name, value in data.meta.items() if name != "returns"}}


def _misfits(data: TransitionDataset, factory: EnvFactory) -> list[str]:
    """List the warnings and errors that a run in this environment would give for the data."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            in_agent_units(match_environment(data, factory, "it", allow=False), factory.spaces(), "it", units="auto")
        except DatasetError as error:
            return [str(error)]
    return [str(warning.message) for warning in caught]
