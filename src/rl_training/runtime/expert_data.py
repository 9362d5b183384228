"""The expert's transitions that GAIL imitates: options that say where they come from, and loading them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from pydantic import model_validator

from rl_training.base.options import Options, opt
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_options import FOR_FILES, Mismatch, SourceOptions, Units
from rl_training.data.environment_match import match_environment, recorded_in
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prior_data import read_source
from rl_training.data.recorder import collect_random
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.runtime.evaluation import LONGEST
from rl_training.runtime.experience import collect_from_checkpoint

__all__ = ["ExpertOptions", "expert_data"]

REFERENCE_EPISODES, REFERENCE_STEPS = 10, 10_000  # of a random policy, whose return is the zero of the score


def _meaning(name: str) -> str:
    """What an option of any dataset means; the expert's means the same."""
    return str(SourceOptions.model_fields[name].description)


class ExpertOptions(Options):
    """The source of the expert's data: the options of any dataset, prefixed by ``expert_``, or a checkpoint."""

    expert_dataset_kind: Literal["random", "npz", "minari", "hdf5", "checkpoint"] = opt(
        "random",
        "where the expert's data is: npz, hdf5, minari, a checkpoint to collect it with; random: no expert at all",
    )
    expert_dataset_path: str | None = opt(None, "the file, or the checkpoint (or its run)")
    expert_dataset_id: str | None = opt(None, _meaning("dataset_id"))
    expert_dataset_size: int = opt(2_000, _meaning("dataset_size"), ge=1)
    expert_dataset_seed: int = opt(0, "seed of a collection", ge=0)
    expert_dataset_env_mismatch: Mismatch = opt(
        "refuse", "an expert of another environment: refuse, or allow (there is then no score relative to it)"
    )
    expert_dataset_episode_steps: int | None = opt(None, _meaning("dataset_episode_steps"), ge=1)
    expert_dataset_action_units: Units = opt("auto", _meaning("dataset_action_units"))
    expert_episodes: int | None = opt(
        None, "use only so many of its episodes, the first (a checkpoint: null is 10)", ge=1
    )

    @model_validator(mode="after")
    def _expert(self) -> Any:
        if self.expert_dataset_kind != "checkpoint":
            try:
                self.source()
            except ValueError as error:
                raise ValueError(str(error).split(": ", 1)[-1].replace("dataset_", "expert_dataset_")) from None
            return self
        if self.expert_dataset_path is None:
            raise ValueError("checkpoint data needs expert_dataset_path")
        for name in ("expert_dataset_id", "expert_dataset_episode_steps", "expert_dataset_action_units"):
            if getattr(self, name) != ExpertOptions.model_fields[name].default:
                raise ValueError(f"{name} does nothing for checkpoint data")
        return self

    def source(self) -> SourceOptions:
        """The same options as those of any dataset."""
        names = [name for name in SourceOptions.model_fields if f"expert_{name}" in ExpertOptions.model_fields]
        return SourceOptions(**{name: getattr(self, f"expert_{name}") for name in names})


def expert_data(cfg: ExpertOptions, factory: EnvFactory, spaces: Spaces) -> TransitionDataset:
    """The expert's transitions in the agent's units; ``meta`` has the returns of the expert and of a random policy."""
    with _expert_names():
        if cfg.expert_dataset_kind == "checkpoint":
            data = _collected(cfg, factory, spaces)
        else:
            data = read_source(cfg.source(), factory, spaces, check_rewards=False)
    episodes = data.episodes()
    if cfg.expert_episodes is not None and len(episodes) > cfg.expert_episodes:
        data = data.take(torch.arange(episodes[cfg.expert_episodes - 1].stop))
    if cfg.expert_dataset_kind == "random":
        data.meta.pop("expert_return", None)
    elif recorded_in(factory, data.meta):  # returns of another environment are no reference
        _add_reference_returns(data, factory, cfg.expert_dataset_seed + 1)
    return data


def _collected(cfg: ExpertOptions, factory: EnvFactory, spaces: Spaces) -> TransitionDataset:
    """Greedy episodes of a checkpoint's agent."""
    where, number = str(cfg.expert_dataset_path), cfg.expert_episodes or 10
    data = collect_from_checkpoint(
        where, episodes=number, deterministic=True, seed=cfg.expert_dataset_seed, most_steps=number * LONGEST
    )
    allowed = cfg.expert_dataset_env_mismatch == "allow"
    data = match_environment(data, factory, f"the expert of {where}", allow=allowed)
    return in_agent_units(data, spaces, where, check_rewards=False)


def _add_reference_returns(data: TransitionDataset, factory: EnvFactory, seed: int) -> None:
    """Add the mean returns of the expert and, unless the data has it, of a random policy, where they are finite."""
    returns = data.finished_returns()
    if not len(returns) or not np.isfinite(returns).all():
        return
    data.meta["expert_return"] = float(returns.mean())
    if "random_return" not in data.meta:
        drawn = collect_random(factory, REFERENCE_STEPS, seed, episodes=REFERENCE_EPISODES, check_rewards=False)
        known = drawn.finished_returns()
        if len(known) and np.isfinite(known).all():
            data.meta["random_return"] = float(known.mean())


@contextlib.contextmanager
def _expert_names() -> Iterator[None]:
    """Lets errors about data name options as GAIL has them."""
    try:
        yield
    except DatasetError as error:
        names = re.compile(rf"\b({'|'.join(FOR_FILES)})\b")
        raise DatasetError(names.sub(r"expert_\1", str(error))) from None
