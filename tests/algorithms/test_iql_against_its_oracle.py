"""IQL's whole updates against a reference in plain torch, for every option that changes them."""

import pytest
import torch

from built_learners import DIM, OBS, assert_learns_as, built, doubles, far, fitted, scaled
from oracles.iql import IQL as Reference
from rl_training.algorithms.iql import IQL
from rl_training.models import MLPIQLModel

GIVEN = {"learning_rate": 0.01, "gamma": 0.9, "tau": 0.1, "expectile": 0.75}  # 0.75 is the same in float32


def reference(learner, **options):
    usual = {**GIVEN, "inverse_temperature": 3.0, "largest_weight": 100.0}
    return Reference(learner.model.state_dict(), **{**usual, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expectile": 0.25},
        {"inverse_temperature": 0.5, "gamma": 0.5},
        {"inverse_temperature": 0.0},
        {"largest_weight": 1.1},
        {"learning_rate": 0.002, "tau": 1.0},
    ],
    ids=str,
)
def test_a_config_learns_what_the_paper_says(options):
    with doubles():
        learner = built("iql", **{**GIVEN, **options})
        assert_learns_as(learner, reference(learner, **options))


def test_no_action_weighs_more_than_a_hundred_by_default():
    """Target critics that value every action a thousand above what the value network says."""
    with doubles():
        learner = built("iql", **GIVEN)
        oracle = reference(learner)
        for critics in (learner.target_model.critics[-1].bias.data, oracle.target["critics.4.bias"].data):
            critics += 1000.0
        assert_learns_as(learner, oracle)


def test_a_learner_made_by_hand_has_the_papers_values():
    model = MLPIQLModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8))
    learner = IQL(model=model, learning_rate=0.01, gamma=0.9, tau=0.1)
    oracle = reference(learner, expectile=0.7)
    learner.target_model.critics[-1].bias.data += 1.5  # weights on both sides of the largest
    oracle.target["critics.4.bias"].data += 1.5
    assert_learns_as(learner, oracle)


def test_observations_are_normalised_wherever_a_network_sees_them():
    with doubles():
        learner = built("iql", **GIVEN, normalize_observations=True)
        statistics = fitted(learner)
        assert_learns_as(learner, reference(learner), change=far, seen=lambda batch: scaled(batch, *statistics))


def test_the_actor_alone_has_a_rate_of_its_own_and_a_schedule():
    rates, scales = (1.0, 0.7, 0.4, 0.1), (1.0, 0.5, 0.5, 0.2)
    with doubles():
        model = MLPIQLModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8))
        learner = IQL(model=model, **GIVEN, actor_learning_rate=0.004)
        oracle = reference(learner, actor_learning_rate=0.004, actor_rates=[r * s for r, s in zip(rates, scales)])

        def at(number):  # the schedule of all rates, and that of the actor's
            for optimizer in learner.optimizers():
                optimizer.scale_lr(scales[number])
            learner.set_control("actor_rate", rates[number])
            for optimizer in (oracle.critic_optimizer, oracle.value_optimizer):
                optimizer.param_groups[0]["lr"] = 0.01 * scales[number]

        assert_learns_as(learner, oracle, before_update=at)


@pytest.mark.parametrize("log_std", [-5.5, 2.5])
def test_log_deviations_beyond_their_bounds_are_cut(log_std):
    with doubles():
        model = MLPIQLModel(obs_dim=OBS, action_dim=DIM, hidden_sizes=(8, 8))
        model.log_std.data[:] = torch.tensor([log_std, 0.0])
        learner = IQL(model=model, **GIVEN)
        assert_learns_as(learner, reference(learner))
        assert learner.model.log_std[0] == log_std
