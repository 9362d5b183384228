"""Compiled updates of BC, IQL, TD3+BC and CQL against the references that their eager updates are held to."""

import pytest

from built_learners import DIM, assert_learns_as, built
from compiling import compiles
from oracles.bc import BC
from oracles.cql import CQL
from oracles.iql import IQL
from oracles.td3_bc import TD3BC

RATES = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.1}
CONSERVATIVE = {**RATES, "actor_learning_rate": 0.004, "num_cql_samples": 2, "cql_alpha": 5.0}

CASES = {  # options of the learner; its reference, and what the reference is given beside them
    "bc": ({"learning_rate": 0.01, "loss": "likelihood"}, BC, {"kind": "likelihood"}),
    "iql": ({**RATES, "expectile": 0.75}, IQL, {"inverse_temperature": 3.0, "largest_weight": 100.0}),
    "td3_bc": (
        {**RATES, "normalize_observations": False},
        TD3BC,
        {"alpha": 2.5, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2},
    ),
    "cql": (CONSERVATIVE, CQL, {"alpha": "auto", "target_entropy": -1.0 * DIM, "backup_entropy": False}),
}


@compiles
@pytest.mark.parametrize("algo", CASES)
def test_a_compiled_update_is_the_papers_too(algo):
    options, reference, beside = CASES[algo]
    learner = built(algo, **options)
    learner.use_compiled()
    shared = {name: value for name, value in options.items() if name not in ("loss", "normalize_observations")}
    network = learner.policy if algo == "bc" else learner.model
    networks = {"networks": (("policy", "weights"),)} if algo == "bc" else {}
    assert_learns_as(learner, reference(network.state_dict(), **shared, **beside), **networks)
    assert learner.compiled
