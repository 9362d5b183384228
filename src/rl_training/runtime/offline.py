"""Where prior data comes from, as options, and the loop that learns from nothing else."""

from __future__ import annotations

import re
import warnings
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
from rl_training.envs.factory import EnvFactory, parse_env_kwargs
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Options, Sizes, TrainConfig, opt
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluation import REFERENCES
from rl_training.runtime.loops import Loop
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import Blueprint, Network
from rl_training.state import Rng, Stateful

Kind = Literal["random", "npz", "minari", "hdf5"]
Mismatch = Literal["refuse", "allow"]
Units = Literal["auto", "environment", "unit"]
OUTSIDE = 1e-3  # how far beyond its bounds, in agent units, an action may lie before it is worth a word
FOR_FILES = ("dataset_env_mismatch", "dataset_episode_steps", "dataset_action_units")


class SourceOptions(Options):
    """One source of transitions."""

    TITLE = "a dataset"
    dataset_kind: Kind = opt("random", "random (collected on the spot), npz, hdf5 (D4RL's layout) or minari")
    dataset_path: str | None = opt(None, "the file, for npz and hdf5")
    dataset_id: str | None = opt(None, "the dataset's name, for minari")
    dataset_download: bool = opt(False, "let Minari fetch the dataset if it is not there")
    dataset_size: int = opt(10_000, "transitions to collect, for random", ge=1)
    dataset_seed: int = opt(0, "seed of the collection, for random", ge=0)
    dataset_env_mismatch: Mismatch = opt(
        "refuse", "data that names another environment: refuse, or allow (its reference returns are then not used)"
    )
    dataset_episode_steps: int | None = opt(
        None, "for files that mark no time-outs: steps after which episodes were cut; null: the time limit", ge=1
    )
    dataset_action_units: Units = opt(
        "auto",
        "boxes: environment (its own units), unit (the file scales them to [-1, 1]), or auto: refuse what looks so",
    )

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
        for name in FOR_FILES:
            idle = kind == "random" or (kind == "minari" and name == "dataset_episode_steps")
            if idle and getattr(self, name) != SourceOptions.model_fields[name].default and not self._has_parts():
                raise ValueError(f"{name} does nothing for {kind} data")
        return self

    def _has_parts(self) -> bool:
        """Whether these options hold for several sources, which have kinds of their own."""
        return False


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

    def _has_parts(self) -> bool:
        return self.dataset_mix is not None

    @model_validator(mode="after")
    def _one_or_many(self) -> Any:
        if self.dataset_mix is not None:
            if not self.dataset_mix:
                raise ValueError("dataset_mix needs at least one source")
            if "dataset_kind" in self.model_fields_set or self.dataset_path or self.dataset_id:
                raise ValueError("give one source (dataset_kind and its path or id) or dataset_mix, not both")
            for name in ("dataset_episode_steps", "dataset_action_units"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} belongs to the parts of dataset_mix, which may differ in it")
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
        allowed = options.dataset_env_mismatch == "allow"
        parts = [read_source(source, factory, spaces, allow_other_env=allowed) for source in options.dataset_mix]
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
    source: SourceOptions,
    factory: EnvFactory,
    spaces: Spaces,
    *,
    check_rewards: bool = True,
    allow_other_env: bool = False,
) -> TransitionDataset:
    """One source's transitions in the agent's units; refuses what is not of this environment."""
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
    data = of_environment(data, factory, where, allow=allowed)
    return in_agent_units(data, spaces, where, check_rewards=check_rewards, units=source.dataset_action_units)


def time_limits(factory: EnvFactory) -> set[int]:
    """After how many steps episodes are cut, in this run and by the environment's own limit; empty if neither is known."""
    own = replace(factory, env_kwargs=_without_limit(factory.env_kwargs))
    return {limit for limit in (factory.time_limit(), own.time_limit()) if limit is not None}


