"""A joint distribution of choices and numbers is that of its independent parts."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

from rl_training.models import MLPActorCritic, MLPPPGModel
from rl_training.models.joint_head import JointHead

COLUMNS = (3, 0, 2, 0, 0, 4)
SIZES, FREE = (3, 2, 4), [1, 3, 4]


def outputs(seed, rows=6):
    return torch.randn(rows, 9 + 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(x):
    logits = torch.split(x[:, :9], SIZES, -1)
    return [Categorical(logits=one) for one in logits], Normal(x[:, 9:12], x[:, 12:].exp())


def test_densities_entropies_and_divergences_are_sums_over_parts():
    head, x, y = JointHead(COLUMNS), outputs(0), outputs(1)
    choices, numbers = parts(x)
    actions = torch.zeros(6, 6, dtype=torch.float64)
    drawn = [one.sample() for one in choices]
    for column, value in zip((0, 2, 5), drawn):
        actions[:, column] = value
    actions[:, FREE] = numbers.sample()
    logp, entropy = head.evaluate(x, actions)
    expected = sum(one.log_prob(value) for one, value in zip(choices, drawn))
    torch.testing.assert_close(logp, expected + numbers.log_prob(actions[:, FREE]).sum(-1))
    torch.testing.assert_close(entropy, sum(one.entropy() for one in choices) + numbers.entropy().sum(-1))
    others, more = parts(y)
    divergence = sum(kl_divergence(a, b) for a, b in zip(choices, others)) + kl_divergence(numbers, more).sum(-1)
    torch.testing.assert_close(head.divergence(x, y), divergence)


def test_samples_lie_in_their_columns_with_their_log_probability():
    head, x = JointHead(COLUMNS), outputs(2).float()
    actions, logp = head.sample(np.repeat(x.numpy(), 500, 0), np.random.default_rng(0), False)
    assert actions.dtype == np.float32 and actions.shape == (3000, 6)
    again, _ = head.evaluate(x.repeat_interleave(500, 0), torch.from_numpy(actions))
    np.testing.assert_allclose(logp, again, rtol=1e-4, atol=1e-4)
    choices, numbers = parts(x)
    by_row = actions.reshape(6, 500, 6)
    for column, one in zip((0, 2, 5), choices):
        for row in range(6):
            counts = np.bincount(by_row[row, :, column].astype(int), minlength=one.probs.shape[-1]) / 500
            assert np.abs(counts - one.probs[row].numpy()).max() < 0.1
    assert np.abs((by_row[:, :, FREE] - numbers.mean[:, None].numpy()) / numbers.stddev[:, None].numpy()).mean() < 0.9


def test_the_best_action_has_its_scores():
    head, x = JointHead(COLUMNS), outputs(3).float()
    actions, _ = head.sample(x.numpy(), np.random.default_rng(0), True)
    best = head.best(x)
    for column, scores in zip((0, 2, 5), torch.split(best[:, :9], SIZES, -1)):
        assert actions[:, column].tolist() == scores.argmax(-1).tolist()
    assert torch.equal(best[:, 9:], x[:, 9:12])
    scored = head.scores(torch.from_numpy(actions))
    assert torch.equal(scored[:, 9:], x[:, 9:12])
    assert scored[:, :3].argmax(-1).tolist() == actions[:, 0].tolist()


@pytest.mark.parametrize("kind", [MLPActorCritic, MLPPPGModel])
def test_networks_have_a_deviation_for_each_number_and_act_in_numpy_as_in_torch(kind):
    network = kind(obs_dim=3, head=JointHead(COLUMNS), hidden_sizes=(8,), initial_log_std=-0.5)
    assert network.log_std.shape == (3,) and network.policy_head.out_features == 12
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for array, tensor in zip(network.host()(obs), network(torch.from_numpy(obs))):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert network.host().in_numpy
