"""SAC's maths: the squashed density, targets, temperature, who learns from what."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.sac import SAC, actor_loss, critic_loss, sac_loss, temperature_loss
from rl_training.models import MLPSACModel
from rl_training.models.heads import squash
from rl_training.models.mlp_sac import SampledActions


@pytest.mark.parametrize("mean", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("std", [0.05, 1.0, 3.0])
def test_the_squashed_density_integrates_to_one(mean, std):
    noise = torch.linspace(-8, 8, 20_001, dtype=torch.float64)[:, None]
    _, logp = squash(torch.full_like(noise, mean), torch.full_like(noise, math.log(std)), noise)
    u = mean + std * noise[:, 0]
    log_da_du = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
    density_in_u = (logp + log_da_du).exp()
    assert torch.trapezoid(density_in_u, u).item() == pytest.approx(1.0, abs=1e-4)


def test_the_squashed_density_equals_torchs():
    mean, log_std, noise = (
        torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    log_std = log_std * 0.3
    actions, logp = squash(mean, log_std, noise)
    truth = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    assert torch.allclose(logp, truth.log_prob(actions).sum(-1), atol=1e-6)


@pytest.mark.parametrize("u", [-50.0, 50.0])
def test_the_density_and_its_gradient_are_finite_far_out(u):
    mean = torch.tensor([[u]], requires_grad=True)
    _, logp = squash(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    logp.sum().backward()
    assert torch.isfinite(logp).all() and torch.isfinite(mean.grad).all()


def test_the_deterministic_action_is_the_tanh_of_the_mean():
    model = MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8,))
    obs = torch.randn(4, 2)
    assert torch.allclose(model.sample_actions(obs, deterministic=True).actions, model.policy(obs)[0].tanh())


class Constant(nn.Module):
    """Critics that always say the same, an actor with one known action."""

    def __init__(self, q=(3.0, 5.0), logp=-2.0):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(q))
        self.mean = nn.Parameter(torch.zeros(1))
        self.logp = logp

    def policy(self, obs):
        return self.mean.expand(len(obs), 1), torch.zeros(len(obs), 1)

    def sample_actions(self, obs, *, deterministic=False, noise=None):
        return SampledActions(self.mean.expand(len(obs), 1), self.mean * 0 + torch.full((len(obs),), self.logp))

    def q_values(self, obs, actions):
        return tuple(q.expand(len(obs)) + 0 * actions[:, 0] for q in self.q)

    def actor_parameters(self):
        return [self.mean]

    def critic_parameters(self):
        return [self.q]


def batch(done=0.0, rows=1, dim=1):
    return {
        "obs": torch.zeros(rows, 2), "actions": torch.zeros(rows, dim), "rewards": torch.ones(rows),
        "next_obs": torch.zeros(rows, 2), "dones": torch.full((rows,), done),
    }  # fmt: skip


@pytest.mark.parametrize(("done", "target"), [(0.0, 4.6), (1.0, 1.0)])
def test_the_target_subtracts_entropy_and_takes_the_smaller_critic(done, target):
    agent = SAC(model=Constant(), learning_rate=1e-3, gamma=0.9, alpha=0.5, tau=0.005)
    assert agent.update(batch(done), global_step=0).metrics["target_q_mean"] == pytest.approx(target)


def test_a_low_entropy_raises_the_temperature_and_a_high_one_lowers_it():
    for logp, sign in ((5.0, 1), (-5.0, -1)):
        log_alpha = torch.zeros((), requires_grad=True)
        temperature_loss(log_alpha, torch.tensor([logp]), -1.0).backward()
        assert -log_alpha.grad.item() * sign > 0
    agent = SAC(model=Constant(logp=5.0), learning_rate=1e-2, gamma=0.9, alpha="auto", tau=0.005)
    agent.update(batch(), global_step=0)
    assert agent.alpha > 1.0


def test_a_fixed_temperature_stays():
    agent = SAC(model=Constant(logp=5.0), learning_rate=1e-2, gamma=0.9, alpha=0.3, tau=0.005)
    agent.update(batch(), global_step=0)
    assert agent.alpha == pytest.approx(0.3)


def test_losses_by_hand():
    one = lambda x: torch.tensor([float(x)])  # noqa: E731
    terms = sac_loss({"q1_values": one(1), "q2_values": one(4), "target_q_values": one(2), "sampled_logprobs": one(-1),
                      "sampled_q1": one(7), "sampled_q2": one(6), "alpha": torch.tensor(0.5)})  # fmt: skip
    assert terms["critic_loss"].item() == pytest.approx((1 - 2) ** 2 + (4 - 2) ** 2)
    assert terms["actor_loss"].item() == pytest.approx(0.5 * -1 - 6)
    assert terms["entropy_term"].item() == pytest.approx(0.5 * -1) and terms["target_q_mean"].item() == 2


def test_actor_loss_leaves_critics_alone_and_critic_loss_the_actor():
    torch.manual_seed(0)
    model = MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8,))
    obs, noise = torch.randn(4, 2), torch.randn(4, 1)
    agent = SAC(model=model, learning_rate=1e-3, gamma=0.9, alpha=0.5, tau=0.005)
    sampled = model.sample_actions(obs, noise=noise)
    actor = agent.actor_optimizer.gradient(
        actor_loss(sampled.logprobs, torch.stack(model.q_values(obs, sampled.actions)).amin(0), torch.tensor(0.5))
    )
    assert actor.abs().sum() > 0
    assert all(p.grad is None for p in model.critic_parameters())
    q = torch.stack(model.q_values(obs, sampled.actions.detach()))
    with pytest.raises(RuntimeError):  # the actor does not take part in the critics' loss
        agent.actor_optimizer.gradient(critic_loss(q, torch.zeros(4)))


def test_targets_are_in_no_optimizer_and_follow_by_tau():
    torch.manual_seed(0)
    model = MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8,))
    agent = SAC(model=model, learning_rate=1e-2, gamma=0.9, alpha="auto", tau=0.25)
    owned = {id(p) for optimizer in agent.optimizers() for p in optimizer.params}
    assert not owned & {id(p) for p in agent.target_model.parameters()}
    before = [p.clone() for p in agent.target_model.critic_parameters()]
    agent.update(batch(rows=8), global_step=0)
    for old, new, online in zip(before, agent.target_model.critic_parameters(), model.critic_parameters()):
        assert torch.allclose(new, old + 0.25 * (online - old), atol=1e-6)


def test_update_metrics_have_stable_names():
    agent = SAC(
        model=MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8,)),
        learning_rate=1e-3,
        gamma=0.9,
        alpha="auto",
        tau=0.005,
    )
    metrics = agent.update(batch(rows=8), global_step=0).metrics
    assert set(metrics) >= {"critic_loss", "actor_loss", "target_q_mean", "entropy_term", "alpha"}
    assert all(math.isfinite(value) for value in metrics.values())


def test_acting_in_numpy_equals_the_torch_network():
    torch.manual_seed(0)
    model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16))
    agent = SAC(model=model, learning_rate=1e-3, gamma=0.9, alpha="auto", tau=0.005)
    obs = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    noise = np.random.default_rng(1).standard_normal((5, 2), dtype=np.float32)
    expected = model.sample_actions(torch.from_numpy(obs), noise=torch.from_numpy(noise)).actions.detach().numpy()
    assert agent.act(obs, rng=np.random.default_rng(1)).actions == pytest.approx(expected, abs=1e-5)
    agent.update({**batch(rows=8, dim=2), "obs": torch.randn(8, 3), "next_obs": torch.randn(8, 3)}, global_step=0)
    moved = model.sample_actions(torch.from_numpy(obs), deterministic=True).actions.detach().numpy()
    assert agent.act(obs, deterministic=True).actions == pytest.approx(moved, abs=1e-5)  # the views follow the update


def test_batched_critics_equal_separate_networks():
    torch.manual_seed(0)
    model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,), num_critics=3)
    x = torch.randn(5, 5)
    for i, q in enumerate(model.q_values(x[:, :3], x[:, 3:])):
        h = (x @ model.critics[0].weight[i] + model.critics[0].bias[i]).relu()
        assert torch.allclose(q, (h @ model.critics[2].weight[i] + model.critics[2].bias[i])[:, 0], atol=1e-6)
