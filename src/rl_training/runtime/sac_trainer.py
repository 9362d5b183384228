"""SAC on the off-policy loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from rl_training.algorithms.sac import SAC
from rl_training.base.options import Sizes, opt
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.loops.off_policy import OffPolicyLoop, OffPolicyOptions
from rl_training.runtime.options import Task
from rl_training.runtime.spec import AlgorithmSpec, Blueprint, Network


def _temperature(value: float | str) -> float | str:
    if not isinstance(value, str) and value < 0:
        raise ValueError(f"must be 'auto' or at least 0, got {value}")
    return value


Temperature = Annotated[float | Literal["auto"], AfterValidator(_temperature)]


class SACOptions(OffPolicyOptions):
    TITLE = "sac"
    BY_TASK: ClassVar[tuple[str, ...]] = ("learning_starts", "initial_random_steps", "learning_rate")
    learning_starts: int = opt(
        1_000, "environment steps before the first update; by task: a tenth of the run, at most 10,000", ge=0
    )
    initial_random_steps: int = opt(
        1_000, "environment steps with uniformly random actions; by task: as learning_starts", ge=0
    )
    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for actor, critics and temperature; by task: 0.001", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    alpha: Temperature = opt("auto", "temperature: a number, or auto to tune it to target_entropy")
    target_entropy: float | None = opt(None, "entropy a tuned temperature aims for; null: minus the action dimension")
    tau: float = opt(0.005, "how far target critics move per update", gt=0, le=1)

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        return {**cls.warm_up(task, min(10_000, task.total_timesteps // 10)), "learning_rate": 1e-3}


def build(
    cfg: SACOptions, plan: Blueprint, *, learner: Callable[..., SAC] = SAC, network: Network = MLPSACModel
) -> SAC:
    return learner(
        model=plan.make(network, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=cfg.hidden_sizes),
        learning_rate=cfg.learning_rate,
        gamma=cfg.gamma,
        alpha=cfg.alpha,
        tau=cfg.tau,
        target_entropy=cfg.target_entropy,
        normalizer=plan.normalizer(cfg.normalize_observations),
    )


SPECS = {"sac": AlgorithmSpec(name="sac", config=SACOptions, build=build, loop=OffPolicyLoop, actions=("box",))}
train_sac = SPECS["sac"].train
