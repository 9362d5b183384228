"""Where prior data comes from, as options, and the loop that learns from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import model_validator

from rl_training.algorithms.base import Learner
from rl_training.data.offline_dataset import (
    DatasetError,
    TransitionDataset,
    load_transition_dataset,
    mix_transition_datasets,
    transform_rewards,
)
from rl_training.data.replay_buffer import Batch, ReplayBuffer, Source
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Options, Sizes, TrainConfig, opt
from rl_training.runtime.collector import Collector
from rl_training.runtime.loops import Loop
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import Blueprint, Network
from rl_training.state import Rng, Stateful

Kind = Literal["random", "npz", "minari", "hdf5"]
OUTSIDE = 1e-3  # how far beyond its bounds, in agent units, an action may lie before it is worth a word


class SourceOptions(Options):
    """One source of transitions."""

    TITLE = "a dataset"
    dataset_kind: Kind = opt("random", "random (collected on the spot), npz, hdf5 (D4RL's layout) or minari")
    dataset_path: str | None = opt(None, "the file, for npz and hdf5")
    dataset_id: str | None = opt(None, "the dataset's name, for minari")
    dataset_download: bool = opt(False, "let Minari fetch the dataset if it is not there")
    dataset_size: int = opt(10_000, "transitions to collect, for random", ge=1)
    dataset_seed: int = opt(0, "seed of the collection, for random", ge=0)

    @model_validator(mode="after")
    def _complete(self) -> Any:
        kind = self.dataset_kind
        wanted = {"npz": "dataset_path", "hdf5": "dataset_path", "minari": "dataset_id"}.get(kind)
        for name in ("dataset_path", "dataset_id"):
            if name == wanted and getattr(self, name) is None:
                raise ValueError(f"{kind} data needs {name}")
            if name != wanted and getattr(self, name) is not None:
                raise ValueError(f"{name} does nothing for {kind} data")
        if self.dataset_download and kind != "minari":
            raise ValueError(f"dataset_download does nothing for {kind} data")
        return self


class MixedSource(SourceOptions):
    """A source with its share of a mix."""

    weight: float = opt(1.0, "its share of the mix, relative to the others'", gt=0)


class DatasetOptions(SourceOptions):
    """The data that an offline run learns from."""

    dataset_mix: list[MixedSource] | None = opt(
        None, "several sources instead of one: a list of {dataset_kind, dataset_path, ..., weight}"
    )
    dataset_mix_size: int | None = opt(None, "transitions drawn from the mix; null: as many as its sources hold", ge=1)
    dataset_mix_seed: int = opt(0, "seed of that draw", ge=0)
    reward_scale: float | Literal["returns"] = opt(
        1.0, "rewards are multiplied by this; returns: by 1000 over the range of the data's returns"
    )
    reward_shift: float = opt(0.0, "and this is added")
    reward_clip_min: float | None = opt(None, "and what is smaller is raised to this")
    reward_clip_max: float | None = opt(None, "and what is larger is lowered to this")

    @model_validator(mode="after")
    def _one_or_many(self) -> Any:
        if self.dataset_mix is not None:
            if not self.dataset_mix:
                raise ValueError("dataset_mix needs at least one source")
            if "dataset_kind" in self.model_fields_set or self.dataset_path or self.dataset_id:
                raise ValueError("give one source (dataset_kind and its path or id) or dataset_mix, not both")
        elif any(getattr(self, name) is not None and name in self.model_fields_set for name in self.idle()):
            raise ValueError("dataset_mix_size and dataset_mix_seed do nothing without dataset_mix")
        return self

    def idle(self) -> set[str]:
        return {"dataset_mix_size", "dataset_mix_seed"} if self.dataset_mix is None else {"dataset_kind"}


def _infer_env_spaces(config: TrainConfig) -> Spaces:
    """The spaces of the config's environment, as agents see them."""
    env = EnvFactory(config.env_id, config.env_kwargs).make(training=False)
    try:
        return Spaces.of(env)
    finally:
        env.close()


def _build_offline_dataset(config: TrainConfig) -> TransitionDataset:
    """The config's data: read or collected, mixed, checked, actions in [-1, 1], rewards transformed."""
    from rl_training.experiment.registry import get_algorithm_spec

    options = get_algorithm_spec(config.algo).options(config)
    factory = EnvFactory(config.env_id, config.env_kwargs)
    return build_dataset(options, factory, _infer_env_spaces(config))  # type: ignore[arg-type]


