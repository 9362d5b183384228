"""One declaration per algorithm; the CLI, API, exports, docs, schema and tests are read off it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.base.errors import enough_memory
from rl_training.base.options import ConfigError
from rl_training.base.trust import require_trusted
from rl_training.envs.factory import EnvFactory, EnvSource
from rl_training.envs.film import check_recording
from rl_training.envs.options import parse_env_kwargs
from rl_training.envs.spaces import WIDEST, Spaces
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.checkpointing import (
    CheckpointError,
    CheckpointState,
    raise_on_mismatch,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import Entry, get_entry
from rl_training.experiment.runs import create_run_context, open_run_context, write_metadata
from rl_training.models.heads import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Head,
    MaskedCategorical,
    MultiCategorical,
)
from rl_training.models.joint_head import JointHead
from rl_training.models.masks import ActionMasks
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.parts import PartsNormalizer
from rl_training.runtime.building import within_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.counters import reference_returns
from rl_training.runtime.driver import Driver
from rl_training.runtime.engine import resolve_device, set_precision
from rl_training.runtime.evaluation import evaluate, scored
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.options import AlgorithmOptions, Task
from rl_training.runtime.prediction import predict
from rl_training.runtime.run import Run
from rl_training.runtime.saving import refuse_agent_alone
from rl_training.runtime.slim import loadable_state
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.transfer import adopted_options, continued_options, start_from, take_replay
from rl_training.tracking.loggers import Logger, Loggers

__all__ = ["AlgorithmSpec", "Blueprint", "Network", "decided_options", "saved_options", "with_options"]

Network = Callable[..., torch.nn.Module]


@dataclass(frozen=True)
class Blueprint:
    """What ``build`` makes a learner from: spaces, device, and perhaps the caller's own network."""

    spaces: Spaces
    device: torch.device
    env_id: str = ""
    network: Network | None = None  # replaces the algorithm's own network class; called with the same arguments

    def make(self, default: Network, **arguments: Any) -> torch.nn.Module:
        """A network on the run's device, the caller's own if one was given."""
        return (self.network or default)(**arguments).to(self.device)

    def normalizer(self, enabled: bool, *, clip: float = 10.0) -> ObservationNormalizer | None:
        """A scaler of observations, if it is enabled."""
        return self._normalizer(clip).to(self.device) if enabled else None

    def _normalizer(self, clip: float) -> ObservationNormalizer:
        parts = self.spaces.parts if self.spaces.in_rows else None
        if self.spaces.image or (parts is not None and not parts.vector_size):
            problem = "images are scaled by their range; leave it off"
            raise ConfigError([(("algo_kwargs", "normalize_observations"), problem)])
        if parts is not None:
            return PartsNormalizer(parts, clip=clip)
        return ObservationNormalizer(self.spaces.obs_shape, clip=clip)

    @property
    def head(self) -> Head | JointHead:
        """The distribution for the environment's actions; Gaussian for boxes."""
        spaces = self.spaces
        choice = Categorical if spaces.bare is None else MaskedCategorical
        if spaces.action_kind == "discrete":
            return choice(spaces.num_actions)
        if spaces.action_kind == "multi_discrete":
            return MultiCategorical(spaces.choices, choice)
        if spaces.action_kind == "joint":
            return JointHead(spaces.choices)
        binary = spaces.action_kind == "multi_binary"
        return Bernoulli(spaces.num_actions) if binary else DiagonalGaussian(spaces.action_dim)

    @property
    def masks(self) -> ActionMasks | None:
        """The masks of actions in observations, where the environment gives some."""
        return None if self.spaces.bare is None or self.spaces.parts is None else ActionMasks(self.spaces.parts)

    @property
    def shape(self) -> dict[str, Any]:
        """``obs_dim`` for vectors, ``obs_shape`` for images, ``obs_parts`` for a mix or masks: what networks take."""
        if self.spaces.in_rows:
            return {"obs_parts": self.spaces.parts}
        return {"obs_shape": self.spaces.obs_shape} if self.spaces.image else {"obs_dim": self.spaces.obs_dim}


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """An algorithm: its options, how its learner is built, the loop it learns in, and the spaces it can take."""

    name: str
    config: type[AlgorithmOptions]
    build: Callable[[Any, Blueprint], Learner]
    loop: Callable[[Run, Any, Any], Loop]
    recurrent: Any = None  # the loop where the option ``recurrent`` gives the networks a memory
    shared: Any = None  # the loop where several agents of an environment share the policy; None: refused
    obs: tuple[str, ...] = ("vector",)
    actions: tuple[str, ...] = ("discrete", "box")
    masks: bool = False  # whether it takes masks of actions

    @property
    def entry(self) -> Entry:
        return get_entry(self.name)

    def options(self, config: TrainConfig) -> AlgorithmOptions:
        """The algorithm's options, validated, and the environment's too: mistakes show before anything is made."""
        if config.algo != self.name:
            problem = f"{self.name} cannot take a config of {config.algo}; use {config.algo}'s own"
            raise ConfigError([(("algo",), problem)])
        for training in (True, False):
            parse_env_kwargs(config.env_kwargs, training=training)
        try:
            return self.config(**config.algo_kwargs)
        except ConfigError as error:
            raise error.under("algo_kwargs") from None

    def chosen(
        self, config: TrainConfig, factory: EnvFactory, spaces: Spaces, network: Network | None = None
    ) -> dict[str, Any]:
        """The options that a new run takes from the agent that it starts from, or from its task, because the config
        leaves them open."""
        form = {} if config.init_from is None else adopted_options(config, self.config, own=network is None)
        given = {**form, **config.algo_kwargs}
        task = Task(config.env_id, spaces, config.num_envs, config.total_timesteps, given, factory.time_limit)
        suited = self.config.for_task(task)
        if config.init_from is not None:
            suited |= continued_options(config, self.config)
        return form | {name: suited[name] for name in self.config.BY_TASK if name in suited and name not in given}

    def loop_for(self, options: AlgorithmOptions, spaces: Spaces) -> Callable[[Run, Any, Any], Loop]:
        """The loop for networks with or without a memory, and for one agent or several."""
        memory = getattr(options, "recurrent", None) is not None
        if spaces.agents and memory:
            raise ConfigError([(("algo_kwargs", "recurrent"), "is for environments with one agent")])
        chosen: Any = self.shared if spaces.agents else self.recurrent if memory else self.loop
        return chosen  # type: ignore[no-any-return]

    def complete(self, config: TrainConfig) -> TrainConfig:
        """The config as a new run takes it, with the options that its task decides."""
        factory = EnvFactory(config.env_id, config.env_kwargs)
        return with_options(config, self.chosen(config, factory, factory.spaces()))

    def blueprint(self, config: TrainConfig, factory: EnvFactory, network: Network | None, device: str) -> Blueprint:
        """What ``build`` needs; refuses an environment whose spaces the algorithm cannot take."""
        return self._plan(config, factory.spaces(), network, device)

    def require(self, spaces: Spaces, env_id: str) -> None:
        """Refuse spaces that the algorithm cannot take (ValueError)."""
        taken: dict[str, Any] = {"obs": self.obs, "actions": self.actions, "masks": self.masks}
        spaces.require(self.name, env_id, **taken, shared=self.shared is not None)

    def _plan(self, config: TrainConfig, spaces: Spaces, network: Network | None, device: str) -> Blueprint:
        self.require(spaces, config.env_id)
        return Blueprint(spaces, resolve_device(device), config.env_id, network)

    def _built(self, options: AlgorithmOptions, plan: Blueprint, state: CheckpointState | None) -> Learner:
        """The learner, with networks of its own no larger than the checkpoint it is made for."""
        limits = within_checkpoint(state) if state is not None and plan.network is None else contextlib.nullcontext()
        with enough_memory("networks of these options"), limits:
            return self.build(options, plan)

    def train(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: list[Callback] | None = None,
        loggers: Sequence[Logger] | None = None,
        env: EnvSource | None = None,
        network: Network | None = None,
        run_dir: Path | None = None,
    ) -> TrainResult:
        """Train from the start, or on from ``checkpoint_state``; in a new directory, or in ``run_dir``, which is
        locked already."""
        if checkpoint_state is not None:
            self._check_resumed(checkpoint_state, config, env)
        factory = self._checked(config, env, loggers or ())
        plan = self.blueprint(config, factory, network, config.device)
        chosen = {} if checkpoint_state is not None else self.chosen(config, factory, plan.spaces, network)
        config = with_options(config, chosen if checkpoint_state is None else saved_options(checkpoint_state))
        options = self.options(config)
        if plan.spaces.form is not None:
            _say_how_integers_are_taken(config.env_id, plan.spaces)
        if plan.spaces.unbounded:
            _warn_of_unbounded_actions(config.env_id, plan.spaces)
        hooks = [*build_control_callbacks(config), *(callbacks or ())]
        run = Run(
            config, options, factory, plan.spaces, device=plan.device, callbacks=hooks, loggers=loggers, chosen=chosen
        )
        if checkpoint_state is not None:
            run.decided = decided_options(checkpoint_state)
        agent = self._built(options, plan, checkpoint_state)
        if checkpoint_state is None and config.init_from is not None:
            run.origin = start_from(agent, config, own=network is None)
        if config.precision != "float32":
            set_precision(agent, config.precision)
        with contextlib.closing(self.loop_for(options, plan.spaces)(run, agent, options)) as loop:
            if run.origin is not None and config.init_replay:
                take_replay(loop, config, run.origin)
            context = open_run_context(run_dir) if run_dir is not None else create_run_context(config, run_suffix)
            if run.origin is not None:
                write_metadata(context, {"parent": run.origin.facts()})
            return Driver(run, loop, context).drive(checkpoint_state, locked=run_dir is not None)

    def _checked(self, config: TrainConfig, env: EnvSource | None, loggers: Sequence[Logger]) -> EnvFactory:
        """Refuse every mistake that shows before anything is made; returns what makes the environments."""
        self.options(config)
        for name in ("init_parts", "init_optimizer", "init_replay"):
            if getattr(config, name) and config.init_from is None:
                raise ConfigError([((name,), "does nothing without init_from")])
        if config.async_collection and not self.config.ASYNC:
            problem = f"{self.name} waits for every step; only off-policy algorithms without a model learn meanwhile"
            raise ConfigError([(("async_collection",), problem)])
        Loggers.check(config, loggers)
        watchdog = None if config.env_limit_seconds is None else Watchdog(config.env_limit_seconds)
        factory = EnvFactory(env if env is not None else config.env_id, config.env_kwargs, watchdog=watchdog)
        if config.record_video:
            check_recording(factory, config.env_id)
        return factory

    def _check_resumed(self, state: CheckpointState, config: TrainConfig, env: EnvSource | None) -> None:
        """Refuse a checkpoint from which a run of this config cannot go on."""
        self.options(config)
        self._check_origin(state)
        refuse_agent_alone(state)
        _check_env(state, config, env)
        _require_num_envs(state, config.num_envs)

    def load(
        self,
        config: TrainConfig,
        checkpoint_state: CheckpointState,
        device: str = "auto",
        *,
        env: EnvSource | None = None,
        network: Network | None = None,
        spaces: Spaces | None = None,
    ) -> tuple[Learner, Spaces]:
        """The trained agent alone, and the spaces it acts in: what evaluate and predict need.

        No environment is made where the ``spaces`` are known.
        """
        self._check_origin(checkpoint_state)
        options = self.options(with_options(config, saved_options(checkpoint_state)))
        if spaces is None:
            _check_env(checkpoint_state, config, env)
            spaces = EnvFactory(env if env is not None else config.env_id, config.env_kwargs).spaces()
        plan = self._plan(config, spaces, network, device)
        agent = self._built(options, plan, checkpoint_state)
        with raise_on_mismatch():
            agent.load_state_dict(loadable_state(agent, checkpoint_state))
        agent.set_eval_mode()
        return agent, plan.spaces

    def _check_origin(self, state: CheckpointState) -> None:
        """Refuse the checkpoint of another algorithm."""
        algo = state.config.get("algo", self.name)
        if algo != self.name:
            raise CheckpointError(f"{self.name} cannot go on from a checkpoint of {algo}; use {algo}'s own")

    # ---- the four functions of the public contract

    @property
    def train_fn(self) -> Callable[..., TrainResult]:
        return self.train

    def load_fn(self, config: TrainConfig, checkpoint_state: CheckpointState, device: str = "auto") -> Learner:
        return self.load(config, checkpoint_state, device)[0]

    def evaluate_fn(
        self,
        config: TrainConfig,
        checkpoint_state: CheckpointState,
        device: str = "auto",
        num_episodes: int | None = None,
        deterministic: bool = True,
    ) -> dict[str, float]:
        agent = self.load_fn(config, checkpoint_state, device)
        with raise_on_mismatch():
            references = reference_returns(checkpoint_state.trainer_state)
        factory = EnvFactory(config.env_id, config.env_kwargs)
        episodes = config.eval_episodes if num_episodes is None else num_episodes
        how: dict[str, Any] = {"seed": config.seed, "log_info": config.log_info}
        metrics = evaluate(agent, factory, episodes=episodes, deterministic=deterministic, **how)
        return scored(metrics, references)

    def predict_fn(
        self, config: TrainConfig, checkpoint_state: CheckpointState, device: str, obs: Any, deterministic: bool = True
    ) -> Any:
        agent, spaces = self.load(config, checkpoint_state, device)
        return predict(agent, spaces, obs, deterministic=deterministic)


