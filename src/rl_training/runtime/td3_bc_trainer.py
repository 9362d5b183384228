"""TD3+BC on the offline loop."""

from __future__ import annotations

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.experiment.config import Sizes, opt
from rl_training.models.mlp_sac import MLPTD3Model
from rl_training.runtime.offline import (
    OfflineLoop,
    OfflineOptions,
    _build_offline_dataset,  # noqa: F401
    _infer_env_spaces,  # noqa: F401
)
from rl_training.runtime.spec import AlgorithmSpec, Blueprint


class TD3BCOptions(OfflineOptions):
    TITLE = "td3_bc"
    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for actor and critics", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    tau: float = opt(0.005, "how far target networks move, each time the actor does", gt=0, le=1)
    alpha: float = opt(2.5, "weight of the values against imitation, once values have mean size 1", ge=0)
    policy_noise: float = opt(0.2, "deviation of the noise on the target's actions", ge=0)
    noise_clip: float = opt(0.5, "that noise is clipped to this", ge=0)
    policy_delay: int = opt(2, "critic updates for each of the actor's", ge=1)
    normalize_observations: bool = opt(True, "scale observations by the data's mean and deviation")


def build(cfg: TD3BCOptions, plan: Blueprint) -> TD3BC:
    return TD3BC(
        model=plan.make(MLPTD3Model, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=cfg.hidden_sizes),
        learning_rate=cfg.learning_rate,
        gamma=cfg.gamma,
        tau=cfg.tau,
        alpha=cfg.alpha,
        policy_noise=cfg.policy_noise,
        noise_clip=cfg.noise_clip,
        policy_delay=cfg.policy_delay,
        normalizer=plan.normalizer(cfg.normalize_observations, clip=float("inf")),
    )


SPECS = {"td3_bc": AlgorithmSpec(name="td3_bc", config=TD3BCOptions, build=build, loop=OfflineLoop, actions=("box",))}
train_td3_bc = SPECS["td3_bc"].train
