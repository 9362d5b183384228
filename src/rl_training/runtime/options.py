"""Options that every algorithm has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator

from rl_training.base.options import Options, opt
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.runtime.schedules import resolve_schedule_spec

if TYPE_CHECKING:
    from rl_training.envs.spaces import Spaces


__all__ = ["AlgorithmOptions", "Schedule", "Task"]


def _checked(value: Any) -> Any:
    resolve_schedule_spec(value)
    return value


Schedule = Annotated[str | dict[str, Any] | None, AfterValidator(_checked)]


class Task(NamedTuple):
    """A new run's task, on which the values of options that are not set may depend."""

    env_id: str
    spaces: Spaces
    num_envs: int
    total_timesteps: int
    given: dict[str, Any] = {}  # the options that are set
    time_limit: Callable[[], int | None] = lambda: None  # steps until truncation; makes an environment to see


class AlgorithmOptions(Options):
    """Controls of a run that live beside the algorithm's own options."""

    BY_TASK: ClassVar[
        tuple[str, ...]
    ] = ()  # options for which a new run takes ``for_task``'s value unless they are set

    # options that shape networks, as far as an algorithm has them; where they are open, a run takes those of the agent
    # that it starts from
    FORM: ClassVar[tuple[str, ...]] = (
        *("hidden_sizes", "head_hidden_sizes", "features_dim", "activation", "normalize_observations", "absorbing"),
        *("discriminator_hidden_sizes", "discriminator_head_hidden_sizes", "discriminator_features_dim"),
        "normalize_discriminator",
    )
    ASYNC: ClassVar[bool] = False  # whether an algorithm can learn while its environments step
    OWN_ACTIVATION: ClassVar[str] = "relu"  # of hidden layers for vectors, unless an option says otherwise
    CHANGEABLE: ClassVar[tuple[str, ...]] = ("eval_interval", "early_stopping", "max_updates", "max_epochs")

    eval_interval: int | None = opt(
        None, "environment steps between evaluations; null: twenty per run; 0: only at the end", ge=0
    )
    early_stopping: EarlyStoppingConfig | None = opt(
        None, "stop when an evaluation metric is reached or stops improving"
    )
    learning_rate_schedule: Schedule = opt(
        None, "multiplier of the learning rate: constant, linear, cosine, or {type, start, end}"
    )
    warmup_steps: int = opt(0, "environment steps over which the learning rate rises from zero", ge=0)
    max_updates: int | None = opt(None, "stop after this many updates", ge=1)
    max_epochs: int | None = opt(
        None, "stop after this many collect-and-learn cycles (offline: passes over the data)", ge=1
    )

    @classmethod
    def elsewhere(cls, values: dict[str, Any]) -> dict[str, str]:
        """The fields of the config that the options stand in."""
        return {name: f"{name!r} of the config itself, outside of algo_kwargs" for name in TrainConfig.model_fields}

    def schedule_steps(self, name: str, total_timesteps: int) -> int:
        """Over how many environment steps the schedule of ``name`` runs."""
        return total_timesteps

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        """Values of the options in ``BY_TASK`` that suit the task."""
        return {}

    @classmethod
    def continuing(cls, *, policy: bool, replay: bool) -> dict[str, Any]:
        """Values of options in ``BY_TASK`` for a run that starts with a trained policy, or a filled replay buffer."""
        return {}

    def idle(self) -> set[str]:
        """Options that have no effect beside the others, and are refused if they are given with them."""
        return set()
