"""PPO on the on-policy loop."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_training.algorithms.ppo import PPO
from rl_training.base.options import Sizes, opt
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.runtime.loops.on_policy import OnPolicyLoop, OnPolicyOptions
from rl_training.runtime.options import Schedule, Task
from rl_training.runtime.spec import AlgorithmSpec, Blueprint


class PPOOptions(OnPolicyOptions):
    TITLE = "ppo"
    BY_TASK: ClassVar[tuple[str, ...]] = (*OnPolicyOptions.BY_TASK, "initial_log_std")
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
    initial_log_std: float = opt(
        0.0, "log-deviation of continuous actions at the start, in units of the action box; by task: -0.5"
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        chosen = super().for_task(task)
        return {**chosen, "initial_log_std": -0.5} if task.spaces.action_kind == "box" else chosen

    def learner(self, plan: Blueprint) -> dict[str, Any]:
        """The arguments of PPO and of what is built on it."""
        return {
            "learning_rate": self.learning_rate,
            "clip_coef": self.clip_coef,
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": self.max_grad_norm,
            "clip_values": self.clip_values,
            "normalize_advantages": self.normalize_advantages,
            "normalizer": plan.normalizer(self.normalize_observations),
        }


def build(cfg: PPOOptions, plan: Blueprint) -> PPO:
    policy = plan.make(
        MLPActorCritic,
        **plan.shape,
        head=plan.head,
        hidden_sizes=cfg.hidden_sizes,
        initial_log_std=cfg.initial_log_std,
    )
    return PPO(policy=policy, **cfg.learner(plan))


SPECS = {
    "ppo": AlgorithmSpec(
        name="ppo",
        config=PPOOptions,
        build=build,
        loop=OnPolicyLoop,
        obs=("vector", "image"),
        actions=("discrete", "box", "multi_discrete", "multi_binary"),
    )
}
train_ppo = SPECS["ppo"].train
