"""TrainConfig: everything that defines a run, in one validated object."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Strict, field_validator

from rl_training.base.options import Options, Strings, opt

__all__ = ["TrainConfig"]

LoggerNames = Annotated[tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...], Strict(False)]

THREAD_LIMIT = 1_024


class TrainConfig(Options):
    """The config of a run: algorithm, environment, length, output, and the options of each."""

    model_config = ConfigDict(extra="forbid", frozen=False, strict=True, validate_assignment=True)

    # what may change when a run goes on: nothing that is learned depends on these
    CHANGEABLE: ClassVar[tuple[str, ...]] = (
        *("total_timesteps", "eval_episodes", "log_interval", "checkpoint_interval", "checkpoint_minutes"),
        *("keep_checkpoints", "record_video", "loggers", "wandb_project", "mlflow_experiment"),
        *("tags", "progress", "env_limit_seconds", "execution_backend", "env_workers"),
    )

    algo: str = Field(description="registry name of the algorithm, e.g. ppo")
    env_id: str = Field(
        description="Gymnasium id of the environment, e.g. CartPole-v1, or my_module:MyEnv-v0 to import its module"
    )
    seed: int = opt(0, "seed of everything random in the run", ge=0)
    total_timesteps: int = opt(100_000, "environment steps (offline algorithms: gradient updates)", ge=1)
    output_dir: Annotated[Path, Strict(False)] = opt(Path("runs"), "run directories are made in here")
    device: str = opt("auto", "auto, cpu, cuda or cuda:N")
    num_envs: int = opt(1, "environments stepped together", ge=1)
    execution_backend: Literal["local", "process", "ray"] = opt(
        "local", "where training environments run: this process, worker processes, or Ray actors (of RAY_ADDRESS)"
    )
    env_workers: int | None = opt(None, "workers that step the environments; null: as many as processors", ge=1)
    async_collection: bool = opt(False, "learn while the workers step, one step late; off-policy, without a model")
    env_limit_seconds: float | None = opt(
        None, "seconds that a step or a reset of an environment may take before the run fails; null: any time", gt=0
    )
    eval_episodes: int = opt(5, "episodes per evaluation", ge=1)
    log_interval: int | None = opt(None, "environment steps between log lines; null: about a hundred per run", ge=1)
    checkpoint_interval: int | None = opt(None, "environment steps between checkpoints; null: about twenty", ge=1)
    checkpoint_minutes: float | None = opt(
        5.0, "minutes after which a checkpoint is written however few steps were taken; null: by steps alone", gt=0
    )
    keep_checkpoints: int = opt(3, "checkpoints kept (replay buffers: of the newest two), beside the best", ge=1)
    record_video: int = opt(
        0, "episodes of each evaluation recorded as videos/step_….mp4 (gif without the video extra); 0: none", ge=0
    )
    loggers: LoggerNames = opt(
        ("tensorboard",), "tensorboard, csv, wandb, mlflow: where metrics go, beside metrics.jsonl"
    )
    wandb_project: str | None = opt(None, "project in Weights & Biases; null: WANDB_PROJECT, or rl_training")
    mlflow_experiment: str | None = opt(None, "experiment in MLflow; null: MLFLOW_EXPERIMENT_NAME, or rl_training")
    log_info: Strings = opt((), "numbers of an episode's last info to log as info/NAME, beside the rate of success")
    tags: Strings = opt((), "free labels, kept with the run")
    compile: bool | Literal["safe", "auto"] = opt(
        "auto",
        "compile updates into one graph; safe: with torch.compile's guards; auto: true if the run is long enough",
    )
    precision: Literal["float32", "bf16"] = opt(
        "float32", "numbers that convolutions learn with; bf16: half the size, for GPUs; weights stay float32"
    )
    threads: int | Literal["auto"] = opt("auto", "torch threads; auto: by network width, at most OMP_NUM_THREADS")
    progress: Literal["auto", "bar", "lines", "off"] = opt("auto", "bar in a terminal, lines elsewhere, or off")
    init_from: str | None = opt(
        None, "RUN, RUN/best or a checkpoint, whose networks a new run starts with; null: networks drawn at random"
    )
    init_parts: Strings = opt((), "names of the parts to take from it, such as actor or world_model; none: all")
    init_optimizer: bool = opt(False, "take the state of the optimizers of those parts too")
    init_replay: bool = opt(False, "take its replay buffer too")
    algo_kwargs: dict[str, Any] = opt({}, "options of the algorithm")
    env_kwargs: dict[str, Any] = opt({}, "gym.make arguments, time limit and wrappers")

    @classmethod
    def elsewhere(cls, values: dict[str, Any]) -> dict[str, str]:
        """The options of the config's algorithm."""
        from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

        algo = values.get("algo")
        if not isinstance(algo, str) or algo not in ALGORITHMS:
            return {}
        return {name: f"'algo_kwargs.{name}'" for name in get_algorithm_spec(algo).config.model_fields}

    @field_validator("threads")
    @classmethod
    def _some_threads(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= THREAD_LIMIT:
            raise ValueError(f"must be 1 to {THREAD_LIMIT:,} or 'auto', got {value}")
        return value

    @field_validator("algo")
    @classmethod
    def _known(cls, value: str) -> str:
        from rl_training.experiment.registry import get_entry

        return get_entry(value).name

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        kind, _, index = value.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (index and not index.isdigit()):
            raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {value!r}")
        return value

    def plain(self) -> dict[str, Any]:
        """The config as plain values, as stored in checkpoints and config.yaml."""
        return self.model_dump(mode="json")
