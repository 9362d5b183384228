"""PPO on the on-policy loop."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.recurrent import RecurrentPPO
from rl_training.base.options import Sizes, opt
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.runtime.loops.on_policy import OnPolicyLoop, OnPolicyOptions
from rl_training.runtime.loops.recurrent import MEMORY_FORM, MemoryOptions, RecurrentOnPolicyLoop
from rl_training.runtime.loops.shared import SharedPolicyLoop
from rl_training.runtime.network_options import NetworkOptions, OptimizerOptions
from rl_training.runtime.options import Schedule, Task
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPACES", "SPECS", "PPOOptions", "RecurrentPPOOptions", "build", "train_ppo"]


class PPOOptions(NetworkOptions, OptimizerOptions, OnPolicyOptions):
    """Options of PPO without a memory; PPG and GAIL add to them."""

    TITLE = "ppo"
    BY_TASK: ClassVar[tuple[str, ...]] = (*OnPolicyOptions.BY_TASK, "initial_log_std")
    OWN_ACTIVATION: ClassVar[str] = "tanh"
    hidden_sizes: Sizes = opt((64, 64), "widths of the hidden layers (images: the last one is the number of features)")
    learning_rate: float = opt(3e-4, "step size of Adam", gt=0)
    clip_coef: float = opt(0.2, "how far the policy's probabilities may move in one rollout", gt=0)
    clip_coef_schedule: Schedule = opt(None, "schedule of clip_coef: {type, start, end}")
    ent_coef: float = opt(0.0, "weight of the entropy bonus", ge=0)
    ent_coef_schedule: Schedule = opt(None, "schedule of ent_coef: {type, start, end}")
    vf_coef: float = opt(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float | None = opt(0.5, "gradients are scaled down to this norm", gt=0)
    clip_values: bool = opt(False, "also limit how far values move, by clip_coef")
    normalize_advantages: bool = opt(True, "zero mean and unit deviation within each minibatch")
    initial_log_std: float = opt(0.0, "log-deviation of Box actions at the start, in units of the box; by task: -0.5")

    @classmethod
    def elsewhere(cls, values: dict[str, Any]) -> dict[str, str]:
        memory = dict.fromkeys(
            MemoryOptions.model_fields, "'recurrent' of ppo, which alone of its variants has a memory"
        )
        return {**super().elsewhere(values), **memory}

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        chosen = super().for_task(task)
        return {**chosen, "initial_log_std": -0.5} if task.spaces.action_kind == "box" else chosen

    def policy(self, plan: Blueprint, network: type[MLPActorCritic] = MLPActorCritic, **changes: Any) -> Any:
        """The actor-critic network of PPO, or a variant's, with changed arguments."""
        own = self.pick({"hidden_sizes", "initial_log_std"})
        return self.network(plan, network, **{**plan.shape, "head": plan.head, **own, **changes})

    def learner(self, plan: Blueprint) -> dict[str, Any]:
        """PPO's arguments beside its network."""
        coefs = {"clip_coef", "ent_coef", "vf_coef", "clip_values"}
        own = self.pick({*coefs, "learning_rate", "max_grad_norm", "normalize_advantages"})
        parts = {"normalizer": plan.normalizer(self.normalize_observations), "optimizer": self.optimizer_factory()}
        return {**own, **parts}


class RecurrentPPOOptions(MemoryOptions, PPOOptions):
    """Options of PPO, with or without a memory."""

    FORM: ClassVar[tuple[str, ...]] = (*PPOOptions.FORM, *MEMORY_FORM)

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        chosen = super().for_task(task)
        if task.given.get("recurrent") is None:
            return chosen
        return {**chosen, "minibatch_size": 256}  # several sequences


def build(cfg: RecurrentPPOOptions, plan: Blueprint) -> PPO:
    memory = cfg.memory(plan)
    if memory is None:
        return PPO(policy=cfg.policy(plan), **cfg.learner(plan))
    return RecurrentPPO(policy=cfg.policy(plan, memory=memory), **cfg.learner(plan))


SPACES: dict[str, Any] = {
    "obs": ("vector", "image", "mixed"),
    "actions": ("discrete", "box", "multi_discrete", "multi_binary"),
}
LOOPS: dict[str, Any] = {"loop": OnPolicyLoop, "recurrent": RecurrentOnPolicyLoop, "shared": SharedPolicyLoop}
SPECS = {"ppo": AlgorithmSpec(name="ppo", config=RecurrentPPOOptions, build=build, **LOOPS, **SPACES)}
train_ppo = SPECS["ppo"].train
