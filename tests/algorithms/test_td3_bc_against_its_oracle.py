"""TD3+BC's whole updates against a reference in plain torch, for every option that changes them."""

import pytest

from built_learners import DIM, OBS, assert_learns_as, built, doubles, far, fitted, scaled
from oracles.td3_bc import TD3BC as Reference
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.models import MLPTD3Model

GIVEN = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.1}


def reference(learner, **options):
    usual = {**GIVEN, "alpha": 2.5, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2}
    return Reference(learner.model.state_dict(), **{**usual, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.4},
        {"policy_noise": 0.0},
        {"policy_noise": 2.0, "noise_clip": 0.9},
        {"policy_delay": 3},
        {"policy_delay": 1, "tau": 0.5, "gamma": 0.5},
        {"learning_rate": 0.003},
    ],
    ids=str,
)
def test_a_config_learns_what_the_paper_says(options):
    with doubles():
        learner = built("td3_bc", **{**GIVEN, **options}, normalize_observations=False)
        assert_learns_as(learner, reference(learner, **options), updates=6)


def test_a_learner_made_by_hand_has_the_papers_values():
    with doubles():
        learner = TD3BC(model=MLPTD3Model(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8)), **GIVEN)
        assert_learns_as(learner, reference(learner))


def test_observations_are_normalised_by_default_wherever_a_network_sees_them():
    with doubles():
        learner = built("td3_bc", **GIVEN)
        statistics = fitted(learner)
        assert_learns_as(learner, reference(learner), change=far, seen=lambda batch: scaled(batch, *statistics))
