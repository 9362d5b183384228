"""SAC's whole updates against a reference in plain torch, for every option that changes them."""

import pytest
import torch

from built_learners import DIM, OBS, assert_learns_as, built, doubles, far, fitted, scaled
from compiling import compiles
from oracles.comparing import FLOAT32, FLOAT64
from oracles.sac import SAC as Reference
from rl_training.algorithms.sac import SAC
from rl_training.models import MLPSACModel

GIVEN = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.1}


def reference(learner, **options):
    usual = {**GIVEN, "alpha": "auto", "target_entropy": -1.0 * DIM}
    return Reference(learner.model.state_dict(), **{**usual, **options})


def assert_same_temperature(learner, oracle, tolerance=FLOAT64):
    assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.3},
        {"target_entropy": 1.5},
        {"tau": 1.0},
        {"gamma": 0.5, "learning_rate": 0.003},
    ],
    ids=str,
)
def test_a_config_learns_what_the_paper_says(options):
    with doubles():
        learner = built("sac", **{**GIVEN, **options})
        oracle = reference(learner, **options)
        assert_learns_as(learner, oracle)
        assert_same_temperature(learner, oracle)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"backup_entropy": False}, {}),
        ({"initial_alpha": 0.2}, {}),
        ({"actor_learning_rate": 0.002}, {}),
        ({}, {"num_critics": 1}),
        ({}, {"num_critics": 3, "layer_norm": True}),
        ({"alpha": 0.05, "backup_entropy": False}, {"layer_norm": True}),
    ],
    ids=str,
)
def test_a_learner_of_ones_own_sizes_learns_what_the_paper_says(options, sizes):
    with doubles():
        model = MLPSACModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8), **sizes)
        learner = SAC(model=model, **{**GIVEN, "alpha": "auto", **options})
        oracle = reference(learner, layer_norm=sizes.get("layer_norm", False), **options)
        assert_learns_as(learner, oracle)
        assert_same_temperature(learner, oracle)


def test_without_a_temperature_entropy_counts_for_nothing():
    with doubles():
        learner = built("sac", **GIVEN, alpha=0.0)
        assert_learns_as(learner, reference(learner, alpha=1e-30))


def test_observations_are_normalised_wherever_a_network_sees_them():
    with doubles():
        learner = built("sac", **GIVEN, normalize_observations=True)
        statistics = fitted(learner)
        assert_learns_as(
            learner, reference(learner), change=far, seen=lambda batch: scaled(batch, *statistics, clip=10)
        )


def test_rows_over_several_steps_bring_their_own_discount():
    with doubles():
        learner = built("sac", **GIVEN)
        discounts = torch.tensor([0.81, 0.9, 0.729, 0.81, 0.9, 0.5])
        assert_learns_as(learner, reference(learner), change=lambda batch: {**batch, "discounts": discounts})


def test_log_deviations_beyond_their_bounds_are_cut():
    """Deviations are between exp(-20) and exp(2); where the network asks for others, it gets no gradient."""
    with doubles():
        model = MLPSACModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8))
        with torch.no_grad():
            model.actor[-1].bias[DIM:] = torch.tensor([4.0, -25.0])
        learner = SAC(model=model, **GIVEN, alpha="auto")
        assert_learns_as(learner, reference(learner))
        assert model.actor[-1].bias[DIM:].tolist() == [4.0, -25.0]


@compiles
def test_a_compiled_update_is_the_papers_too():
    learner = built("sac", **GIVEN)
    learner.use_compiled()
    oracle = reference(learner)
    assert_learns_as(learner, oracle)
    assert learner.compiled
    assert_same_temperature(learner, oracle, FLOAT32)
