"""SAC on the off-policy loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rl_training.algorithms.sac import SAC
from rl_training.base.options import opt
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.critic_options import SoftOptions, Temperature
from rl_training.runtime.loops.off_policy import OffPolicyLoop, OffPolicyOptions
from rl_training.runtime.network_options import OptimizerOptions
from rl_training.runtime.options import Task
from rl_training.runtime.spec import AlgorithmSpec, Blueprint, Network

__all__ = ["SPECS", "SACOptions", "build", "train_sac"]

LONG = 1_000  # steps of an episode, as locomotion has them: from there on, the temperature is fixed


class SACOptions(SoftOptions, OptimizerOptions, OffPolicyOptions):
    """SAC's options. A new run warms up for a tenth of its steps, with random actions, unless that is set.

    Its temperature is fixed where episodes are long, as in the field's recipes for locomotion, and tuned elsewhere.
    """

    TITLE = "sac"
    BY_TASK: ClassVar[tuple[str, ...]] = ("learning_starts", "initial_random_steps", "learning_rate", "alpha")
    learning_starts: int = opt(
        1_000, "environment steps before the first update; by task: a tenth of the run, at most 10,000", ge=0
    )
    initial_random_steps: int = opt(
        1_000, "environment steps with uniformly random actions; by task: as learning_starts", ge=0
    )
    learning_rate: float = opt(3e-4, "step size of Adam, for actor, critics and temperature; by task: 0.001", gt=0)
    alpha: Temperature = opt(
        "auto", "temperature: a number, or auto to tune it to target_entropy; by task: 0.2 for episodes of 1,000 steps"
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        fixed = "target_entropy" not in task.given and (task.time_limit() or 0) >= LONG
        chosen = {"learning_rate": 1e-3, "alpha": 0.2 if fixed else "auto"}
        return {**cls.warm_up(task, min(10_000, task.total_timesteps // 10)), **chosen}


def build(
    cfg: SACOptions, plan: Blueprint, *, learner: Callable[..., SAC] = SAC, network: Network = MLPSACModel
) -> SAC:
    """The learner, or a variant of it, with networks of the task's sizes."""
    model = cfg.network(plan, network, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=cfg.hidden_sizes)
    parts = {"normalizer": plan.normalizer(cfg.normalize_observations), "optimizer": cfg.optimizer_factory()}
    return learner(model=model, learning_rate=cfg.learning_rate, **parts, **cfg.soft())


SPECS = {"sac": AlgorithmSpec(name="sac", config=SACOptions, build=build, loop=OffPolicyLoop, actions=("box",))}
train_sac = SPECS["sac"].train
