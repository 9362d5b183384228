"""Behaviour cloning's whole updates against a reference in plain torch, for every kind of action."""

import gymnasium as gym
import pytest
import torch

from built_learners import DIM, ROWS, assert_learns_as, built, doubles, far, fitted, scaled
from oracles.bc import BC as Reference

POLICY = (("policy", "weights"),)


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
@pytest.mark.parametrize("rate", [0.01, 0.003])
def test_boxes_by_squared_error_or_likelihood(loss, rate):
    with doubles():
        learner = built("bc", learning_rate=rate, loss=loss)
        oracle = Reference(learner.policy.state_dict(), learning_rate=rate, kind=loss)
        assert_learns_as(learner, oracle, networks=POLICY)


@pytest.mark.parametrize(
    ("space", "kind", "choices"),
    [
        (gym.spaces.Discrete(4), "discrete", (4,)),
        (gym.spaces.MultiDiscrete([2, 4]), "multi_discrete", (2, 4)),
        (gym.spaces.MultiBinary(DIM), "multi_binary", ()),
    ],
)
def test_choices_by_likelihood(space, kind, choices):
    generator = torch.Generator().manual_seed(7)
    bounds = choices or (2,) * DIM
    actions = torch.stack([torch.randint(n, (ROWS,), generator=generator) for n in bounds], -1)
    actions = actions[:, 0] if kind == "discrete" else actions
    with doubles():
        learner = built("bc", space, learning_rate=0.01)
        oracle = Reference(learner.policy.state_dict(), learning_rate=0.01, kind=kind, choices=choices)
        assert_learns_as(learner, oracle, networks=POLICY, change=lambda batch: {**batch, "actions": actions})


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_observations_are_normalised(loss):
    with doubles():
        learner = built("bc", loss=loss, normalize_observations=True)
        statistics = fitted(learner)
        oracle = Reference(learner.policy.state_dict(), learning_rate=0.01, kind=loss)
        assert_learns_as(learner, oracle, networks=POLICY, change=far, seen=lambda batch: scaled(batch, *statistics))
