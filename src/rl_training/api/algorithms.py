"""Managed classes, one per registry entry: ``PPO(config).learn()`` or ``PPO("CartPole-v1", total_timesteps=...)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from rl_training.base.options import ConfigError, unknown
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self, Unpack  # of the standard library from Python 3.11 on

    from rl_training.algorithms.base import Learner
    from rl_training.api.curves import LearningCurve, Picture
    from rl_training.envs.factory import EnvSource
    from rl_training.envs.spaces import Spaces
    from rl_training.experiment.checkpointing import CheckpointState
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.spec import AlgorithmSpec, Network
    from rl_training.runtime.trainer import TrainResult
    from rl_training.tracking.loggers import Logger

    Observation = npt.ArrayLike | Mapping[str, npt.ArrayLike]  # one, or a batch of them

    class Episode(TypedDict, total=False):
        """What ``predict`` takes of the episode, beside the observation."""

        state: npt.ArrayLike | None
        """what an agent carries from observation to observation, as ``return_state=True`` gave it"""
        episode_start: npt.ArrayLike | None
        """whether an episode starts; for a batch: a truth value for each row, whose state is then reset"""
        action_mask: npt.ArrayLike | None
        """which actions are allowed, to agents that learned with masks; for a batch: a row each"""


class ManagedAlgorithm:
    """An algorithm with its run: learn, evaluate, predict, save, load.

    Takes a TrainConfig, or an environment (id, object or factory) with run fields and algorithm options as keywords.
    ``network`` replaces the algorithm's network class; ``env`` replaces the environment that the config names.
    """

    algo_name: str

    def __init__(
        self,
        config: TrainConfig | EnvSource,
        *,
        env: EnvSource | None = None,
        network: Network | None = None,
        **options: object,
    ) -> None:
        if not isinstance(config, TrainConfig):
            if not isinstance(config, str):
                from rl_training.envs.factory import env_name

                env, config = config, env_name(config)
            config = self._short_form(config, options)
        elif options:
            raise ConfigError([((name,), "belongs into the config when one is given") for name in options])
        if config.algo != self.algo_name:
            raise ValueError(f"{type(self).__name__} needs algo={self.algo_name!r}, got {config.algo!r}")
        self.config, self._env, self._network = config, env, network
        self._spec.options(config)
        self._agent: Learner | None = None
        self._spaces: Spaces | None = None
        self._checkpoint: Path | None = None
        self._loaded = False  # whether the agent was loaded, and learning makes a new run
        self._as_opened = config.plain()  # the config that the agent, or its run, was made with
        self._references: dict[str, float] = {}

    @classmethod
    def _short_form(cls, env_id: str, options: dict[str, Any]) -> TrainConfig:
        fields = {
            k: v
            for k, v in options.items()
            if k in TrainConfig.model_fields and k not in ("algo", "env_id", "algo_kwargs")
        }
        rest = {k: v for k, v in options.items() if k not in fields and k != "algo_kwargs"}
        known = get_algorithm_spec(cls.algo_name).config.model_fields
        wrong = [name for name in rest if name not in known]
        if wrong:
            names = [*known, *TrainConfig.model_fields]
            raise ConfigError([((name,), unknown(name, names, cls.algo_name)) for name in wrong])
        return TrainConfig(
            algo=cls.algo_name, env_id=env_id, **fields, algo_kwargs={**options.get("algo_kwargs", {}), **rest}
        )

    @property
    def _spec(self) -> AlgorithmSpec:
        return get_algorithm_spec(self.algo_name)

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint that the agent was saved to or loaded from."""
        if self._checkpoint is None:
            raise ValueError("no checkpoint yet; call learn() or load() first")
        return self._checkpoint

    @property
    def agent(self) -> Learner:
        """The learner with its trained networks."""
        if self._agent is None:
            raise ValueError("nothing trained yet; call learn() or load() first")
        if self.config.algo_kwargs != self._options_as_opened:  # changed since: the agent is made with the new ones
            self._open(self.checkpoint_path)
        return self._agent

    def learn(
        self, callbacks: Sequence[Callback] | None = None, loggers: Sequence[Logger] | None = None
    ) -> TrainResult:
        """Train to ``config.total_timesteps``; called again, go on with the same run where it was.

        A loaded agent starts a new run, with its networks and everything else anew; the run that it comes from is left
        as it is (``resume_training`` goes on with that). Options changed on ``config`` count: for a run that goes on,
        those that may change while it does; others are refused.
        """
        if isinstance(callbacks, int):
            raise TypeError("learn() takes callbacks; the number of steps is the option total_timesteps")
        given: dict[str, Any] = {"callbacks": callbacks, "loggers": loggers, "env": self._env, "network": self._network}
        new = self._loaded or self._checkpoint is None
        result = self._spec.train(self.config, **given) if new else self._go_on(given)
        self._open(result.checkpoint_path)
        self._loaded, self._as_opened = False, self.config.plain()
        return result

    def _go_on(self, given: dict[str, Any]) -> TrainResult:
        """Train on with the run that was trained before, with what has changed on the config since."""
        from rl_training.runtime.workflows import resume_training

        changes = self._changes()
        return resume_training(self.checkpoint_path, output_dir=changes.pop("output_dir", None), set=changes, **given)

    def _changes(self) -> dict[str, Any]:
        """What was changed on the config since the agent was loaded or learned, by dotted name; options that were
        removed have their defaults again."""
        before, now = self._as_opened, self.config.plain()
        changes = {name: value for name, value in now.items() if name != "algo_kwargs" and value != before[name]}
        old, new, fields = before["algo_kwargs"], now["algo_kwargs"], self._spec.config.model_fields
        names = [name for name in {**old, **new} if old.get(name, ...) != new.get(name, ...)]
        return changes | {f"algo_kwargs.{n}": new[n] if n in new else fields[n].get_default() for n in names}

    def evaluate(self, num_episodes: int | None = None, deterministic: bool = True) -> dict[str, float]:
        """Play whole episodes in environments of evaluation: returns, lengths and scores."""
        from rl_training.envs.factory import EnvFactory
        from rl_training.runtime.evaluation import evaluate, scored

        factory = EnvFactory(self._env if self._env is not None else self.config.env_id, self.config.env_kwargs)
        episodes = num_episodes if num_episodes is not None else self.config.eval_episodes
        how: dict[str, Any] = {
            "seed": self.config.seed,
            "deterministic": deterministic,
            "log_info": self.config.log_info,
        }
        metrics = evaluate(self.agent, factory, episodes=episodes, **how)
        return scored(metrics, self._references)

    def curve(self) -> LearningCurve:
        """The returns of the agent's run so far: arrays of steps and values, of training episodes and evaluations."""
        from rl_training.api.curves import learning_curve
        from rl_training.experiment.runs import run_dir_of

        run_dir = run_dir_of(self.checkpoint_path)
        if run_dir is None:
            raise ValueError(f"{self.checkpoint_path} lies in no run directory: there is no curve of it")
        return learning_curve(run_dir / "metrics.jsonl")

    def plot(self, path: str | Path | None = None) -> Picture:
        """The curve as a picture, which notebooks show; saved too if a path is given, which ends in .svg."""
        picture = self.curve().plot(title=f"{self.config.algo} on {self.config.env_id}")
        if path is not None:
            picture.save(path)
        return picture

    @overload
    def predict(
        self,
        obs: Observation,
        deterministic: bool = True,
        *,
        return_state: Literal[False] = False,
        **episode: Unpack[Episode],
    ) -> int | np.ndarray: ...

    @overload
    def predict(
        self, obs: Observation, deterministic: bool = True, *, return_state: Literal[True], **episode: Unpack[Episode]
    ) -> tuple[int | np.ndarray, np.ndarray | None]: ...

    def predict(
        self,
        obs: Observation,
        deterministic: bool = True,
        *,
        state: npt.ArrayLike | None = None,
        episode_start: npt.ArrayLike | None = None,
        return_state: bool = False,
        action_mask: npt.ArrayLike | None = None,
    ) -> int | np.ndarray | tuple[int | np.ndarray, np.ndarray | None]:
        """Choose the action for one observation (an int, or an array in the environment's units), or for a batch.

        ``return_state=True`` returns (action, state): what Dreamer, PETS and agents with a memory carry to the next
        observation of the episode, given back as ``state``; None for other agents. ``episode_start`` (for a batch: a
        truth value for each row) resets the state of rows whose episode starts. ``action_mask`` (for a batch: a row
        each) says which actions are allowed, to agents that learned with masks.
        """
        from rl_training.runtime.prediction import predict

        agent, spaces = self.agent, self._spaces  # the agent first: it may be opened anew
        assert spaces is not None  # they come with the agent
        given: dict[str, Any] = {"state": state, "episode_start": episode_start, "return_state": return_state}
        given["action_mask"] = action_mask
        action: int | np.ndarray = predict(agent, spaces, obs, deterministic=deterministic, **given)
        return action

    def save(self, path: str | Path, *, include_buffers: bool = False) -> Path:
        """Save the agent and its config; with ``include_buffers``, everything that a resumed run needs, whose config
        may have changed as far as a run that goes on may change."""
        from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
        from rl_training.experiment.yaml_config import apply_overrides
        from rl_training.runtime.workflows import changed_config, config_of

        state = load_checkpoint(self.checkpoint_path, buffers=include_buffers)
        changes = self._changes()
        if include_buffers:
            state.config = changed_config(config_of(state, env=self._env), changes).plain()
        else:
            state.buffer_state = None
            state.config = apply_overrides(state.config, changes)
            if changes:  # what cannot be loaded again is not saved
                self._spec.load(config_of(state, env=self._env), state, "cpu", env=self._env, network=self._network)
        return save_checkpoint(path, state)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        env: EnvSource | None = None,
        network: Network | None = None,
        output_dir: str | Path | None = None,
        trust: str | Iterable[str] = (),
    ) -> Self:
        """Load a saved agent, a checkpoint or the newest one of a run; an environment or network of your own must be
        given again.

        ``learn`` then makes a new run, in ``output_dir``: by default beside the run that the checkpoint lies in, or in
        ``runs``, whatever folder the file names. ``trust`` names modules that the file's environment may be imported
        from.
        """
        from rl_training.base.trust import trust_modules
        from rl_training.experiment.runs import find_checkpoint, run_dir_of
        from rl_training.runtime.spec import decided_options
        from rl_training.runtime.workflows import config_of

        trust_modules(trust)
        found, state = find_checkpoint(path, buffers=False)
        parent = run_dir_of(found)
        beside = parent.parent if parent is not None else TrainConfig.model_fields["output_dir"].default
        config = config_of(state, env=env)
        left_open = decided_options(state)  # by the config that the run was made with: the new one decides anew
        config = config.replace(
            algo_kwargs={name: value for name, value in config.algo_kwargs.items() if name not in left_open},
            init_from=str(found),
            init_parts=(),
            init_optimizer=False,
            init_replay=False,
            output_dir=output_dir if output_dir is not None else beside,
        )
        managed = cls(config, env=env, network=network)
        managed._open(found, state, device)
        managed._loaded = True
        return managed

    def _open(self, path: Path, state: CheckpointState | None = None, device: str | None = None) -> None:
        """Load the agent of a checkpoint, so that predictions read no file."""
        from rl_training.experiment.checkpointing import load_checkpoint, raise_on_mismatch
        from rl_training.runtime.counters import reference_returns

        state = state or load_checkpoint(path, buffers=False)
        self._agent, self._spaces = self._spec.load(
            self.config, state, device or self.config.device, env=self._env, network=self._network
        )
        with raise_on_mismatch():
            self._references = reference_returns(state.trainer_state)
        self._checkpoint, self._options_as_opened = path, deepcopy(self.config.algo_kwargs)


_NAMES = {entry.public: name for name, entry in ALGORITHMS.items()}
__all__ = ["ManagedAlgorithm", *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:  # with its options as keywords, which takes a file of its own
        return getattr(import_module("rl_training.api.typed"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    from rl_training.api.typed import BC as BC
    from rl_training.api.typed import CQL as CQL
    from rl_training.api.typed import DQN as DQN
    from rl_training.api.typed import FQF as FQF
    from rl_training.api.typed import GAIL as GAIL
    from rl_training.api.typed import IQL as IQL
    from rl_training.api.typed import IQN as IQN
    from rl_training.api.typed import MBPO as MBPO
    from rl_training.api.typed import MOPO as MOPO
    from rl_training.api.typed import PETS as PETS
    from rl_training.api.typed import PPG as PPG
    from rl_training.api.typed import PPO as PPO
    from rl_training.api.typed import QRDQN as QRDQN
    from rl_training.api.typed import RLPD as RLPD
    from rl_training.api.typed import SAC as SAC
    from rl_training.api.typed import TD3BC as TD3BC
    from rl_training.api.typed import Dreamer as Dreamer
