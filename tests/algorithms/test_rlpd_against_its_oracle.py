"""RLPD's whole updates against a reference in plain torch, for every option that changes them."""

import pytest
import torch

from built_learners import DIM, OBS, assert_learns_as, built, doubles, far, fitted, scaled, transitions
from compiling import compiles
from oracles.comparing import FLOAT32, FLOAT64, assert_same_metrics, assert_same_parameters
from oracles.rlpd import RLPD as Reference
from rl_training.algorithms.rlpd import RLPD
from rl_training.models import MLPSACModel
from rl_training.models.mlp import EnsembleLinear

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
        steps = options.get("gradient_updates_per_step", 3)
        assert_learns_as(learner, oracle, rows=12, gradient_steps=steps)
        assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=1e-9)


def test_a_learner_made_by_hand_takes_one_step_on_the_smaller_of_two_critics():
    with doubles():
        model = MLPSACModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8), num_critics=4)
        learner = RLPD(model=model, learning_rate=0.01, gamma=0.9, tau=0.1, alpha="auto")
        assert_learns_as(learner, reference(learner, gradient_updates_per_step=1, layer_norm=False))


def test_a_model_that_does_not_say_how_many_critics_it_has_has_two():
    with doubles():
        model = MLPSACModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8))
        del model.num_critics
        learner = RLPD(model=model, learning_rate=0.01, gamma=0.9, tau=0.1, alpha="auto", target_subset=1)
        options = {"gradient_updates_per_step": 1, "target_subset": 1, "layer_norm": False}
        assert_learns_as(learner, reference(learner, **options))


def test_observations_are_normalised_wherever_a_network_sees_them():
    with doubles():
        learner = built("rlpd", **GIVEN, normalize_observations=True)
        statistics = fitted(learner)
        assert_learns_as(
            learner,
            reference(learner),
            rows=12,
            gradient_steps=3,
            change=far,
            seen=lambda batch: scaled(batch, *statistics, clip=10),
        )


def test_an_update_of_the_critics_alone_leaves_actor_and_temperature_as_they_are():
    with doubles():
        learner = built("rlpd", **GIVEN)
        oracle = reference(learner)
        actor = {name: tensor.clone() for name, tensor in learner.model.state_dict().items() if "actor" in name}
        for number in range(3):
            batch = transitions(12, seed=number)
            torch.manual_seed(number)
            result = learner.update_critics(
                {name: column.clone() for name, column in batch.items()}, global_step=number
            )
            torch.manual_seed(number)
            assert_same_metrics(result.metrics, oracle.update_critics(batch), tolerance=1e-6)
        assert_same_parameters(learner.model, oracle.weights, tolerance=FLOAT64, name="model")
        assert_same_parameters(learner.target_model, oracle.target, tolerance=FLOAT64, name="target_model")
        assert actor and all(torch.equal(learner.model.state_dict()[name], tensor) for name, tensor in actor.items())
        assert learner.alpha == 1.0


@compiles
def test_a_compiled_update_is_the_papers_too():
    learner = built("rlpd", **GIVEN)
    learner.use_compiled()
    oracle = reference(learner)
    assert_learns_as(learner, oracle, rows=12, gradient_steps=3)
    assert learner.compiled
    assert learner.alpha == pytest.approx(oracle.log_alpha.exp().item(), rel=FLOAT32)


def test_weights_start_uniform_by_fan_in_and_fan_out_and_biases_at_zero():
    for layer in built("rlpd").model.modules():
        if isinstance(layer, EnsembleLinear | torch.nn.Linear):
            bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
            assert 0.7 * bound < layer.weight.abs().max() <= bound and not layer.bias.any()
