"""FQF: fractions by Proposition 1, nothing leaking between fractions and quantiles, values weighed by mass."""

import numpy as np
import pytest
import torch

from rl_training.algorithms import fqf
from rl_training.algorithms.fqf import FQF, fraction_gradient
from rl_training.algorithms.qr_dqn import quantile_loss
from rl_training.models import MLPFQFNetwork
from rl_training.models.mlp_fqf_network import fractions_of


def network(**changes):
    return MLPFQFNetwork(
        **{"obs_dim": 3, "action_dim": 2, "num_quantiles": 4, "hidden_sizes": (16, 16), "embedding_dim": 8} | changes
    )


def make(**changes):
    options = {"learning_rate": 1e-3, "fraction_learning_rate": 1e-2, "gamma": 0.9, "target_update_interval": 100}
    return FQF(q_network=network(), **{**options, "num_quantiles": 4, **changes})


def batch(rows=6, **changes):
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn(rows, 3, generator=generator) for _ in range(2))
    plain = {"obs": obs, "actions": torch.arange(rows) % 2, "rewards": torch.ones(rows), "next_obs": next_obs}
    return {**plain, "dones": torch.zeros(rows), **changes}


# ---- the fractions of a known distribution: F⁻¹(t) = -ln(1 - t)


def exponential(t):
    return -torch.log1p(-t)


def taus_of(inner):
    edge = torch.zeros(1, dtype=inner.dtype)
    return torch.cat([edge, inner, 1 - edge])


def wasserstein(inner):
    """W1 between Exp(1) and its N quantiles at the middles, by the exact integral between the fractions."""
    taus = taus_of(inner)
    middles = (taus[1:] + taus[:-1]) / 2

    def integral(t):  # of -ln(1 - t)
        rest = 1 - t
        return t + torch.where(rest > 0, rest * torch.log(rest.clamp(min=1e-300)), torch.zeros_like(rest))

    theta = exponential(middles)
    below = theta * (middles - taus[:-1]) - (integral(middles) - integral(taus[:-1]))
    above = (integral(taus[1:]) - integral(middles)) - theta * (taus[1:] - middles)
    return (below + above).sum()


def gradient_at(inner):
    taus = taus_of(inner)
    middles = (taus[1:] + taus[:-1]) / 2
    return fraction_gradient(exponential(inner)[None], exponential(middles)[None])[0]


def descend_fractions(n, steps=60_000, lr=0.02):
    inner = torch.arange(1, n, dtype=torch.float64) / n
    for _ in range(steps):
        inner = inner - lr * gradient_at(inner) * (1 - inner)
    return inner


def test_the_fraction_gradient_is_that_of_the_distance():
    inner = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    assert gradient_at(inner).tolist() == pytest.approx([-0.02817, -0.06454, -0.28768], abs=1e-5)
    for i in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[i] = 1e-6
        numeric = (wasserstein(inner + shift) - wasserstein(inner - shift)) / 2e-6
        assert gradient_at(inner)[i].item() == pytest.approx(numeric.item(), abs=1e-6)


def test_descent_finds_the_best_fractions_of_an_exponential():
    start = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    assert wasserstein(start).item() == pytest.approx(0.25885, abs=1e-5)
    best = descend_fractions(4)
    assert best.tolist() == pytest.approx([0.4, 0.7, 0.9], abs=1e-6)
    assert wasserstein(best).item() == pytest.approx(0.22314, abs=1e-5)


def test_eight_fractions_gain_more():
    start = torch.arange(1, 8, dtype=torch.float64) / 8
    assert wasserstein(start).item() == pytest.approx(0.15106, abs=1e-5)
    assert wasserstein(descend_fractions(8)).item() == pytest.approx(0.11778, abs=1e-5)


def test_equal_spacing_is_best_for_a_uniform_distribution():
    taus = torch.arange(0, 9) / 8
    middles = (taus[1:] + taus[:-1]) / 2
    assert fraction_gradient(taus[None, 1:-1], middles[None]).abs().max() < 1e-6


# ---- fractions


def test_fractions_run_from_zero_to_one_with_their_middles_and_entropy():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    fractions = fractions_of(logits)
    assert fractions.taus[0].tolist() == pytest.approx([0, 0.1, 0.3, 0.6, 1.0])
    assert fractions.tau_hats[0].tolist() == pytest.approx([0.05, 0.2, 0.45, 0.8])
    p = np.array([0.1, 0.2, 0.3, 0.4])
    assert fractions.entropies.item() == pytest.approx(-(p * np.log(p)).sum())  # of the probabilities, not of τ


def test_fractions_are_nearly_equal_at_first():
    probabilities = network(num_quantiles=32).propose(torch.randn(10, 16)).probabilities
    assert (probabilities - 1 / 32).abs().max() < 2e-3


