"""IQL on the offline loop."""

from __future__ import annotations

from rl_training.algorithms.iql import IQL
from rl_training.experiment.config import Sizes, opt
from rl_training.models.mlp_sac import MLPIQLModel
from rl_training.runtime.offline import (
    OfflineLoop,
    OfflineOptions,
    _build_offline_dataset,  # noqa: F401
    _infer_env_spaces,  # noqa: F401
)
from rl_training.runtime.options import Schedule
from rl_training.runtime.spec import AlgorithmSpec, Blueprint


class IQLOptions(OfflineOptions):
    TITLE = "iql"
    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for actor, critics and value network", gt=0)
    actor_rate_schedule: Schedule = opt("cosine", "multiplier of the actor's learning rate, beside the common schedule")
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    tau: float = opt(0.005, "how far target critics move per update", gt=0, le=1)
    expectile: float = opt(0.7, "which expectile of Q over the data's actions the value network learns", gt=0, lt=1)
    inverse_temperature: float = opt(3.0, "how sharply the actor prefers actions of high advantage", ge=0)
    largest_weight: float = opt(100.0, "no action weighs more than this in the actor's loss", gt=0)
    normalize_observations: bool = opt(False, "scale observations by the data's mean and deviation")


def build(cfg: IQLOptions, plan: Blueprint) -> IQL:
    return IQL(
        model=plan.make(MLPIQLModel, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=cfg.hidden_sizes),
        learning_rate=cfg.learning_rate,
        gamma=cfg.gamma,
        tau=cfg.tau,
        expectile=cfg.expectile,
        inverse_temperature=cfg.inverse_temperature,
        largest_weight=cfg.largest_weight,
        normalizer=plan.normalizer(cfg.normalize_observations, clip=float("inf")),
    )


SPECS = {"iql": AlgorithmSpec(name="iql", config=IQLOptions, build=build, loop=OfflineLoop, actions=("box",))}
train_iql = SPECS["iql"].train