def build_dataset(options: DatasetOptions, factory: EnvFactory, spaces: Spaces) -> TransitionDataset:
    if options.dataset_mix is None:
        data = read_source(options, factory, spaces)
    else:
        parts = [read_source(source, factory, spaces) for source in options.dataset_mix]
        size = options.dataset_mix_size or sum(map(len, parts))
        weights = [source.weight for source in options.dataset_mix]
        data = mix_transition_datasets(parts, weights, size, options.dataset_mix_seed)
    return replace(data, rewards=rewards_learned_from(options, factory, data)(data.rewards))


def rewards_learned_from(options: DatasetOptions, factory: EnvFactory, data: TransitionDataset) -> Callable[[Any], Any]:
    """What is made of the environment's rewards, the data's and any that are met later: its wrappers, then the options."""
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
    source: SourceOptions, factory: EnvFactory, spaces: Spaces, *, check_rewards: bool = True
) -> TransitionDataset:
    if source.dataset_kind == "random":
        data = collect_random(factory, source.dataset_size, source.dataset_seed, check_rewards=check_rewards)
    else:
        data = load_transition_dataset(
            source.dataset_kind,
            dataset_path=source.dataset_path,
            dataset_id=source.dataset_id,
            download=source.dataset_download,
        )
    where = source.dataset_path or source.dataset_id or "the random dataset"
    return in_agent_units(data, spaces, where, check_rewards=check_rewards)


def collect_random(
    factory: EnvFactory, steps: int, seed: int, *, episodes: int | None = None, check_rewards: bool = True
) -> TransitionDataset:
    """``steps`` transitions of uniformly random actions (fewer, if ``episodes`` are over sooner), the same for the same seed."""
    rng = Rng(seed, "random dataset").generator
    collector = Collector(factory, 1, seed, rewards=lambda rewards: rewards, check_rewards=check_rewards)
    try:
        recorder = Recorder(collector.spaces)
        while len(recorder) < steps and (episodes is None or collector.episodes < episodes):
            actions = collector.spaces.random_actions(rng, 1)
            recorder.add(actions, collector.step(actions))
        return recorder.dataset({"seed": seed, "behaviour": {"algo": "random"}})
    finally:
        collector.close()