def test_forward_shapes():
    out = network()(torch.randn(5, 3))
    assert out.quantile_hats.shape == (5, 2, 4) and out.quantiles_hat is out.quantile_hats
    assert out.taus.shape == (5, 5) and out.tau_hats.shape == (5, 4)
    assert out.quantiles_tau.shape == (5, 2, 3) and out.entropies.shape == (5,)
    image = network(obs_dim=None, obs_shape=(1, 36, 36))
    assert image(torch.zeros(2, 1, 36, 36, dtype=torch.uint8)).quantile_hats.shape == (2, 2, 4)


def test_values_weigh_quantiles_by_mass():
    """F⁻¹(t) = t has mean .5 for any fractions, because the middles are exact for it."""
    fractions = fractions_of(torch.randn(20, 6) * 3)
    values = (fractions.probabilities * fractions.tau_hats).sum(1)
    assert values.tolist() == pytest.approx([0.5] * 20, abs=1e-5)
    net, obs = network(), torch.randn(4, 3)
    out = net(obs)
    mass = out.taus[:, 1:] - out.taus[:, :-1]
    assert torch.allclose(net.values(obs), (mass[:, None] * out.quantile_hats).sum(-1), atol=1e-6)
    assert torch.equal(net.act(obs), net.values(obs).argmax(1))


# ---- gradients stay where they belong


def grads(loss, parameters):
    return torch.autograd.grad(loss, list(parameters), allow_unused=True)


def test_the_two_parts_are_all_parameters_and_do_not_overlap():
    net = network()
    fraction, quantile = set(net.fraction_parameters()), set(net.quantile_parameters())
    assert not fraction & quantile and fraction | quantile == set(net.parameters())


def test_quantiles_give_the_fraction_head_no_gradient():
    net = network()
    out = net(torch.randn(5, 3))
    assert all(g is None for g in grads(out.quantile_hats.sum() + out.q_values.sum(), net.fraction_parameters()))


def test_fractions_give_everything_else_no_gradient():
    net = network()
    out = net(torch.randn(5, 3))
    loss = (out.quantiles_tau.detach().mean(1) * out.taus[:, 1:-1]).sum() + out.entropies.sum()
    assert all(g is None for g in grads(loss, net.quantile_parameters()))
    assert all(g is not None for g in grads(loss, net.fraction_parameters()))


@pytest.mark.parametrize(("frozen", "moving"), [("fraction", "quantile"), ("quantile", "fraction")])
def test_a_part_with_a_vanishing_rate_stays_while_the_other_learns(frozen, moving):
    rates = {"learning_rate": 1e-2, "fraction_learning_rate": 1e-2}
    rates["fraction_learning_rate" if frozen == "fraction" else "learning_rate"] = 1e-30
    agent = make(**rates)
    before = {part: [p.clone() for p in getattr(agent.q_network, f"{part}_parameters")()] for part in (frozen, moving)}
    for step in range(3):
        agent.update(batch(), global_step=step)
    changed = {
        part: any(
            not torch.allclose(a, b, rtol=0, atol=1e-20)
            for a, b in zip(before[part], getattr(agent.q_network, f"{part}_parameters")())
        )
        for part in before
    }
    assert changed == {frozen: False, moving: True}


def test_one_encoder_pass_per_observation_and_network():
    agent, passes = make(double_q=True), []
    for name in ("q_network", "target_network"):
        getattr(agent, name).encoder.register_forward_hook(lambda *_, name=name: passes.append(name))
    agent.update(batch(), global_step=0)
    assert sorted(passes) == ["q_network", "q_network", "target_network"]  # s, s' online; s' target


# ---- updates


def test_metrics_and_td_errors():
    agent = make()
    result = agent.update(batch(), global_step=0)
    names = {
        "loss",
        "fraction_loss",
        "entropy_loss",
        "q_value_mean",
        "target_mean",
        "td_error_mean",
        "fraction_entropy",
    }
    assert set(result.metrics) >= names
    assert agent.last_td_errors.shape == (6,)
    assert result.metrics["entropy_loss"] == pytest.approx(-1e-3 * result.metrics["fraction_entropy"])


def test_termination_kills_the_bootstrap_and_discounts_replace_gamma():
    assert make().update(batch(dones=torch.ones(6)), global_step=0).metrics["target_mean"] == pytest.approx(1.0)
    assert make().update(batch(discounts=torch.zeros(6)), global_step=0).metrics["target_mean"] == pytest.approx(1.0)


def test_the_target_network_copies_fractions_and_quantiles():
    agent = make(target_update_interval=2)
    agent.update(batch(), global_step=0)
    same = [torch.equal(a, b) for a, b in zip(agent.q_network.parameters(), agent.target_network.parameters())]
    assert not any(same)
    agent.update(batch(), global_step=1)
    pairs = zip(agent.q_network.parameters(), agent.target_network.parameters())
    assert all(torch.equal(a, b) for a, b in pairs)


