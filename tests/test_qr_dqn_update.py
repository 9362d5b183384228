"""Quantile regression: the loss by hand, its fixed points, and QR-DQN's targets."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.qr_dqn import QRDQN, quantile_huber_loss
from rl_training.models import MLPQRQNetwork
from rl_training.models.mlp_iqn_network import midpoints
from toys import Table

EXPONENTIAL_QUANTILES = (0.1335, 0.4700, 0.9808, 2.0794)  # of Exp(1) at 1/8, 3/8, 5/8, 7/8


def transition(**changes):
    batch = {
        "obs": torch.tensor([[0.0]]), "actions": torch.tensor([0]), "rewards": torch.tensor([1.0]),
        "next_obs": torch.tensor([[1.0]]), "dones": torch.tensor([0.0]),
    }  # fmt: skip
    return {**batch, **{name: torch.tensor([value]) for name, value in changes.items()}}


def test_quantile_huber_by_hand():
    theta = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss, errors = quantile_huber_loss(theta, torch.tensor([0.25, 0.75]), torch.tensor([[2.0]]), kappa=1.0)
    assert loss.tolist() == [0.75]  # .25 (2 - .5) + .75 (.5)
    assert errors.tolist() == [1.5]
    loss.sum().backward()
    assert theta.grad.tolist() == [[-0.25, -0.75]]


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_sum_over_quantiles_mean_over_targets(kappa):
    rng = np.random.default_rng(0)
    theta, taus, targets = rng.normal(size=(5, 2)), rng.random((5, 2)), rng.normal(size=(5, 3)) * 2
    expected = np.zeros(5)
    for b in range(5):
        for i in range(2):
            for j in range(3):
                u = targets[b, j] - theta[b, i]
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                expected[b] += abs(taus[b, i] - (u < 0)) * huber / kappa / 3
    losses, errors = quantile_huber_loss(*(torch.tensor(x) for x in (theta, taus, targets)), kappa=kappa)
    assert losses.numpy() == pytest.approx(expected)
    assert errors.numpy() == pytest.approx(np.abs(targets[:, None] - theta[:, :, None]).mean((1, 2)))


def test_equal_masses_are_the_mean():
    theta, targets = torch.randn(4, 3), torch.randn(4, 5)
    plain = quantile_huber_loss(theta, midpoints(3), targets)
    weighed = quantile_huber_loss(theta, midpoints(3), targets, mass=torch.full((4, 5), 0.2))
    assert torch.allclose(plain[0], weighed[0]) and torch.allclose(plain[1], weighed[1])


def fit(tau, targets, mass=None, kappa=1e-3, steps=4000):
    theta = torch.zeros(1, len(tau), requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / steps)
        loss = quantile_huber_loss(theta, torch.tensor(tau), targets, kappa=kappa, mass=mass)[0].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return theta.detach()[0]


def test_mass_decides_which_target_a_quantile_settles_on():
    """Targets 0 (mass .9) and 1 (mass .1): the .6-quantile is 0; with equal masses it would be 1."""
    targets = torch.tensor([[0.0, 1.0]])
    assert fit([0.6], targets, torch.tensor([[0.9, 0.1]])).item() == pytest.approx(0, abs=0.02)
    assert fit([0.6], targets).item() == pytest.approx(1, abs=0.02)


def test_four_quantiles_of_an_exponential():
    samples = -torch.log1p(-midpoints(4000))[None]
    assert fit(midpoints(4).tolist(), samples).numpy() == pytest.approx(EXPONENTIAL_QUANTILES, abs=0.02)


def test_a_wide_kappa_pulls_quantiles_of_narrow_returns_together():
    """Below kappa the loss is an expectile's: where returns are narrow, the spread is underestimated."""
    samples = -torch.log1p(-midpoints(4000))[None] * 0.2
    exact = torch.tensor(EXPONENTIAL_QUANTILES) * 0.2
    wide = fit(midpoints(4).tolist(), samples, kappa=1.0)
    assert wide[3] - wide[0] < 0.8 * (exact[3] - exact[0])


def make(online, target, **changes):
    options = {"learning_rate": 0.1, "gamma": 0.9, "target_update_interval": 1000, "num_quantiles": 2, **changes}
    agent = QRDQN(q_network=Table(online), **options)
    agent.target_network.load_state_dict({"rows": torch.tensor(target, dtype=torch.float32)})
    return agent


ONLINE = [[[0, 0], [0, 0]], [[5, 5], [1, 1]]]
TARGET = [[[0, 0], [0, 0]], [[2, 4], [3, 5]]]


def test_the_best_action_by_mean_gives_the_target_quantiles():
    metrics = make(ONLINE, TARGET).update(transition(), global_step=0).metrics
    assert metrics["target_mean"] == pytest.approx(1 + 0.9 * 4)


def test_double_q_chooses_by_the_online_and_evaluates_by_the_target_network():
    metrics = make(ONLINE, TARGET, double_q=True).update(transition(), global_step=0).metrics
    assert metrics["target_mean"] == pytest.approx(1 + 0.9 * 3)


def test_termination_kills_the_bootstrap_and_discounts_replace_gamma():
    assert make(ONLINE, TARGET).update(transition(dones=1.0), global_step=0).metrics["target_mean"] == 1.0
    metrics = make(ONLINE, TARGET).update(transition(discounts=0.5), global_step=0).metrics
    assert metrics["target_mean"] == pytest.approx(1 + 0.5 * 4)


def test_loss_metrics_and_td_errors():
    agent = make(ONLINE, TARGET)
    result = agent.update(transition(), global_step=0)
    assert set(result.metrics) >= {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    # targets 1 + .9 (3, 5) = 3.7, 5.5; quantiles 0, 0 at 1/4, 3/4
    assert result.metrics["loss"] == pytest.approx(0.25 * (3.2 + 5.0) / 2 + 0.75 * (3.2 + 5.0) / 2)
    assert agent.last_td_errors.tolist() == pytest.approx([4.6])


def test_weights_scale_each_rows_loss():
    plain = make(ONLINE, TARGET).update(transition(), global_step=0).metrics["loss"]
    half = make(ONLINE, TARGET).update(transition(weights=0.5), global_step=0).metrics["loss"]
    assert half == pytest.approx(plain / 2)


def test_acting_takes_the_largest_mean():
    agent = make([[[0, 4], [1, 1]], [[0, 0], [0, 1]]], TARGET)
    assert agent.act(np.array([[0.0], [1.0]], np.float32), deterministic=True).actions.tolist() == [0, 1]


def test_network_shapes_and_acting():
    network = MLPQRQNetwork(obs_dim=3, action_dim=2, num_quantiles=7, hidden_sizes=(8,))
    obs = torch.randn(5, 3)
    assert network(obs).shape == (5, 2, 7)
    assert torch.equal(network.act(obs), network(obs).mean(-1).argmax(-1))
    assert set(network.act(torch.randn(200, 3), epsilon=1.0).tolist()) == {0, 1}
    assert MLPQRQNetwork(obs_shape=(1, 36, 36), action_dim=2, num_quantiles=3, hidden_sizes=(8,))(
        torch.zeros(2, 1, 36, 36, dtype=torch.uint8)
    ).shape == (2, 2, 3)
