"""Implicit quantiles: embedding, sampled fractions, targets, acting."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.iqn import IQN
from rl_training.models import MLPIQNetwork


def network(**changes):
    return MLPIQNetwork(
        **{"obs_dim": 3, "action_dim": 2, "num_quantiles": 5, "hidden_sizes": (16, 16), "embedding_dim": 8} | changes
    )


def make(**changes):
    options = {"learning_rate": 1e-3, "gamma": 0.9, "target_update_interval": 100, "num_quantiles": 5, **changes}
    return IQN(q_network=network(), **options)


def batch(rows=6, **changes):
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn(rows, 3, generator=generator) for _ in range(2))
    plain = {"obs": obs, "actions": torch.arange(rows) % 2, "rewards": torch.ones(rows), "next_obs": next_obs}
    return {**plain, "dones": torch.zeros(rows), **changes}


def test_forward_gives_quantiles_and_the_fractions_they_belong_to():
    net, obs = network(), torch.randn(4, 3)
    quantiles, taus = net(obs)
    assert quantiles.shape == (4, 2, 5) and taus.shape == (4, 5)
    assert ((taus >= 0) & (taus < 1)).all()
    assert net(obs, num_quantiles=9)[0].shape == (4, 2, 9)
    again, _ = net(obs, taus=taus)
    assert torch.equal(quantiles, again)


def test_random_fractions_differ_by_call_and_fixed_ones_are_midpoints():
    net, obs = network(), torch.randn(2, 3)
    assert not torch.equal(net(obs)[1], net(obs)[1])
    assert net(obs, num_quantiles=4, random_taus=False)[1][0].tolist() == [0.125, 0.375, 0.625, 0.875]


def test_a_fraction_is_embedded_by_cosines_of_its_multiples():
    net = network()
    features, tau = torch.randn(1, 16), 0.3
    cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(8)])
    embedded = torch.relu(net.embedding[0](cosines))
    expected = net.head(features[0] * embedded)
    assert torch.allclose(net.quantiles(features, torch.tensor([[tau]]))[0, :, 0], expected, atol=1e-5)


def test_rows_and_fractions_do_not_mix():
    net, obs, taus = network(), torch.randn(3, 3), torch.rand(3, 5)
    together, _ = net(obs, taus=taus)
    alone, _ = net(obs[1:2], taus=taus[1:2, 2:3])
    assert torch.allclose(together[1, :, 2], alone[0, :, 0], atol=1e-6)


class Linear(torch.nn.Module):
    """Quantiles (a + 1) τ + s for action a, whatever the features: exact means."""

    def __init__(self, offset):
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor(float(offset)))

    def encode(self, obs):
        return obs

    def quantiles(self, features, taus):
        return torch.stack([taus, 2 * taus], 1) + self.offset + 0 * features[:, :1, None]


@pytest.mark.parametrize("double", [True, False])
def test_the_target_is_the_best_actions_return_at_random_fractions(double):
    agent = IQN(
        q_network=Linear(0), learning_rate=1e-9, gamma=0.5, target_update_interval=1000, num_quantiles=64,
        action_samples=64, double_q=double,
    )  # fmt: skip
    with torch.no_grad():
        agent.target_network.offset.fill_(3.0)
    means = [agent.update(batch(32), global_step=i).metrics["target_mean"] for i in range(20)]
    assert np.mean(means) == pytest.approx(1 + 0.5 * (1 + 3), abs=0.02)  # action 1: mean of 2τ is 1


def test_termination_kills_the_bootstrap_and_discounts_replace_gamma():
    assert make().update(batch(dones=torch.ones(6)), global_step=0).metrics["target_mean"] == 1.0
    assert make().update(batch(discounts=torch.zeros(6)), global_step=0).metrics["target_mean"] == 1.0


def test_metrics_and_td_errors():
    agent = make()
    result = agent.update(batch(), global_step=0)
    assert set(result.metrics) >= {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert agent.last_td_errors.shape == (6,)


def test_acting_samples_fractions_and_deterministic_acting_does_not():
    agent = make()
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    one, two = (agent._values.on_arrays(obs, np.random.default_rng(seed)) for seed in (1, 2))
    assert not np.array_equal(one, two)
    assert np.array_equal(agent._values.on_arrays(obs, None), agent._values.on_arrays(obs, None))
    with torch.no_grad():
        expected = agent.q_network(torch.from_numpy(obs), num_quantiles=32, random_taus=False)[0].mean(-1)
    assert agent._values.on_arrays(obs, None) == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_network_acts_by_midpoints():
    torch.manual_seed(0)
    net, obs = network(action_dim=20, num_quantiles=1), 3 * torch.randn(500, 3)
    best = net(obs, random_taus=False)[0].mean(-1).argmax(1)
    assert torch.equal(net.act(obs), best) and not torch.equal(net(obs)[0].mean(-1).argmax(1), best)


def test_it_learns_the_quantiles_of_an_exponential_reward():
    torch.manual_seed(0)
    agent = IQN(
        q_network=network(hidden_sizes=(32, 32), embedding_dim=16), learning_rate=2e-3, gamma=0.9,
        target_update_interval=1000, num_quantiles=16, kappa=0.05,
    )  # fmt: skip
    for step in range(1500):
        rewards = torch.empty(64).exponential_()
        data = {"obs": torch.zeros(64, 3), "next_obs": torch.zeros(64, 3), "actions": torch.zeros(64).long()}
        agent.update({**data, "rewards": rewards, "dones": torch.ones(64)}, global_step=step)
    with torch.no_grad():
        quantiles, taus = agent.q_network(torch.zeros(1, 3), num_quantiles=4, random_taus=False)
    assert quantiles[0, 0].numpy() == pytest.approx((-torch.log1p(-taus[0])).numpy(), abs=0.25)


def test_stratified_fractions_are_uniform_and_one_lies_in_each_part():
    torch.manual_seed(0)
    taus = make(stratified=True).fractions(4_000)
    assert torch.equal((taus * 5).floor(), torch.arange(5.0).expand(4_000, 5))
    assert torch.allclose(taus.mean(0), torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]), atol=5e-3)
    assert torch.allclose(taus.var(0), torch.full((5,), 1 / 300), rtol=0.1)
    independent = make().fractions(4_000)
    assert independent.mean(1).var() > 20 * taus.mean(1).var()  # a mean over fractions has N² times less noise: 25 here