def test_scaling_by_the_range_makes_fractions_indifferent_to_the_size_of_returns():
    losses = {}
    for scaling in ("range", "none"):
        for size in (1.0, 100.0):
            torch.manual_seed(0)
            agent = make(fraction_scaling=scaling)
            with torch.no_grad():
                for p in agent.q_network.head[-1].parameters():
                    p *= size
            losses[scaling, size] = agent.update(batch(), global_step=0).metrics["fraction_loss"]
    assert losses["range", 100.0] == pytest.approx(losses["range", 1.0], rel=1e-3)
    assert losses["none", 100.0] == pytest.approx(100 * losses["none", 1.0], rel=1e-3)


def test_entropy_alone_makes_fractions_equal():
    agent = make(entropy_coef=1e6, fraction_learning_rate=1e-2)
    with torch.no_grad():
        agent.q_network.fraction_head.bias += torch.tensor([1.0, -1.0, 0.5, -0.5])
    first = agent.update(batch(), global_step=0).metrics["fraction_entropy"]
    for step in range(300):
        last = agent.update(batch(), global_step=step).metrics["fraction_entropy"]
    # steps of 0.01 keep logits within a few hundredths of each other, which costs a few thousandths at most, whatever the seed
    assert first < 1.3 and last == pytest.approx(np.log(4), abs=5e-3)


def test_acting_in_numpy_equals_the_network():
    agent = make()
    with torch.no_grad():
        agent.q_network.fraction_head.bias += torch.tensor([1.0, -1.0, 0.5, -0.5])
    obs = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    assert agent._values._forward.in_numpy
    with torch.no_grad():
        expected = agent.q_network.values(torch.from_numpy(obs)).numpy()
    assert agent._values.on_arrays(obs, None) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("everywhere", "count"), [(True, 7), (False, 4)])
def test_quantiles_are_trained_at_the_midpoints_and_with_the_option_at_the_fractions(everywhere, count, monkeypatch):
    agent, trained = make(train_at_fractions=everywhere), []

    def watched(batch, predicted, *rest, **options):
        trained.append(predicted)
        return quantile_loss(batch, predicted, *rest, **options)

    monkeypatch.setattr(fqf, "quantile_loss", watched)
    agent.update(batch(), global_step=0)
    assert trained[0].values.shape == trained[0].taus.shape == (6, count)
    assert not trained[0].taus.requires_grad
    fractions = agent.target_network.propose(agent.target_network.encode(batch()["obs"]))  # as before the update
    assert torch.allclose(trained[0].taus[:, :4], fractions.tau_hats)


def test_fractions_of_an_exponential_reward_come_near_their_best():
    """One state, Exp(1): from W1 .151 at equal fractions a good part of the way to .118."""
    torch.manual_seed(0)
    agent = FQF(
        q_network=network(num_quantiles=8, hidden_sizes=(32, 32), embedding_dim=32), num_quantiles=8, learning_rate=2e-3,
        fraction_learning_rate=1e-2, gamma=0.9, target_update_interval=1000, kappa=0.02,
    )  # fmt: skip
    for step in range(1200):
        for optimizer in agent.optimizers():
            optimizer.scale_lr(1 - step / 1200)
        rewards = torch.empty(128).exponential_()
        data = {"obs": torch.zeros(128, 3), "next_obs": torch.zeros(128, 3), "actions": torch.zeros(128).long()}
        agent.update({**data, "rewards": rewards, "dones": torch.ones(128)}, global_step=step)
    with torch.no_grad():
        taus = agent.q_network(torch.zeros(1, 3)).taus[0].double()
    assert wasserstein(taus[1:-1]).item() < 0.135
    assert taus.diff().min() > 1e-3


def test_fractions_begin_at_zero_and_end_at_one_exactly():
    torch.manual_seed(0)
    logits = torch.cat([torch.randn(2_000, 32), 5 * torch.randn(2_000, 32)])
    logits[:500, -1] = -40.0  # nothing left for the last: the sum before it rounds to either side of 1
    fractions = fractions_of(logits)
    assert (logits.softmax(-1).cumsum(-1) > 1).any()  # plain sums exceed it
    assert (fractions.taus[:, 0] == 0).all() and (fractions.taus[:, -1] == 1).all()
    assert (fractions.taus.diff(dim=1) >= 0).all() and (fractions.tau_hats <= 1).all()


def test_inner_fractions_have_the_gradient_of_the_sum_of_probabilities():
    torch.manual_seed(0)
    logits = torch.randn(50, 8)
    logits[:10, -1] = -40.0
    weights = torch.randn(50, 7)
    given, expected = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    (weights * fractions_of(given).taus[:, 1:-1]).sum().backward()
    (weights * expected.softmax(-1).cumsum(-1)[:, :-1]).sum().backward()
    assert torch.allclose(given.grad, expected.grad, atol=1e-6)
