"""PPO on the on-policy loop."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.recurrent import RecurrentPPO
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.loops.recurrent import MEMORY_FORM, MemoryOptions, RecurrentOnPolicyLoop
from rl_training.runtime.loops.shared import SharedPolicyLoop
from rl_training.runtime.options import Task
from rl_training.runtime.policy_options import SPACES, PPOOptions
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "RecurrentPPOOptions", "build", "train_ppo"]


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


LOOPS: dict[str, Any] = {"loop": OnPolicyLoop, "recurrent": RecurrentOnPolicyLoop, "shared": SharedPolicyLoop}
SPECS = {"ppo": AlgorithmSpec(name="ppo", config=RecurrentPPOOptions, build=build, **LOOPS, **SPACES)}
train_ppo = SPECS["ppo"].train
