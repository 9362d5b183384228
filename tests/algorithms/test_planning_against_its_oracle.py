"""Searches for action sequences against references that go through candidates one by one."""

import math

import pytest
import torch

from oracles import planning
from oracles.precision import double_precision
from rl_training.algorithms.planning import CEM, ICEM, RandomShooting

LOW, HIGH = [[-1.0, -2.0]] * 5, [[1.0, 0.5]] * 5


@pytest.fixture(autouse=True)
def _double():
    with double_precision():
        yield


def rugged(plans):
    """Many hills, and a region without a value."""
    values = (
        (3 * plans).sin().sum((1, 2)) - (plans - 0.3).square().sum((1, 2)) + plans[:, :-1].mul(plans[:, 1:]).sum((1, 2))
    )
    return torch.where(plans[:, 2, 0] > 0.8, math.nan, torch.where(plans[:, 0, 1] < -1.8, math.inf, values))


def searched(planner, reference, mean, **options):
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    ends = []
    for search in (planner, lambda *args: reference(*args, **options)):
        torch.manual_seed(3)
        ends.append(search(rugged, low, high, mean))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
    return ends[0]


@pytest.mark.parametrize("start", [None, 0.7])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.6])
@pytest.mark.parametrize(("kind", "reference"), [(CEM, planning.cem), (ICEM, planning.icem)], ids=["cem", "icem"])
def test_a_search_with_elites(kind, reference, alpha, start):
    """From the middle of the box, or from a plan of which a part lies out of it; twelve iterations end early."""
    mean = None if start is None else torch.linspace(-0.9, start, 10).roll(1).view(5, 2)
    for candidates, iterations in ((40, 3), (12, 12)):
        options = {"candidates": candidates, "elites": 5, "iterations": iterations, "alpha": alpha}
        searched(kind(**options), reference, mean, **options)


@pytest.mark.parametrize("horizon", [1, 2, 3, 6])
def test_coloured_noise_of_any_length(horizon):
    torch.manual_seed(0)
    ours = ICEM().noise(7, torch.zeros(horizon, 2))
    torch.manual_seed(0)
    theirs = planning.coloured(torch.randn(7, 2, horizon)).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_random_shooting():
    searched(RandomShooting(60), planning.random_shooting, None, candidates=60)


def test_the_defaults_are_those_of_the_papers():
    assert CEM() == CEM(candidates=400, elites=40, iterations=5, alpha=0.1, smallest_variance=1e-3)
    assert ICEM() == ICEM(candidates=400, elites=40, iterations=5, alpha=0.1, colour=2.0, decay=1.25, kept=0.3)
