"""Noisy layers and dueling streams, for every member of the value-based family."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.models.host import host_forward
from rl_training.models.mlp_q_network import DuelingHead
from rl_training.models.noisy import NoisyLinear, signed_root


def test_dueling_is_value_plus_advantage_over_its_mean():
    head = DuelingHead(3, (), 4, 2, torch.nn.Linear)
    x = torch.randn(5, 3)
    q = head(x).view(5, 4, 2)
    assert torch.allclose(q.mean(1), head.value(x), atol=1e-6)
    advantages = head.advantage(x).view(5, 4, 2)
    assert torch.allclose(q - q.mean(1, keepdim=True), advantages - advantages.mean(1, keepdim=True), atol=1e-6)


def test_noise_is_drawn_by_every_pass_in_training_and_by_none_in_evaluation():
    layer, x = NoisyLinear(4, 3), torch.randn(2, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_noise_is_factorised_and_scaled_by_sigma():
    layer, x = NoisyLinear(4, 3), torch.randn(2, 4)
    torch.manual_seed(0)
    y = layer(x)
    torch.manual_seed(0)
    noise_in, noise_out = signed_root(torch.randn(4)), signed_root(torch.randn(3))
    weight = layer.weight + layer.weight_sigma * torch.outer(noise_out, noise_in)
    bias = layer.bias + layer.bias_sigma * noise_out
    assert torch.allclose(y, x @ weight.T + bias, atol=1e-6)
    assert layer.weight_sigma.unique().tolist() == pytest.approx([0.5 / 2])


def test_weights_are_uniform_within_one_over_the_root_of_the_inputs():
    layer = NoisyLinear(16, 400)
    for weights in (layer.weight, layer.bias):
        assert -0.25 <= weights.min() < -0.24 and 0.24 < weights.max() <= 0.25 and weights.mean().abs() < 0.04


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_acting_in_numpy_equals_the_network(dueling, noisy):
    network = MLPQRQNetwork(
        obs_dim=3, action_dim=2, num_quantiles=5, hidden_sizes=(8, 6), dueling=dueling, noisy=noisy
    ).eval()
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    with torch.no_grad():
        expected = network.body(torch.from_numpy(obs)).numpy()
    assert host_forward(network.body)(obs) == pytest.approx(expected, abs=1e-5)


def test_noise_while_acting_has_the_spread_of_the_networks():
    network = MLPQNetwork(obs_dim=3, action_dim=1, hidden_sizes=(8,), noisy=True)
    obs = np.ones((1, 3), np.float32)
    forward, rng = host_forward(network.body), np.random.default_rng(0)
    ours = np.array([forward(obs, rng)[0, 0] for _ in range(4000)])
    with torch.no_grad():
        theirs = np.array([network(torch.from_numpy(obs)).item() for _ in range(4000)])
    assert ours.mean() == pytest.approx(theirs.mean(), abs=0.05)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.1)


def test_greedy_acting_has_no_noise_and_exploring_has():
    agent = DQN(
        q_network=MLPQNetwork(obs_dim=3, action_dim=4, hidden_sizes=(8,), noisy=True),
        learning_rate=1e-3, gamma=0.9, target_update_interval=10,
    )  # fmt: skip
    obs = np.zeros((1, 3), np.float32)
    rng = np.random.default_rng(0)
    assert len({int(agent.act(obs, deterministic=True, rng=rng).actions[0]) for _ in range(50)}) == 1
    assert len({int(agent.act(obs, rng=rng).actions[0]) for _ in range(200)}) > 1


FOUR = {"num_quantiles": 4}


@pytest.mark.parametrize(
    ("made", "kind", "sizes", "own"),
    [
        (DQN, MLPQNetwork, {}, {}),
        (QRDQN, MLPQRQNetwork, FOUR, FOUR),
        (IQN, MLPIQNetwork, FOUR, FOUR),
        (FQF, MLPFQFNetwork, FOUR, {**FOUR, "fraction_learning_rate": 1e-3}),
    ],
)
def test_the_noise_of_a_few_rows_is_drawn_from_the_given_generator_alone(made, kind, sizes, own):
    network = kind(obs_dim=3, action_dim=4, hidden_sizes=(8, 8), noisy=True, **sizes)
    agent = made(q_network=network, learning_rate=1e-3, gamma=0.9, target_update_interval=10, **own)
    before, obs = torch.get_rng_state(), np.ones((3, 3), np.float32)
    rng = np.random.default_rng(0)
    agent.act(obs, rng=rng)
    assert torch.equal(torch.get_rng_state(), before)
    assert rng.bit_generator.state != np.random.default_rng(0).bit_generator.state


@pytest.mark.parametrize("kind", [MLPQNetwork, MLPQRQNetwork, MLPIQNetwork, MLPFQFNetwork])
@pytest.mark.parametrize("shape", [{"obs_dim": 3}, {"obs_shape": (2, 36, 36)}])
@pytest.mark.parametrize(("dueling", "noisy"), [(True, False), (False, True), (True, True)])
def test_every_network_has_every_form(kind, shape, dueling, noisy):
    quantiles = {} if kind is MLPQNetwork else {"num_quantiles": 4}
    network = kind(**shape, action_dim=3, hidden_sizes=(8, 6), dueling=dueling, noisy=noisy, **quantiles)
    obs = torch.randn(2, 3) if "obs_dim" in shape else torch.zeros(2, 2, 36, 36, dtype=torch.uint8)
    assert network.act(obs).shape == (2,)
    kinds = {type(layer) for layer in network.modules()}
    assert (NoisyLinear in kinds) == noisy and (DuelingHead in kinds) == dueling
