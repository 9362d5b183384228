"""Behaviour cloning on the offline loop."""

from __future__ import annotations

from typing import Any, Literal

from rl_training.algorithms.base import Learner
from rl_training.algorithms.bc import BC
from rl_training.base.options import Sizes, opt
from rl_training.data.prior_data import build_dataset
from rl_training.models.heads import Point, SquashedGaussian
from rl_training.models.mlp_policy import MLPPolicy
from rl_training.runtime.loops.offline import OfflineLoop, OfflineOptions, _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.network_options import NetworkOptions, OptimizerOptions
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "BCLoop", "BCOptions", "_build_offline_dataset", "_infer_env_spaces", "build", "train_bc"]


class BCOptions(NetworkOptions, OptimizerOptions, OfflineOptions):
    """Behaviour cloning's options."""

    TITLE = "bc"
    hidden_sizes: Sizes = opt(
        (256, 256), "widths of the hidden layers (images: the last one is the number of features)"
    )
    learning_rate: float = opt(3e-4, "step size of Adam", gt=0)
    loss: Literal["mse", "likelihood"] = opt(
        "mse",
        "for boxes: squared error of one action, or the likelihood of a squashed Gaussian; choices: always likelihood",
    )
    best_fraction: float = opt(
        1.0, "learn from the episodes of highest return alone: this share of the data", gt=0, le=1
    )
    normalize_observations: bool = opt(False, "scale observations by the data's mean and deviation")


class BCLoop(OfflineLoop):
    """The offline loop, on the episodes of highest return if only a share of the data is used."""

    def __init__(self, run: Run, agent: Learner, cfg: BCOptions) -> None:
        data = build_dataset(cfg, run.factory, run.spaces)
        super().__init__(run, agent, cfg, data=data if cfg.best_fraction == 1 else data.best(cfg.best_fraction))


def build(cfg: BCOptions, plan: Blueprint) -> BC:
    """The learner, with a head for the task's kind of actions."""
    boxes = {"mse": Point, "likelihood": SquashedGaussian}[cfg.loss]
    head = boxes(plan.spaces.action_dim) if plan.spaces.action_kind == "box" else plan.head
    return BC(
        policy=cfg.network(plan, MLPPolicy, **plan.shape, head=head, hidden_sizes=cfg.hidden_sizes),
        learning_rate=cfg.learning_rate,
        optimizer=cfg.optimizer_factory(),
        normalizer=plan.normalizer(cfg.normalize_observations, clip=float("inf")),
    )


KINDS: dict[str, Any] = {
    "obs": ("vector", "image", "mixed"),
    "actions": ("discrete", "box", "multi_discrete", "multi_binary"),
}
SPECS = {"bc": AlgorithmSpec(name="bc", config=BCOptions, build=build, loop=BCLoop, **KINDS)}
train_bc = SPECS["bc"].train
