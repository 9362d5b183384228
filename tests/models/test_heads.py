"""Distributions over boxes: densities that integrate to one, entropies that are true or not reported, and one path for host and torch."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.models.heads import MAX_STD, MIN_STD, BoundedNormal, Point, SquashedGaussian
from rl_training.models.rssm import Size

SMALL = Size(deter=16, hidden=16, latents=3, classes=4, units=16, depth=2, blocks=2)
RAW = [(0.0, 0.0), (1.5, -3.0), (-20.0, 20.0), (0.3, -200.0)]  # mean and deviation, as the network gives them


def agent(**changes):
    torch.manual_seed(0)
    learner = Dreamer(obs_shape=(2,), size=SMALL, action_dim=2, imagination_horizon=4, **changes)
    torch.nn.init.normal_(learner.actor.net[-1].weight, std=1.0)  # far from the zeros it starts with
    return learner


@pytest.mark.parametrize(("mean", "std"), RAW)
def test_the_density_of_a_bounded_normal_integrates_to_one(mean: float, std: float):
    actions = torch.linspace(-12, 12, 200_001, dtype=torch.float64)[:, None]
    logp, _ = BoundedNormal(1).evaluate(
        torch.tensor([[mean, std]], dtype=torch.float64).expand(len(actions), -1), actions
    )
    assert torch.trapezoid(logp.exp(), actions[:, 0]).item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("mean", "std"), RAW)
def test_the_entropy_of_a_bounded_normal_is_minus_the_mean_log_probability_of_its_own_samples(mean: float, std: float):
    outputs = torch.tensor([[mean, 0.5, std, 1.0]]).repeat(40_000, 1)
    actions, logp = BoundedNormal(2).sample(outputs.numpy(), np.random.default_rng(0), False)
    _, entropy = BoundedNormal(2).evaluate(outputs[:1], torch.zeros(1, 2))
    # of two dimensions, each a half chi-squared of variance 1/2: a standard error of 1 / sqrt(40,000), and five of them
    assert -logp.mean() == pytest.approx(entropy.item(), abs=5 / 200)
    again, _ = BoundedNormal(2).evaluate(outputs, torch.from_numpy(actions))
    np.testing.assert_allclose(again, logp, rtol=1e-4, atol=1e-4)


def test_a_bounded_normals_mean_and_deviation_stay_within_their_bounds_whatever_the_network_says():
    raw = torch.tensor([[-1e30, -1e30], [-3.0, -5.0], [0.0, 0.0], [3.0, 5.0], [1e30, 1e30]])
    mean, std = BoundedNormal(1).distribution(raw)
    assert mean[:, 0].tolist() == pytest.approx([-1, math.tanh(-3), 0, math.tanh(3), 1])
    middle = MIN_STD + (MAX_STD - MIN_STD) / (1 + math.exp(-2))  # the paper's: sigmoid(2) of the range at the start
    low, high = (MIN_STD + (MAX_STD - MIN_STD) / (1 + math.exp(-x)) for x in (-3, 7))
    assert std[:, 0].tolist() == pytest.approx([MIN_STD, low, middle, high, MAX_STD])
    _, entropy = BoundedNormal(1).evaluate(raw, torch.zeros(5, 1))
    least, most = (math.log(s) + 0.5 * math.log(2 * math.pi * math.e) for s in (MIN_STD, MAX_STD))
    assert (entropy >= least - 1e-6).all() and (entropy <= most + 1e-6).all()


def test_a_bounded_normal_draws_the_same_distribution_on_the_host_and_in_torch():
    outputs = torch.tensor([[0.4, -2.0]]).repeat(100_000, 1)
    torch.manual_seed(0)
    drawn = BoundedNormal(1).draw(outputs)
    host, _ = BoundedNormal(1).sample(outputs.numpy(), np.random.default_rng(0), False)
    mean, std = (x[0, 0].item() for x in BoundedNormal(1).distribution(outputs[:1]))
    for samples in (drawn.numpy(), host):
        assert samples.mean() == pytest.approx(mean, abs=5 * std / 316)
        assert samples.std() == pytest.approx(std, abs=5 * std / 447)
    assert np.abs(host).max() > 1  # not squashed


def test_what_a_bounded_normal_draws_has_no_gradient():
    assert not BoundedNormal(2).draw(torch.randn(7, 4, requires_grad=True)).requires_grad


def test_a_bounded_normal_at_its_best_is_its_mean_in_every_path():
    outputs = torch.randn(7, 4)
    best = BoundedNormal(2).best(outputs)
    actions, logp = BoundedNormal(2).sample(outputs.numpy(), np.random.default_rng(0), True)
    np.testing.assert_allclose(actions, best, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(logp, BoundedNormal(2).evaluate(outputs, best)[0], rtol=1e-5, atol=1e-5)


def test_an_entropy_that_has_no_closed_form_is_not_reported():
    """At a log-deviation of 2 the Gaussian before the squash has 3.4 nats, and the squashed one -7.05."""
    outputs = torch.tensor([[0.0, 2.0]]).repeat(100_000, 1)
    _, logp = SquashedGaussian(1).sample(outputs.numpy(), np.random.default_rng(0), False)
    truth = 0.5 * math.log(2 * math.pi * math.e) + 2 + 2 * math.log(2) - 2 * math.exp(2) * math.sqrt(2 / math.pi)
    assert -logp.mean() == pytest.approx(
        truth, abs=0.2
    )  # but for the rounded tip of |u|: 2 E log(1 + exp(-2|u|)) = 0.09
    assert SquashedGaussian(1).evaluate(outputs[:1], torch.zeros(1, 1))[1] is None
    assert Point(1).evaluate(outputs[:1, :1], torch.zeros(1, 1))[1] is None


def test_actions_of_dreamer_lie_in_the_box_and_the_model_sees_what_the_environment_does():
    learner, rng = agent(), np.random.default_rng(0)
    obs = rng.standard_normal((200, 2)).astype(np.float32)
    acting = learner.act(obs, carry=None, rng=rng)
    assert np.abs(acting.actions).max() == 1.0 and (np.abs(acting.actions) < 1).any()
    np.testing.assert_array_equal(acting.carry[:, -2:], acting.actions)
    drawn = learner.actor.sample(torch.randn(500, learner.world_model.width))
    taken = learner.actor.as_inputs(drawn)
    assert drawn.abs().max() > 1 and torch.equal(taken, drawn.clamp(-1, 1))


def test_dreamers_actor_is_paid_for_an_entropy_that_is_its_own():
    """Without advantages, what an update changes is the entropy, and it rises; the deviations stay below their bound."""
    learner = agent(entropy_coef=1.0, actor_learning_rate=1e-2)
    batch = {
        "obs": torch.randn(6, 4, 2), "actions": torch.rand(6, 4, 2) * 2 - 1, "rewards": torch.zeros(6, 4),
        "dones": torch.zeros(6, 4), "episode_starts": torch.zeros(6, 4),
    }  # fmt: skip
    entropies = [learner.update_actor_critic(batch, global_step=0).metrics["dreamer_entropy"] for _ in range(40)]
    assert entropies[-1] > entropies[0] + 0.1
    assert entropies[-1] <= 2 * (math.log(MAX_STD) + 0.5 * math.log(2 * math.pi * math.e))


def test_dreamer_exported_acts_as_dreamer_does_over_an_episode():
    learner, module, carry = agent(), agent().policy_module(), None
    held = torch.from_numpy(learner.initial_carry(3))
    for _ in range(4):
        obs = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
        acting = learner.act(obs, carry=carry, deterministic=True)
        carry = acting.carry
        with torch.no_grad():
            actions, held = module(torch.from_numpy(obs), held)
        np.testing.assert_allclose(acting.actions, actions, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carry, held, rtol=1e-5, atol=1e-6)
