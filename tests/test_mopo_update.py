"""MOPO's maths: the penalty by hand numbers, and who is penalised."""

import math

import pytest
import torch
from torch import nn

from rl_training.algorithms.mopo import MOPO, mopo_model_loss, uncertainty
from rl_training.models import MLPMOPOEnsembleModel, MLPSACModel


class Known(nn.Module):
    """Two members with deviations (3, 4) and (0, 1) and means that are the same everywhere."""

    obs_dim, action_dim, num_ensembles = 1, 1, 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def ensemble_parameters(self):
        return [self.weight]

    def predict_distribution(self, obs, actions):
        std = torch.tensor([[3.0, 4.0], [1e-20, 1.0]])[:, None].expand(2, len(obs), 2)
        return torch.zeros(2, len(obs), 2), 2 * std.log()


def agent(dynamics=None, **options):
    torch.manual_seed(0)
    rest = {"policy_learning_rate": 1e-3, "model_learning_rate": 1e-3, "gamma": 0.99, "alpha": 0.2, "tau": 0.005}
    dynamics = dynamics or MLPMOPOEnsembleModel(obs_dim=1, action_dim=1, hidden_sizes=(8,), num_ensembles=3)
    policy = MLPSACModel(obs_dim=1, action_dim=1, hidden_sizes=(8,))
    return MOPO(policy_model=policy, dynamics_model=dynamics, **{"penalty_coef": 2.0, **rest, **options})


def test_the_penalty_is_the_largest_norm_of_a_members_deviations():
    means, logvars = Known().predict_distribution(torch.zeros(4, 1), torch.zeros(4, 1))
    assert uncertainty(means, logvars).tolist() == pytest.approx([5.0] * 4)
    drawn = agent(Known()).sample_synthetic_transition(torch.zeros(4, 1), torch.zeros(4, 1))
    assert torch.allclose(drawn["raw_rewards"] - drawn["rewards"], torch.full((4,), 2 * 5.0))
    assert set(drawn) == {"next_obs", "rewards", "raw_rewards", "disagreement"}


def test_without_a_coefficient_rewards_are_untouched():
    drawn = agent(Known(), penalty_coef=0.0).sample_synthetic_transition(torch.zeros(4, 1), torch.zeros(4, 1))
    assert torch.equal(drawn["rewards"], drawn["raw_rewards"])


def test_other_penalties():
    means = torch.tensor([[[0.0, 0.0, 9.0]], [[3.0, 4.0, -9.0]]])
    logvars = torch.zeros(2, 1, 3)
    assert uncertainty(means, logvars, "max_deviation").item() == pytest.approx(2.5)
    spread = math.sqrt((1.5**2 + 1) + (2**2 + 1) + (9**2 + 1))
    assert uncertainty(means, logvars, "ensemble_std").item() == pytest.approx(spread)


def test_the_models_loss_has_these_names_alone():
    batch = {"predicted_means": torch.zeros(2, 3, 2), "predicted_logvars": torch.zeros(2, 3, 2), "targets": torch.ones(3, 2), "ensemble_disagreement": torch.zeros(3)}  # fmt: skip
    terms = mopo_model_loss(batch)
    assert set(terms) == {"mopo_model_loss", "reward_mae", "delta_obs_mae", "ensemble_disagreement"}
    assert terms["mopo_model_loss"] == 2.0


def test_model_and_policy_learn_apart():
    learner = agent()
    batch = {"obs": torch.randn(16, 1), "actions": torch.rand(16, 1), "rewards": torch.ones(16), "next_obs": torch.randn(16, 1), "dones": torch.zeros(16)}  # fmt: skip
    policy, model = learner.policy.actor_optimizer.flat.clone(), learner.dynamics.optimizer.flat.clone()
    metrics = learner.update_model(batch, global_step=0).metrics
    assert {"mopo_model_loss", "reward_mae", "delta_obs_mae", "ensemble_disagreement"} <= set(metrics)
    assert torch.equal(policy, learner.policy.actor_optimizer.flat) and not torch.equal(
        model, learner.dynamics.optimizer.flat
    )
    model = learner.dynamics.optimizer.flat.clone()
    assert {"critic_loss", "actor_loss"} <= set(learner.update(batch, global_step=0).metrics)
    assert torch.equal(model, learner.dynamics.optimizer.flat)
