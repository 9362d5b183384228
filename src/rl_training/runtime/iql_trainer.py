"""IQL on the offline loop."""

from __future__ import annotations

from rl_training.algorithms.iql import IQL
from rl_training.base.options import opt
from rl_training.models.mlp_sac import MLPIQLModel
from rl_training.runtime.critic_options import OfflineCriticOptions
from rl_training.runtime.loops.offline import OfflineLoop, _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.options import Schedule
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "IQLOptions", "_build_offline_dataset", "_infer_env_spaces", "build", "train_iql"]


class IQLOptions(OfflineCriticOptions):
    """IQL's options."""

    TITLE = "iql"
    actor_rate_schedule: Schedule = opt("cosine", "multiplier of the actor's learning rate, beside the common schedule")
    expectile: float = opt(0.7, "which expectile of Q over the data's actions the value network learns", gt=0, lt=1)
    inverse_temperature: float = opt(3.0, "how sharply the actor prefers actions of high advantage", ge=0)
    largest_weight: float = opt(
        100.0, "no action weighs more than this in the actor's loss; .inf: no limit", gt=0, allow_inf_nan=True
    )


def build(cfg: IQLOptions, plan: Blueprint) -> IQL:
    """The learner, with networks of the task's sizes."""
    arguments = cfg.arguments(plan, "expectile", "inverse_temperature", "largest_weight")
    return IQL(model=cfg.model(plan, MLPIQLModel), **arguments)


SPECS = {"iql": AlgorithmSpec(name="iql", config=IQLOptions, build=build, loop=OfflineLoop, actions=("box",))}
train_iql = SPECS["iql"].train
