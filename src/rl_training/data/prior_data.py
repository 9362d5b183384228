"""The data a run begins with: built as its options say, and drawn from in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rl_training.base.batches import Tensors
from rl_training.base.saved import Saved
from rl_training.base.state import Rng, Stateful
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_files import load_transition_dataset
from rl_training.data.dataset_options import DatasetOptions, SourceOptions
from rl_training.data.environment_match import match_environment, time_limits
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset, mix_transition_datasets, transform_rewards
from rl_training.data.recorder import collect_random
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces

__all__ = ["PriorData", "build_dataset", "read_source", "rewards_learned_from"]


def build_dataset(options: DatasetOptions, factory: EnvFactory, spaces: Spaces) -> TransitionDataset:
    """The dataset of a run's options, in the agent's units, with the rewards that are learned from."""
    if options.dataset_mix is None:
        data = read_source(options, factory, spaces)
    else:
        allowed = options.dataset_env_mismatch == "allow"
        parts = [read_source(source, factory, spaces, allow_other_env=allowed) for source in options.dataset_mix]
        size = options.dataset_mix_size or sum(map(len, parts))
        weights = [source.weight for source in options.dataset_mix]
        data = mix_transition_datasets(parts, weights, size, options.dataset_mix_seed)
    return replace(data, rewards=rewards_learned_from(options, factory, data)(data.rewards))


def rewards_learned_from(options: DatasetOptions, factory: EnvFactory, data: TransitionDataset) -> Callable[[Any], Any]:
    """The map from the environment's rewards, recorded or new, to those learned from: wrappers, then options."""
    scale = options.reward_scale
    wrapped = factory.reward_options().apply
    if scale == "returns":
        returns = data.episode_returns
        returns = None if returns is None else returns[~returns.isnan()]
        spread = float(returns.max() - returns.min()) if returns is not None and len(returns) else 0.0
        if spread <= 0:
            raise DatasetError("reward_scale: returns needs episodes whose returns differ")
        scale = 1000.0 / spread
    rest = (float(scale), options.reward_shift, options.reward_clip_min, options.reward_clip_max)
    return lambda rewards: transform_rewards(wrapped(rewards), *rest)


def read_source(
    source: SourceOptions,
    factory: EnvFactory,
    spaces: Spaces,
    *,
    check_rewards: bool = True,
    allow_other_env: bool = False,
) -> TransitionDataset:
    """One source's transitions in the agent's units; refuses data of other environments."""
    if source.dataset_kind == "random":
        data = collect_random(factory, source.dataset_size, source.dataset_seed, check_rewards=check_rewards)
    else:
        steps = source.dataset_episode_steps
        data = load_transition_dataset(
            source.dataset_kind,
            dataset_path=source.dataset_path,
            dataset_id=source.dataset_id,
            download=source.dataset_download,
            time_limit=steps if steps is not None else (lambda: time_limits(factory)),
        )
    where = source.dataset_path or source.dataset_id or "the random dataset"
    allowed = allow_other_env or source.dataset_env_mismatch == "allow"
    data = match_environment(data, factory, where, allow=allowed)
    return in_agent_units(data, spaces, where, check_rewards=check_rewards, units=source.dataset_action_units)


class PriorData(Stateful):
    """A source of batches from a dataset in the agent's units.

    The data is rebuilt on resume, not saved; its fingerprint is saved, and a run goes on only with the data it began
    with.
    """

    STATE = ("fingerprint",)

    def __init__(self, data: TransitionDataset, spaces: Spaces, device: str | torch.device, rng: Rng) -> None:
        self.fingerprint, self.rng = data.fingerprint(), rng
        self._buffer = self._filled(data, spaces, device, share_frames=True)
        if len(self._buffer) < len(data):  # images that are not in time order share no frames
            self._buffer = self._filled(data, spaces, device, share_frames=False)

    def _filled(
        self, data: TransitionDataset, spaces: Spaces, device: str | torch.device, *, share_frames: bool
    ) -> ReplayBuffer:
        n = len(data)
        buffer = ReplayBuffer(
            n, spaces.obs_shape, spaces.action_shape, device, spaces.obs_dtype, spaces.action_dtype,
            rng=self.rng, reuse=True, frames=spaces.frames, share_frames=share_frames,
        )  # fmt: skip
        truncations = torch.zeros(n) if data.truncations is None else data.truncations
        columns = {"obs": data.obs, "actions": data.actions, "rewards": data.rewards, "next_obs": data.next_obs}
        rows = {
            name: column.numpy()
            for name, column in {**columns, "dones": data.dones, "truncations": truncations}.items()
        }
        if spaces.obs_dtype == np.uint8 and share_frames:  # one by one: frames are shared with the row before
            for i in range(n):
                buffer.add(**{name: column[i : i + 1] for name, column in rows.items()})
        else:
            buffer.add(**rows)
        return buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def sample(self, n: int) -> Tensors:
        return self._buffer.sample(n)

    def columns(self) -> dict[str, np.ndarray]:
        return self._buffer.columns()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if Saved(state, ("fingerprint", "rng"))["fingerprint"] != self.fingerprint:
            raise ValueError("the dataset has changed since the run began; it can only go on with the same data")
        super().load_state_dict(state)