def with_options(config: TrainConfig, options: dict[str, Any]) -> TrainConfig:
    """The config with further algorithm options, where it does not set them itself."""
    return config.replace(algo_kwargs={**options, **config.algo_kwargs})


def saved_options(state: CheckpointState) -> dict[str, Any]:
    """The algorithm options that a checkpoint's run was made with, those chosen by its task included."""
    return dict(state.config.get("algo_kwargs", {}))


def decided_options(state: CheckpointState) -> tuple[str, ...]:
    """Which of a run's options its config had left open; none for a checkpoint that does not say."""
    names = state.metadata.get("chosen")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _warn_of_unbounded_actions(env_id: str, spaces: Spaces) -> None:
    warnings.warn(
        f"the actions of {env_id} have no bounds in some dimensions {list(spaces.unbounded)} (or bounds further apart "
        f"than {2 * WIDEST:,.0f}): there, actions have the environment's units, and most algorithms keep them within "
        "[-1, 1]",
        stacklevel=3,
    )


def _say_how_integers_are_taken(env_id: str, spaces: Spaces) -> None:
    assert spaces.form is not None
    how = {part.chosen for part in spaces.form.parts if part.integers}
    if how:
        taken = "choices" if how == {True} else "numbers that are rounded" if how == {False} else "choices or rounded"
        warnings.warn(
            f"some actions of {env_id} are whole numbers in a Box, and are taken as {taken}: {spaces.form.describe()}; "
            "env_kwargs.integer_actions (choices or rounded) changes it",
            stacklevel=3,
        )


def _require_num_envs(state: CheckpointState, num_envs: int) -> None:
    """Refuse another number of environments than the checkpoint's before any is made."""
    collector = (state.buffer_state or {}).get("collector")
    envs = collector.get("envs") if isinstance(collector, dict) else None
    if isinstance(envs, list) and len(envs) != num_envs:
        raise CheckpointError(f"the run has {len(envs)} environments, not {num_envs}: num_envs cannot change")


def _check_env(state: CheckpointState, config: TrainConfig, env: EnvSource | None) -> None:
    """The id of an environment that was given as an object may stand for another one.

    An id that comes from the checkpoint is made only if its module is trusted; the same holds for its wrappers.
    """
    of_file = config.env_id == state.config.get("env_id")
    if of_file or config.env_kwargs == state.config.get("env_kwargs"):
        require_trusted("the checkpoint", config.env_id if of_file and env is None else None, config.env_kwargs)
    if env is None and state.metadata.get("own_env"):
        warnings.warn(
            "this agent was trained on an environment of your own: pass it again (env=...), or it meets "
            f"{config.env_id!r} as it is registered",
            stacklevel=4,
        )
