"""The networks of DQN, QR-DQN, IQN and FQF compute what their papers say: values, gradients, noise, greedy actions."""

import numpy as np
import pytest
import torch

from oracles import q_networks
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.models.action_values import ActionValues, FractionQuantileMeans, ProposedQuantileMeans, QuantileMeans

ACTIONS, ATOMS = 3, 4
FORMS = [(dueling, noisy) for dueling in (False, True) for noisy in (False, True)]
OBSERVATIONS = {
    "vectors": ({"obs_dim": 3, "hidden_sizes": (8, 6)}, lambda: torch.randn(5, 3)),
    "one hidden layer": ({"obs_dim": 3, "hidden_sizes": (8,)}, lambda: torch.randn(5, 3)),
    "three hidden layers": ({"obs_dim": 3, "hidden_sizes": (8, 7, 6)}, lambda: torch.randn(5, 3)),
    "pictures": (
        {"obs_shape": (2, 36, 36), "hidden_sizes": (6,)},
        lambda: torch.randint(256, (5, 2, 36, 36), dtype=torch.uint8),
    ),
}


@pytest.mark.parametrize(("dueling", "noisy"), FORMS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", [MLPQNetwork, MLPQRQNetwork, MLPIQNetwork, MLPFQFNetwork])
def test_outputs_and_their_gradients(kind, observations, dueling, noisy):
    shape, draw = OBSERVATIONS[observations]
    sizes = {} if kind is MLPQNetwork else {"num_quantiles": ATOMS}
    network, obs = kind(**shape, action_dim=ACTIONS, dueling=dueling, noisy=noisy, **sizes), draw()
    form = {"dueling": dueling, "noisy": q_networks.torchs if noisy else None}
    taus = torch.rand(5, ATOMS)
    torch.manual_seed(1)
    if kind in (MLPQNetwork, MLPQRQNetwork):
        ours = network(obs).view(5, ACTIONS, -1)
    else:
        ours = network.quantiles(network.encode(obs), taus)
    torch.manual_seed(1)
    weights = {name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()}
    if kind in (MLPQNetwork, MLPQRQNetwork):
        theirs = q_networks.q_values(weights, obs, ACTIONS, **form)
    else:
        theirs = q_networks.quantiles(weights, obs, taus, ACTIONS, **form)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    direction = torch.randn_like(ours)
    learned = {name: p for name, p in network.named_parameters() if not name.startswith("fraction_head")}
    mine = torch.autograd.grad((ours * direction).sum(), list(learned.values()))
    expected = torch.autograd.grad((theirs * direction).sum(), [weights[name] for name in learned])
    for name, gradient, known in zip(learned, mine, expected):
        torch.testing.assert_close(gradient, known, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def outputs(network, obs):
    return q_networks.q_values(dict(network.named_parameters()), obs, ACTIONS, dueling=False, noisy=None)


def mean_of_quantiles(network, obs, taus, mass):
    weights = dict(network.named_parameters())
    values = q_networks.quantiles(weights, obs, taus, ACTIONS, dueling=False, noisy=None)
    return (values * mass[:, None]).sum(-1)


@pytest.mark.parametrize("rows", [1, 5, 300])  # by numpy, and for many rows by torch
def test_action_values_are_means_of_quantiles_by_their_mass(rows):
    obs = torch.randn(rows, 3)
    shape = {"obs_dim": 3, "action_dim": ACTIONS, "hidden_sizes": (8, 6)}
    midpoints, equal = torch.tensor([[(i + 0.5) / 5 for i in range(5)]] * rows), torch.full((rows, 5), 0.2)
    q, qr, implicit, proposing = (
        MLPQNetwork(**shape), MLPQRQNetwork(**shape, num_quantiles=ATOMS), MLPIQNetwork(**shape),
        MLPFQFNetwork(**shape, num_quantiles=ATOMS),
    )  # fmt: skip
    with torch.no_grad():
        proposing.fraction_head.weight.normal_()
        mass = torch.softmax(proposing.fraction_head(proposing.encode(obs)), 1)
        upper = torch.stack([mass[:, : i + 1].sum(1) for i in range(ATOMS)], 1)
        cases = [
            (ActionValues(q), q, outputs(q, obs)[..., 0]),
            (QuantileMeans(qr, ATOMS), qr, outputs(qr, obs).mean(-1)),
            (FractionQuantileMeans(implicit, 5), implicit, mean_of_quantiles(implicit, obs, midpoints, equal)),
            (ProposedQuantileMeans(proposing), proposing, mean_of_quantiles(proposing, obs, upper - mass / 2, mass)),
        ]  # fmt: skip
        for values, network, expected in cases:
            assert values.on_arrays(obs.numpy(), None) == pytest.approx(expected.numpy(), abs=1e-4)
            assert values.on_tensors(network, obs).numpy() == pytest.approx(expected.numpy(), abs=1e-4)
            if network is not implicit:
                assert torch.equal(network.act(obs), expected.argmax(1))


@pytest.mark.parametrize("rows", [2, 300])
def test_exploring_iqn_values_actions_at_fractions_of_the_stream(rows):
    network = MLPIQNetwork(obs_dim=3, action_dim=ACTIONS, hidden_sizes=(8, 6))
    obs = torch.randn(rows, 3)
    taus = torch.from_numpy(np.random.default_rng(4).random((rows, 5), "f4"))
    with torch.no_grad():
        expected = mean_of_quantiles(network, obs, taus, torch.full((rows, 5), 0.2))
    found = FractionQuantileMeans(network, 5).on_arrays(obs.numpy(), np.random.default_rng(4))
    assert found == pytest.approx(expected.numpy(), abs=1e-4)
