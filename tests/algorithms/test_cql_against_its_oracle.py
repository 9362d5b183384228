"""CQL's whole updates against a reference in plain torch, for every option that changes them."""

import gymnasium as gym
import pytest
import torch

from built_learners import DIM, ROWS, assert_learns_as, built, doubles, far, fitted, scaled
from oracles.cql import CQL as Reference
from oracles.cql import DiscreteCQL as DiscreteReference
from rl_training.algorithms.cql import CQL
from rl_training.models import MLPSACModel

GIVEN = {"learning_rate": 0.01, "actor_learning_rate": 0.004, "gamma": 0.9, "tau": 0.1, "num_cql_samples": 3}


def reference(learner, **options):
    usual = {**GIVEN, "alpha": "auto", "target_entropy": -1.0 * DIM, "backup_entropy": False, "cql_alpha": 5.0}
    return Reference(learner.model.state_dict(), **{**usual, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.3, "backup_entropy": True},
        {"target_entropy": 1.5},
        {"cql_alpha": 0.7, "num_cql_samples": 1},
        {"cql_temperature": 2.5},
        {"lagrange": 0.6},
        {"lagrange": 0.0},
        {"lagrange": 20.0, "cql_temperature": 0.5, "cql_alpha": 1.3},
        {"bc_updates": 2},
    ],
    ids=str,
)
def test_a_config_learns_what_the_paper_says(options):
    with doubles():
        learner = built("cql", **{**GIVEN, **options})
        oracle = reference(learner, **options)
        assert_learns_as(learner, oracle)
        assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=1e-9)
        assert learner.log_weight.value.item() == pytest.approx(oracle.log_weight.item(), rel=1e-9)


def test_observations_are_normalised_wherever_a_network_sees_them():
    with doubles():
        learner = built("cql", **GIVEN, normalize_observations=True, bc_updates=2)
        statistics = fitted(learner)
        oracle = reference(learner, bc_updates=2)
        assert_learns_as(learner, oracle, change=far, seen=lambda batch: scaled(batch, *statistics))


class OwnSampling(MLPSACModel):
    """The same network, whose overridden methods keep the learner from its faster ways."""

    def sample_actions(self, obs, *, deterministic=False, noise=None):
        return super().sample_actions(obs, deterministic=deterministic, noise=noise)

    def q_values(self, obs, actions, members=None):
        return super().q_values(obs, actions, members)


@pytest.mark.parametrize("bc_updates", [0, 2])
def test_a_model_with_methods_of_its_own_learns_the_same(bc_updates):
    with doubles():
        model = OwnSampling(obs_dim=3, action_dim=DIM, hidden_sizes=(8, 8))
        learner = CQL(model=model, **GIVEN, alpha="auto", cql_alpha=5.0, bc_updates=bc_updates)
        assert_learns_as(learner, reference(learner, bc_updates=bc_updates))


@pytest.mark.parametrize("options", [{}, {"cql_alpha": 0.7, "target_update_interval": 3}], ids=str)
def test_choices_have_an_exact_soft_maximum(options):
    given = {"learning_rate": 0.01, "gamma": 0.9, "target_update_interval": 2, "cql_alpha": 5.0, **options}
    with doubles():
        learner = built("cql", gym.spaces.Discrete(4), **given)
        choices = torch.tensor([0, 3, 1, 2, 3, 0])[:ROWS]
        assert_learns_as(
            learner,
            DiscreteReference(learner.q_network.state_dict(), **given),
            change=lambda batch: {**batch, "actions": choices},
            networks=(("q_network", "weights"), ("target_network", "target")),
        )
