"""Managed classes, one per registry entry: ``PPO(config).learn()`` or ``PPO("CartPole-v1", total_timesteps=...)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.options import ConfigError, unknown
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec, get_entry

if TYPE_CHECKING:
    from rl_training.algorithms.base import Learner
    from rl_training.envs.factory import EnvSource
    from rl_training.envs.spaces import Spaces
    from rl_training.experiment.checkpointing import CheckpointState
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.spec import AlgorithmSpec, Network
    from rl_training.runtime.trainer import TrainResult
    from rl_training.tracking.loggers import Logger


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
        **options: Any,
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
        return self._agent

    def learn(self, callbacks: list[Callback] | None = None, loggers: Sequence[Logger] | None = None) -> TrainResult:
        """Train to ``config.total_timesteps``; called again, go on with the same run where it was.

        A loaded agent starts a new run, with its networks and everything else anew; the run that it comes from is left
        as it is (``resume_training`` goes on with that).
        """
        from rl_training.runtime.workflows import resume_training

        given = {"callbacks": callbacks, "loggers": loggers}
        context: dict[str, Any] = {**given, "env": self._env, "network": self._network}
        if self._loaded or self._checkpoint is None:
            result = self._spec.train(self.config, **context)
        else:
            result = resume_training(self._checkpoint, total_timesteps=self.config.total_timesteps, **context)
        self._open(result.checkpoint_path)
        self._loaded = False
        return result

    def evaluate(self, num_episodes: int | None = None, deterministic: bool = True) -> dict[str, float]:
        """Play whole episodes in environments of evaluation: returns, lengths and scores."""
        from rl_training.envs.factory import EnvFactory
        from rl_training.runtime.evaluation import evaluate, scored

        factory = EnvFactory(self._env if self._env is not None else self.config.env_id, self.config.env_kwargs)
        episodes = num_episodes if num_episodes is not None else self.config.eval_episodes
        seed = self.config.seed
        metrics = evaluate(self.agent, factory, episodes=episodes, deterministic=deterministic, seed=seed)
        return scored(metrics, self._references)

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        *,
        state: Any = None,
        episode_start: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Choose the action for one observation (an int, or an array in the environment's units), or for a batch.

        ``return_state=True`` returns (action, state): what Dreamer and PETS carry to the next observation of the
        episode, given back as ``state``; None for other agents. ``episode_start`` (for a batch: a truth value for each
        row) resets the state of rows whose episode starts.
        """
        from rl_training.runtime.prediction import predict

        return predict(
            self.agent, self._spaces, obs, deterministic=deterministic,  # type: ignore[arg-type]
            state=state, episode_start=episode_start, return_state=return_state,
        )  # fmt: skip

    def save(self, path: str | Path, *, include_buffers: bool = False) -> Path:
        """Save the agent and its config; with ``include_buffers``, everything that a resumed run needs."""
        from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint

        state = load_checkpoint(self.checkpoint_path, buffers=include_buffers)
        if not include_buffers:
            state.buffer_state = None
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
    ) -> ManagedAlgorithm:
        """Load a saved agent, a checkpoint or the newest one of a run; an environment or network of your own must be
        given again.

        ``learn`` then makes a new run, in ``output_dir``: by default beside the run that the checkpoint lies in, or in
        ``runs``, whatever folder the file names. ``trust`` names modules that the file's environment may be imported
        from.
        """
        from rl_training.base.trust import trust_modules
        from rl_training.experiment.runs import find_checkpoint, run_dir_of
        from rl_training.runtime.workflows import config_of

        trust_modules(trust)
        found, state = find_checkpoint(path, buffers=False)
        parent = run_dir_of(found)
        beside = parent.parent if parent is not None else TrainConfig.model_fields["output_dir"].default
        config = config_of(state, env=env).replace(
            init_from=str(found), init_parts=(), output_dir=output_dir if output_dir is not None else beside
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
        self._checkpoint = path


_NAMES = {entry.public: name for name, entry in ALGORITHMS.items()}
__all__ = ["ManagedAlgorithm", *_NAMES]


@cache
def _managed(public: str) -> type[ManagedAlgorithm]:
    entry = get_entry(_NAMES[public])
    doc = f"{public}: {entry.summary} ({entry.paper})."
    return type(public, (ManagedAlgorithm,), {"algo_name": entry.name, "__module__": __name__, "__doc__": doc})


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _managed(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:

    class BC(ManagedAlgorithm): ...

    class CQL(ManagedAlgorithm): ...

    class DQN(ManagedAlgorithm): ...

    class Dreamer(ManagedAlgorithm): ...

    class FQF(ManagedAlgorithm): ...

    class GAIL(ManagedAlgorithm): ...

    class IQL(ManagedAlgorithm): ...

    class IQN(ManagedAlgorithm): ...

    class MBPO(ManagedAlgorithm): ...

    class MOPO(ManagedAlgorithm): ...

    class PETS(ManagedAlgorithm): ...

    class PPG(ManagedAlgorithm): ...

    class PPO(ManagedAlgorithm): ...

    class QRDQN(ManagedAlgorithm): ...

    class RLPD(ManagedAlgorithm): ...

    class SAC(ManagedAlgorithm): ...

    class TD3BC(ManagedAlgorithm): ...