def _without_limit(kwargs: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    return {name: _without_limit(value) if name == "training" else value for name, value in rest.items()}


def environment_id(factory: EnvFactory) -> str | None:
    """The registered name of the run's environment; None if it was given as an object that has none."""
    if isinstance(factory.source, str):
        return factory.source.rpartition(":")[2]  # without the module that registers it
    env = factory.make(training=False)
    try:
        return env.spec.id if env.spec is not None else None
    finally:
        env.close()


def is_of(meta: dict[str, Any], factory: EnvFactory) -> bool:
    """Whether data with these facts was recorded in the run's environment, as far as either of them says."""
    theirs = meta.get("env_id")
    if theirs is None:
        return True
    ours = environment_id(factory)
    return ours is None or str(theirs).rpartition(":")[2] == ours


def of_environment(data: TransitionDataset, factory: EnvFactory, where: str, *, allow: bool) -> TransitionDataset:
    """The data, if it names the run's environment or none. That of another one is refused unless allowed, that of another
    version has a warning, and the reference returns of neither are kept: they would be those of other scores."""
    if is_of(data.meta, factory):
        if data.meta.get("env_id") is not None and environment_id(factory) is None:
            warnings.warn(
                f"{where} was recorded in {data.meta['env_id']}; whether that is the run's environment, which has no id, cannot be told",
                stacklevel=2,
            )
        _compare_options(data.meta, factory, where)
        return data
    theirs, ours = str(data.meta["env_id"]).rpartition(":")[2], str(environment_id(factory))
    version = re.compile(r"-v\d+$")
    same_name = version.sub("", theirs) == version.sub("", ours)
    if not same_name and not allow:
        raise DatasetError(
            f"{where} was recorded in {theirs}, not in {ours}; dataset_env_mismatch: allow learns from it all the same"
        )
    what = "another version: rewards and terminations may differ" if same_name else "another environment"
    warnings.warn(
        f"{where} was recorded in {theirs}, the run's environment is {ours}, {what}; its reference returns are not used",
        stacklevel=2,
    )
    return replace(data, meta={name: value for name, value in data.meta.items() if name not in REFERENCES})


def _compare_options(meta: dict[str, Any], factory: EnvFactory, where: str) -> None:
    """Warn where the environment was made with other arguments than the run's; how long and how it is wrapped is left aside."""
    recorded = meta.get("env_kwargs")
    if meta.get("env_id") is None or not isinstance(recorded, dict) or not isinstance(factory.source, str):
        return
    theirs, ours = (parse_env_kwargs(kwargs, training=False)[1] for kwargs in (recorded, factory.env_kwargs))
    names = [name for name in {**theirs, **ours} if name != "render_mode" and theirs.get(name) != ours.get(name)]
    if names:
        differ = ", ".join(f"{name}={theirs.get(name)!r} (the run: {ours.get(name)!r})" for name in names)
        warnings.warn(f"{where} was recorded in an environment of other options: {differ}", stacklevel=3)


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
    data: TransitionDataset,
    spaces: Spaces,
    where: str,
    *,
    check_rewards: bool = True,
    units: Units = "environment",
) -> TransitionDataset:
    """Observations, successors and actions as the agent has them; refuses data that is not of this environment.

    ``units`` says what a box's actions are in: the environment's units, [-1, 1], or (auto) the former unless they look like the latter.
    """
    if len(data) == 0:
        raise DatasetError(f"{where} is empty")
    obs, next_obs = (_layout(column.numpy(), spaces, where) for column in (data.obs, data.next_obs))
    given = data.actions.numpy()
    for name, column in (("obs", obs), ("next_obs", next_obs), ("rewards", data.rewards.numpy()), ("actions", given)):
        if name == "rewards" and not check_rewards:
            continue
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            bad = ~np.isfinite(column).reshape(len(column), -1).all(1)
            raise DatasetError(
                f"{where}: {name} holds numbers that are not finite, in {int(bad.sum()):,} rows, the first of them row {int(bad.argmax()):,}"
            )
    if spaces.action_kind == "box":
        actions = _box_actions(data, spaces, where, units)
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


def _box_actions(data: TransitionDataset, spaces: Spaces, where: str, units: Units) -> np.ndarray:
    given = data.actions.numpy()
    if int(np.prod(given.shape[1:])) != spaces.action_dim:
        raise DatasetError(f"{where}: actions have shape {given.shape[1:]}, the environment's {spaces.env_shape}")
    rows = given.reshape(len(given), spaces.action_dim).astype(np.float32)
    recorded = "behaviour" in data.meta or "minari_id" in data.meta  # by us or Minari: as the environment took them
    if units == "auto" and not recorded and _look_scaled(rows, spaces):
        raise DatasetError(
            f"{where}: every action lies within [-1, 1] and some at its edge, but the environment's bounds are wider; say whether "
            "they are scaled (dataset_action_units: unit) or in the environment's own units (environment)"
        )
    actions = rows if units == "unit" else spaces.from_env(given)
    beyond = float(np.abs(actions).max())
    if beyond > 1 + OUTSIDE:
        stated = "scaled to [-1, 1], as was said" if units == "unit" else "in the environment's own units"
        raise DatasetError(
            f"{where}: actions lie up to {beyond:.3g} times as far out as the environment's bounds (where it has none: as 1); "
            f"they should be {stated}"
        )
    return np.clip(actions, -1, 1)


def _look_scaled(rows: np.ndarray, spaces: Spaces) -> bool:
    """Whether (N, A) actions seem to be in [-1, 1] although the bounds lie further out: they come close to 1, never beyond it."""
    wider = np.isfinite(spaces.low) & np.isfinite(spaces.high) & (spaces.low < -1.05) & (spaces.high > 1.05)
    if not wider.any() or len(rows) < 100:
        return False
    return 0.98 < float(np.abs(rows[:, wider]).max()) <= 1 + OUTSIDE


def _layout(column: np.ndarray, spaces: Spaces, where: str) -> np.ndarray:
    shape = column.shape[1:]
    if shape != spaces.obs_shape and spaces.channels_last and shape[-1:] + shape[:-1] == spaces.obs_shape:
        column = np.moveaxis(column, -1, 1)
    elif shape != spaces.obs_shape:
        raise DatasetError(f"{where}: observations have shape {shape}, the environment's {spaces.obs_shape}")
    if spaces.image and column.dtype != np.uint8:
        low, high = float(column.min()), float(column.max())
        whole = column.dtype.kind != "f" or np.array_equal(column, np.round(column))
        if low < 0 or high > 255 or not whole:
            raise DatasetError(
                f"{where}: pictures must be whole numbers from 0 to 255, got {column.dtype} from {low:g} to {high:g}"
            )
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
