"""Networks: ordinary modules that know no environment, file or logger."""

from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_sac import MLPSACModel

__all__ = ["MLPActorCritic", "MLPQNetwork", "MLPSACModel"]
