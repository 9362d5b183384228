"""Networks: ordinary modules that know no environment, file or logger."""

from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_fqf_network import MLPFQFNetwork
from rl_training.models.mlp_gail_discriminator import MLPGAILDiscriminator
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel
from rl_training.models.mlp_policy import MLPPolicy
from rl_training.models.mlp_ppg import MLPPPGModel
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.mlp_sac import MLPIQLModel, MLPSACModel, MLPTD3Model

__all__ = [
    "MLPActorCritic",
    "MLPFQFNetwork",
    "MLPGAILDiscriminator",
    "MLPIQLModel",
    "MLPIQNetwork",
    "MLPMOPOEnsembleModel",
    "MLPPPGModel",
    "MLPPolicy",
    "MLPQNetwork",
    "MLPQRQNetwork",
    "MLPSACModel",
    "MLPTD3Model",
]
