"""CQL on the offline loop: on SAC for boxes, on double DQN for choices."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.cql import CQL, DiscreteCQL
from rl_training.base.options import Sizes, opt
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.critic_options import OfflineCriticOptions, Temperature
from rl_training.runtime.loops.offline import OfflineLoop, _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "CQLOptions", "_build_offline_dataset", "_infer_env_spaces", "build", "train_cql"]

SOFT = ("actor_learning_rate", "alpha", "target_entropy", "backup_entropy", "bc_updates")
CONSERVATIVE = ("cql_alpha", "num_cql_samples", "cql_temperature", "lagrange")


class CQLOptions(OfflineCriticOptions):
    """CQL's options; "boxes" and "choices" say for which actions one has a meaning."""

    TITLE = "cql"
    hidden_sizes: Sizes = opt((256, 256, 256), "widths of the hidden layers")
    actor_learning_rate: float = opt(1e-4, "boxes: step size of Adam, for the actor", gt=0)
    cql_alpha: float = opt(5.0, "weight of the penalty on actions that the data does not show", gt=0)
    num_cql_samples: int = opt(10, "boxes: actions from each of three distributions that estimate it", ge=1)
    cql_temperature: float = opt(1.0, "boxes: of the soft maximum over actions", gt=0)
    lagrange: float | None = opt(None, "boxes: tune the weight until the gap is this; null: keep it")
    alpha: Temperature = opt("auto", "boxes: temperature: a number, or auto to tune it to target_entropy")
    target_entropy: float | None = opt(None, "boxes: goal of a tuned temperature; null: minus the action dimension")
    bc_updates: int = opt(0, "boxes: updates at the start in which the actor imitates the data", ge=0)
    tau: float = opt(0.005, "boxes: how far target critics move per update", gt=0, le=1)
    backup_entropy: bool = opt(False, "boxes: count the next action's entropy in the targets")
    target_update_interval: int = opt(200, "choices: updates between copies to the target network", ge=1)


def build(cfg: CQLOptions, plan: Blueprint) -> CQL | DiscreteCQL:
    """The learner for the task's kind of actions."""
    if plan.spaces.action_kind == "discrete":
        arguments = cfg.arguments(plan, "cql_alpha", "target_update_interval")
        del arguments["tau"]
        sizes = {**plan.shape, "action_dim": plan.spaces.num_actions, "hidden_sizes": cfg.hidden_sizes}
        return DiscreteCQL(q_network=cfg.network(plan, MLPQNetwork, **sizes), double_q=True, **arguments)
    if plan.spaces.obs_kind != "vector":
        plan.spaces.require("cql with Box actions", "the environment", obs=("vector",), actions=("box",))
    return CQL(model=cfg.model(plan, MLPSACModel), **cfg.arguments(plan, *SOFT, *CONSERVATIVE))


KINDS: dict[str, Any] = {"obs": ("vector", "image", "mixed"), "actions": ("discrete", "box")}
SPECS = {"cql": AlgorithmSpec(name="cql", config=CQLOptions, build=build, loop=OfflineLoop, **KINDS)}
train_cql = SPECS["cql"].train
