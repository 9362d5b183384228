"""Behaviour cloning's maths: densities by known forms, the best fit by hand."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.bc import BC, bc_loss
from rl_training.models import MLPPolicy
from rl_training.models.heads import Categorical, Point, SquashedGaussian


def learned(head, actions, *, updates=400, learning_rate=3e-2):
    """The policy after many updates on one observation with these actions."""
    torch.manual_seed(0)
    agent = BC(policy=MLPPolicy(obs_dim=1, head=head, hidden_sizes=(8,)), learning_rate=learning_rate)
    batch = {"obs": torch.ones(len(actions), 1), "actions": actions}
    for _ in range(updates):
        agent.update(batch, global_step=0)
    return agent, agent.policy(torch.ones(1, 1)).detach()


def test_the_loss_is_minus_the_mean_log_probability():
    assert bc_loss({"logprobs": torch.tensor([-1.0, -3.0])})["loss"] == 2.0


def test_squared_error_finds_the_mean_action():
    _, outputs = learned(Point(1), torch.tensor([[0.1], [0.2], [0.6]]))
    assert outputs.tanh().item() == pytest.approx(0.3, abs=1e-3)


def test_likelihood_finds_the_mean_and_deviation_before_squashing():
    u = torch.tensor([[-0.5], [0.5], [1.5]])
    _, outputs = learned(SquashedGaussian(1), u.tanh(), updates=1500)
    assert outputs[0, 0].item() == pytest.approx(0.5, abs=0.02)
    assert outputs[0, 1].exp().item() == pytest.approx(float(u.std(correction=0)), abs=0.02)


def test_choices_are_matched_in_frequency():
    _, logits = learned(Categorical(3), torch.tensor([0, 1, 1, 1]), updates=800)
    assert logits.softmax(-1)[0].tolist() == pytest.approx([0.25, 0.75, 0.0], abs=0.02)


def test_the_squashed_density_of_given_actions_equals_torchs():
    outputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.5
    actions = torch.rand(50, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1.8 - 0.9
    logp, _ = SquashedGaussian(2).evaluate(outputs, actions)
    truth = TransformedDistribution(Normal(outputs[:, :2], outputs[:, 2:].exp()), [TanhTransform()])
    assert torch.allclose(logp, truth.log_prob(actions).sum(-1))
    edge, _ = SquashedGaussian(2).evaluate(outputs, torch.ones_like(actions))
    assert torch.isfinite(edge).all()


def test_the_host_sampler_knows_the_density_of_what_it_drew():
    head, rng = SquashedGaussian(2), np.random.default_rng(0)
    outputs = rng.standard_normal((64, 4)).astype(np.float32) * 0.5 - np.array([0, 0, 2, 2], np.float32)  # well inside
    actions, logp = head.sample(outputs, rng, deterministic=False)
    again, _ = head.evaluate(torch.from_numpy(outputs), torch.from_numpy(actions))
    assert np.allclose(logp, again.numpy(), atol=1e-3) and np.abs(actions).max() < 1
    best, _ = head.sample(outputs, rng, deterministic=True)
    assert np.allclose(best, np.tanh(outputs[:, :2]))