class Recorder:
    """Steps of one environment, gathered into a dataset."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._rows: list[tuple[np.ndarray, Any, float, np.ndarray, float, float]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, actions: np.ndarray, step: Any) -> None:
        env_action = np.asarray(self._spaces.to_env(actions)[0])
        ends = (float(step.terminated[0]), float(step.truncated[0]))
        self._rows.append((step.obs[0].copy(), env_action, float(step.rewards[0]), step.next_obs[0].copy(), *ends))

    def dataset(self, meta: dict[str, Any]) -> TransitionDataset:
        names = ("obs", "actions", "rewards", "next_obs", "terminations", "truncations")
        columns = {name: np.stack(column) for name, column in zip(names, zip(*self._rows))} if self._rows else {}
        return TransitionDataset.from_dict({**columns, "meta": meta})


class PriorData(Stateful):
    """A dataset in the agent's units, ready for drawing.

    The data is rebuilt on resume, not saved; its fingerprint is, and a run goes on only with the data it began with.
    """

    STATE = ("fingerprint",)

    def __init__(self, data: TransitionDataset, run: Run) -> None:
        self.fingerprint, self.rng = data.fingerprint(), run.rng("dataset sampling")
        self._buffer = self._filled(data, run, share_frames=True)
        if len(self._buffer) < len(data):  # pictures in no order: nothing to share
            self._buffer = self._filled(data, run, share_frames=False)

    def _filled(self, data: TransitionDataset, run: Run, *, share_frames: bool) -> ReplayBuffer:
        spaces, n = run.spaces, len(data)
        buffer = ReplayBuffer(
            n, spaces.obs_shape, spaces.action_shape, run.device, spaces.obs_dtype, spaces.action_dtype,
            rng=self.rng, reuse=True, frames=spaces.frames, share_frames=share_frames,
        )  # fmt: skip
        cut = torch.zeros(n) if data.truncations is None else data.truncations
        columns = {"obs": data.obs, "actions": data.actions, "rewards": data.rewards, "next_obs": data.next_obs}
        rows = {name: column.numpy() for name, column in {**columns, "dones": data.dones, "truncations": cut}.items()}
        if spaces.image and share_frames:  # one by one: a picture is known again from the row before
            for i in range(n):
                buffer.add(**{name: column[i : i + 1] for name, column in rows.items()})
        else:
            buffer.add(**rows)
        return buffer

    def __len__(self) -> int:
        return len(self._buffer)

    def sample(self, n: int) -> Batch:
        return self._buffer.sample(n)

    def columns(self) -> dict[str, np.ndarray]:
        return self._buffer.columns()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["fingerprint"] != self.fingerprint:
            raise ValueError("the dataset has changed since the run began; it can only go on with the same data")
        super().load_state_dict(state)


def in_agent_units(
    data: TransitionDataset, spaces: Spaces, where: str, *, check_rewards: bool = True
) -> TransitionDataset:
    """Observations, successors and actions as the agent has them; refuses data that is not of this environment."""
    if len(data) == 0:
        raise DatasetError(f"{where} is empty")
    obs, next_obs = (_layout(column.numpy(), spaces, where) for column in (data.obs, data.next_obs))
    given = data.actions.numpy()
    for name, column in (("obs", obs), ("next_obs", next_obs), ("rewards", data.rewards.numpy()), ("actions", given)):
        if name == "rewards" and not check_rewards:
            continue
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            raise DatasetError(f"{where}: {name} holds numbers that are not finite")
    if spaces.action_kind == "box":
        if int(np.prod(given.shape[1:])) != spaces.action_dim:
            raise DatasetError(f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.env_shape}")
        actions = spaces.from_env(given)
        beyond = float(np.abs(actions).max())
        if beyond > 1 + OUTSIDE:
            raise DatasetError(
                f"{where}: actions lie up to {beyond:.3g} times as far out as the environment's bounds (where it has none: as 1); "
                "files hold actions in the environment's own units"
            )
        actions = np.clip(actions, -1, 1)
    else:
        if given.dtype.kind == "f" and not np.array_equal(given, np.round(given)):
            raise DatasetError(f"{where}: actions are not whole numbers, but the environment's are choices")
        if given.size != len(given) * int(np.prod(spaces.action_shape)):
            raise DatasetError(
                f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.action_shape}"
            )
        actions = spaces.from_env(given.reshape(len(given), *spaces.action_shape))
        upper = np.asarray(2 if spaces.action_kind == "multi_binary" else spaces.choices)
        if (actions < 0).any() or (actions >= upper).any():
            raise DatasetError(f"{where}: actions lie beyond those of the environment ({spaces.describe()})")
    return replace(data, obs=obs, next_obs=next_obs, actions=actions)


def _layout(column: np.ndarray, spaces: Spaces, where: str) -> np.ndarray:
    shape = column.shape[1:]
    if shape != spaces.obs_shape and spaces.channels_last and shape[-1:] + shape[:-1] == spaces.obs_shape:
        return np.moveaxis(column, -1, 1)
    if shape != spaces.obs_shape:
        raise DatasetError(f"{where}: observations have shape {shape}, the environment's {spaces.obs_shape}")
    return column.astype(spaces.obs_dtype, copy=False)


class OfflineOptions(DatasetOptions, AlgorithmOptions):
    batch_size: int = opt(256, "transitions per update", ge=1)


class OfflineCriticOptions(OfflineOptions):
    """What offline learners of values have in common."""

    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for every network", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    tau: float = opt(0.005, "how far target networks move, each time they do", gt=0, le=1)
    normalize_observations: bool = opt(False, "scale observations by the data's mean and deviation")

    def shared(self, plan: Blueprint) -> dict[str, Any]:
        """The learner's arguments that follow from these."""
        normalizer = plan.normalizer(self.normalize_observations, clip=float("inf"))
        rates = {"learning_rate": self.learning_rate, "gamma": self.gamma, "tau": self.tau}
        return {**rates, "normalizer": normalizer}

    def model(self, plan: Blueprint, network: Network) -> Any:
        return plan.make(network, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=self.hidden_sizes)


class OfflineLoop(Loop):
    """Learn from a fixed dataset; a step is an update."""

    def __init__(self, run: Run, agent: Learner, cfg: OfflineOptions) -> None:
        super().__init__(run, agent, cfg)
        data = self.select(build_dataset(cfg, run.factory, run.spaces))
        self.data = PriorData(data, run)
        self._source: Source = self.data
        run.refer(data.meta)
        normalizer = getattr(agent, "normalizer", None)
        if normalizer is not None:
            normalizer.fit(data.obs.numpy())

    def select(self, data: TransitionDataset) -> TransitionDataset:
        """Hook: which of the data to learn from."""
        return data

    def expected_updates(self, total_timesteps: int) -> int:
        return total_timesteps

    def __iter__(self) -> Iterator[None]:
        run, rows = self._run, self._cfg.batch_size
        while True:
            run.apply_schedules(self.agent)
            self.prepare()
            run.update(self.agent, self._source.sample(rows))
            run.step += 1
            if crossings((run.step - 1) * rows, run.step * rows, len(self.data)):
                run.end_epoch()
            yield

    def prepare(self) -> None:
        """Hook: before each update."""

    def metrics(self) -> dict[str, float]:
        return {"dataset_size": float(len(self.data))}
