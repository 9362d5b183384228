"""Planners on objectives with known answers."""

import pytest
import torch

from rl_training.algorithms.planning import CEM, ICEM, RandomShooting, best_of, truncated_deviation, truncated_noise

LOW, HIGH = torch.full((3, 2), -1.0), torch.full((3, 2), 2.0)


def towards(goal, seen=None):
    def objective(plans):
        if seen is not None:
            seen.append(plans)
        return -(plans - goal).square().sum((1, 2))

    return objective


@pytest.mark.parametrize(
    "planner", [CEM(2_000, 200, 40, smallest_variance=0.0), ICEM(iterations=20)], ids=["cem", "icem"]
)
def test_the_best_plan_is_found_inside_the_box_and_on_its_face(planner):
    torch.manual_seed(0)
    inside = torch.tensor([[0.3, -0.5], [1.5, 0.0], [-0.9, 1.9]])
    seen = []
    assert torch.allclose(planner(towards(inside, seen), LOW, HIGH), inside, atol=0.03)
    outside = torch.full((3, 2), 5.0)
    assert torch.allclose(planner(towards(outside, seen), LOW, HIGH), HIGH, atol=0.05)
    every = torch.cat(seen)
    assert (every >= LOW).all() and (every <= HIGH).all()


def test_random_shooting_takes_the_best_it_has_seen():
    torch.manual_seed(0)
    seen = []
    plan = RandomShooting(500)(towards(torch.zeros(3, 2), seen), LOW, HIGH)
    assert torch.equal(plan, seen[0][towards(torch.zeros(3, 2))(seen[0]).argmax()])


def test_how_much_of_the_old_stays():
    mean, variance, elite = torch.zeros(3, 2), torch.ones(3, 2), torch.randn(10, 3, 2)
    assert all(torch.equal(a, b) for a, b in zip(CEM(alpha=1.0).moved(mean, variance, elite), (mean, variance)))
    new = CEM(alpha=0.0).moved(mean, variance, elite)
    assert torch.allclose(new[0], elite.mean(0)) and torch.allclose(new[1], elite.var(0, correction=0))


def test_plans_without_a_value_are_never_elite():
    plans = torch.arange(6.0)[:, None, None]
    values = torch.tensor([torch.nan, -5.0, torch.nan, -2.0, torch.nan, -9.0])
    assert best_of(plans, values, 3).flatten().tolist() == [3.0, 1.0, 5.0]


def test_plans_of_infinite_value_are_never_elite():
    plans = torch.arange(6.0)[:, None, None]
    values = torch.tensor([torch.inf, -5.0, torch.nan, -2.0, -torch.inf, -9.0])
    assert best_of(plans, values, 3).flatten().tolist() == [3.0, 1.0, 5.0]
    assert best_of(plans, values, 5).flatten().tolist() == [3.0, 1.0, 5.0]  # rather fewer than those
    assert best_of(plans, torch.full((6,), torch.inf), 3).shape == (1, 1, 1)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize(
    "planner", [CEM(500, 50, 10), ICEM(500, 50, 10), RandomShooting(5_000)], ids=["cem", "icem", "random"]
)
def test_a_planner_stays_away_from_where_the_model_diverges(planner, bad):
    torch.manual_seed(0)
    goal = torch.full((3, 2), 0.5)

    def objective(plans):
        return torch.where((plans[:, 0, 0] < -0.2), bad, towards(goal)(plans))

    assert planner(objective, LOW, HIGH)[0, 0] > -0.2 and (planner(objective, LOW, HIGH) - goal).abs().max() < 0.9


def test_deviations_leave_room_for_two_of_them():
    mean = torch.tensor([[-1.0, 0.5], [1.9, 2.0], [0.0, 0.0]])
    std = truncated_deviation(mean, torch.full((3, 2), 0.5625), LOW, HIGH)
    assert ((mean - 2 * std >= LOW - 1e-6) & (mean + 2 * std <= HIGH + 1e-6)).all()
    assert std[0, 0] == 0 and std[0, 1] == 0.75 and std[2, 0] == 0.5


def test_noise_is_cut_at_two():
    noise = truncated_noise((50_000,), torch.device("cpu"))
    assert noise.abs().max() <= 2 and noise.std().item() == pytest.approx(0.880, abs=0.01)


def test_a_start_is_used_and_the_variance_begins_anew():
    seen = []
    goal = torch.full((3, 2), 1.5)
    CEM(iterations=1, candidates=2_000)(towards(goal, seen), LOW, HIGH, goal)
    assert torch.allclose(seen[0].mean(0), goal, atol=0.03) and (seen[0].std(0) > 0.1).all()


def test_coloured_noise_has_unit_deviation_and_moves_slowly():
    noise = ICEM().noise(4_000, torch.zeros(20, 2))
    assert noise.shape == (4_000, 20, 2) and noise.std().item() == pytest.approx(1.0, abs=0.05)
    steps = (noise[:, 1:] - noise[:, :-1]).std().item()
    assert steps < 0.6 * 2**0.5  # white noise has the square root of two
