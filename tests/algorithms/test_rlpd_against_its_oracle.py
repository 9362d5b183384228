"""RLPD's whole updates against a reference in plain torch, for every option that changes them."""

import pytest

from built_learners import DIM, assert_learns_as, built, doubles, far, fitted, scaled
from oracles.comparing import FLOAT32
from oracles.rlpd import RLPD as Reference
from rl_training.optim.compiled import cannot_compile

GIVEN = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.1, "num_critics": 5, "gradient_updates_per_step": 3}
NAMES = {"gradient_updates_per_step": "updates_per_batch"}


def reference(learner, **options):
    usual = {**GIVEN, "alpha": "auto", "target_entropy": -0.5 * DIM, "target_subset": 2, "layer_norm": True}
    mine = {NAMES.get(name, name): value for name, value in {**usual, **options}.items() if name != "num_critics"}
    return Reference(learner.model.state_dict(), **mine)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.3},
        {"target_entropy": 1.5},
        {"backup_entropy": False},
        {"layer_norm": False, "num_critics": 2},
        {"target_subset": 1},
        {"target_subset": 5},
        {"gradient_updates_per_step": 1, "tau": 0.5},
    ],
    ids=str,
)
def test_a_config_learns_what_the_paper_says(options):
    with doubles():
        learner = built("rlpd", **{**GIVEN, **options})
        oracle = reference(learner, **options)
        assert_learns_as(learner, oracle, rows=12)
        assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=1e-9)


def test_observations_are_normalised_wherever_a_network_sees_them():
    with doubles():
        learner = built("rlpd", **GIVEN, normalize_observations=True)
        statistics = fitted(learner)
        assert_learns_as(
            learner, reference(learner), rows=12, change=far, seen=lambda batch: scaled(batch, *statistics, clip=10)
        )


@pytest.mark.skipif(cannot_compile() is not None, reason="compiling is not possible here")
@pytest.mark.timeout(900)
def test_a_compiled_update_is_the_papers_too():
    learner = built("rlpd", **GIVEN)
    learner.use_compiled()
    oracle = reference(learner)
    assert_learns_as(learner, oracle, rows=12)
    assert learner.compiled
    assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=FLOAT32)
