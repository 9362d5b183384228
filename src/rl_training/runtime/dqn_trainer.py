"""DQN on the off-policy loop."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from rl_training.algorithms.dqn import DQN
from rl_training.experiment.config import Sizes, opt
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.runtime.loops import OffPolicyLoop, OffPolicyOptions
from rl_training.runtime.options import Schedule
from rl_training.runtime.schedules import resolve_schedule_spec
from rl_training.runtime.spec import AlgorithmSpec, Blueprint


class DQNOptions(OffPolicyOptions):
    TITLE = "dqn"
    batch_size: int = opt(128, "transitions per update", ge=1)
    train_frequency: int = opt(2, "environment steps between updates, whatever the number of environments", ge=1)
    hidden_sizes: Sizes = opt(
        (128, 128), "widths of the hidden layers (images: the last one is the number of features)"
    )
    learning_rate: float = opt(1e-3, "step size of Adam", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    target_update_interval: int = opt(100, "updates between copies to the target network", ge=1)
    double: bool = opt(True, "the online network chooses the next action, the target network judges it")
    epsilon_schedule: Schedule = opt(
        {"type": "linear", "start": 1.0, "end": 0.05}, "share of random actions: {type, start, end}"
    )
    exploration_fraction: float = opt(
        0.1, "part of the run over which epsilon_schedule goes from start to end", gt=0, le=1
    )
    max_grad_norm: float | None = opt(10.0, "gradients are scaled down to this norm", gt=0)

    @field_validator("epsilon_schedule")
    @classmethod
    def _probabilities(cls, value: Any) -> Any:
        if value is None or value == "constant" or (isinstance(value, dict) and "start" not in value):
            raise ValueError("needs the share of random actions to start from: {type, start, end}")
        spec = resolve_schedule_spec(value)
        if not (0 <= spec.start <= 1 and 0 <= spec.end <= 1):
            raise ValueError(f"shares of random actions lie in [0, 1], got {spec.start:g} to {spec.end:g}")
        return value

    def schedule_steps(self, name: str, total_timesteps: int) -> int:
        return max(1, int(total_timesteps * self.exploration_fraction)) if name == "epsilon" else total_timesteps


def build(cfg: DQNOptions, plan: Blueprint) -> DQN:
    return DQN(
        q_network=plan.make(
            MLPQNetwork, **plan.shape, action_dim=plan.spaces.num_actions, hidden_sizes=cfg.hidden_sizes
        ),
        learning_rate=cfg.learning_rate,
        gamma=cfg.gamma,
        target_update_interval=cfg.target_update_interval,
        double_q=cfg.double,
        max_grad_norm=cfg.max_grad_norm,
        normalizer=plan.normalizer(cfg.normalize_observations),
    )


SPECS = {
    "dqn": AlgorithmSpec(
        name="dqn", config=DQNOptions, build=build, loop=OffPolicyLoop, obs=("vector", "image"), actions=("discrete",)
    )
}
train_dqn = SPECS["dqn"].train
