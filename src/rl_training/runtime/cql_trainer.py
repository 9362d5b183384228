"""CQL on the offline loop: on SAC for boxes, on double DQN for choices."""

from __future__ import annotations

from rl_training.algorithms.cql import CQL, DiscreteCQL
from rl_training.base.options import Sizes, opt
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.loops.offline import (  # noqa: F401
    OfflineCriticOptions,
    OfflineLoop,
    _build_offline_dataset,
    _infer_env_spaces,
)
from rl_training.runtime.sac_trainer import Temperature
from rl_training.runtime.spec import AlgorithmSpec, Blueprint


class CQLOptions(OfflineCriticOptions):
    TITLE = "cql"
    hidden_sizes: Sizes = opt((256, 256, 256), "widths of the hidden layers")
    actor_learning_rate: float = opt(1e-4, "boxes: step size of Adam, for the actor", gt=0)
    cql_alpha: float = opt(5.0, "weight of the penalty on actions that the data does not show", gt=0)
    num_cql_samples: int = opt(10, "boxes: actions from each of three distributions that estimate it", ge=1)
    cql_temperature: float = opt(1.0, "boxes: of the soft maximum over actions", gt=0)
    lagrange: float | None = opt(
        None, "boxes: tune the weight until the gap to the data's actions is this; null: keep it"
    )
    alpha: Temperature = opt("auto", "boxes: temperature: a number, or auto to tune it to target_entropy")
    target_entropy: float | None = opt(
        None, "boxes: entropy a tuned temperature aims for; null: minus the action dimension"
    )
    bc_updates: int = opt(0, "boxes: updates at the start in which the actor imitates the data", ge=0)
    tau: float = opt(0.005, "boxes: how far target critics move per update", gt=0, le=1)
    backup_entropy: bool = opt(False, "boxes: count the next action's entropy in the targets")
    target_update_interval: int = opt(200, "choices: updates between copies to the target network", ge=1)


def build(cfg: CQLOptions, plan: Blueprint) -> CQL | DiscreteCQL:
    shared = cfg.shared(plan)
    if plan.spaces.action_kind == "discrete":
        del shared["tau"]
        return DiscreteCQL(
            q_network=plan.make(
                MLPQNetwork, **plan.shape, action_dim=plan.spaces.num_actions, hidden_sizes=cfg.hidden_sizes
            ),
            target_update_interval=cfg.target_update_interval,
            double_q=True,
            cql_alpha=cfg.cql_alpha,
            **shared,
        )
    if plan.spaces.image:
        plan.spaces.require("cql with Box actions", "the environment", obs=("vector",), actions=("box",))
    return CQL(
        model=cfg.model(plan, MLPSACModel),
        actor_learning_rate=cfg.actor_learning_rate,
        alpha=cfg.alpha,
        target_entropy=cfg.target_entropy,
        backup_entropy=cfg.backup_entropy,
        cql_alpha=cfg.cql_alpha,
        num_cql_samples=cfg.num_cql_samples,
        cql_temperature=cfg.cql_temperature,
        lagrange=cfg.lagrange,
        bc_updates=cfg.bc_updates,
        **shared,
    )


SPECS = {
    "cql": AlgorithmSpec(
        name="cql",
        config=CQLOptions,
        build=build,
        loop=OfflineLoop,
        obs=("vector", "image"),
        actions=("discrete", "box"),
    )
}
train_cql = SPECS["cql"].train
