"""TD3+BC on the offline loop."""

from __future__ import annotations

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.base.options import opt
from rl_training.models.mlp_sac import MLPTD3Model
from rl_training.runtime.critic_options import OfflineCriticOptions
from rl_training.runtime.loops.offline import OfflineLoop, _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "TD3BCOptions", "_build_offline_dataset", "_infer_env_spaces", "build", "train_td3_bc"]


class TD3BCOptions(OfflineCriticOptions):
    """TD3+BC's options."""

    TITLE = "td3_bc"
    alpha: float = opt(2.5, "weight of the values against imitation, once values have mean size 1", ge=0)
    policy_delay: int = opt(2, "critic updates for each move of the actor and the targets", ge=1)
    normalize_observations: bool = opt(True, "scale observations by the data's mean and deviation")
    policy_noise: float = opt(0.2, "deviation of the noise on the target's actions", ge=0)
    noise_clip: float = opt(0.5, "that noise is clipped to this; .inf: not at all", ge=0, allow_inf_nan=True)


def build(cfg: TD3BCOptions, plan: Blueprint) -> TD3BC:
    """The learner, with networks of the task's sizes."""
    model = cfg.model(plan, MLPTD3Model)
    return TD3BC(model=model, **cfg.arguments(plan, "alpha", "policy_noise", "noise_clip", "policy_delay"))


SPECS = {"td3_bc": AlgorithmSpec(name="td3_bc", config=TD3BCOptions, build=build, loop=OfflineLoop, actions=("box",))}
train_td3_bc = SPECS["td3_bc"].train
