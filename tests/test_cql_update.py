"""CQL's maths: the soft maximum by importance, its gradient, the shapes, and the discrete case."""

import math

import pytest
import torch
from torch import nn

from rl_training.algorithms import cql
from rl_training.algorithms.cql import CQL, DiscreteCQL, candidate_actions, conservative_gap, cql_loss, many_values
from rl_training.models import MLPSACModel
from rl_training.models.mlp_sac import SampledActions
from toys import Table


def agent(model=None, kind=CQL, **options):
    torch.manual_seed(0)
    model = model or MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16))
    rest = {"learning_rate": 1e-3, "gamma": 0.9, "alpha": 0.2, "tau": 0.005, "cql_alpha": 5.0, "num_cql_samples": 4}
    return kind(model=model, **{**rest, **options})


def batch(rows=8):
    generator = torch.Generator().manual_seed(0)
    return {
        "obs": torch.randn(rows, 3, generator=generator), "actions": torch.rand(rows, 2, generator=generator) * 2 - 1,
        "rewards": torch.ones(rows), "next_obs": torch.randn(rows, 3, generator=generator), "dones": torch.zeros(rows),
    }  # fmt: skip


def test_of_a_constant_the_soft_maximum_counts_the_volume_of_the_box():
    dim, samples, c = 3, 1000, 1.7
    q_values, uniform = torch.full((2, 5, samples), c), torch.full((5, samples), -dim * math.log(2))
    gap = conservative_gap(q_values, uniform, torch.full((2, 5), c))
    assert (gap - math.log(samples)).tolist() == pytest.approx([dim * math.log(2)] * 2, abs=1e-3)


def test_importance_makes_the_estimate_independent_of_where_actions_came_from():
    generator, c = torch.Generator().manual_seed(0), 2.0
    u = torch.randn(200_000, generator=generator)
    actions = u.tanh()
    density = -0.5 * u**2 - 0.5 * math.log(2 * math.pi) - torch.log1p(-(actions**2) + 1e-12)
    q_values = c * actions
    estimate = conservative_gap(q_values[None, None], density[None], torch.zeros(1, 1)) - math.log(len(u))
    truth = math.log((math.exp(c) - math.exp(-c)) / c)  # the integral of exp(c a) over [-1, 1]
    assert estimate.item() == pytest.approx(truth, abs=0.02)


def test_the_gradient_on_the_datas_action_is_minus_the_weight_over_the_batch():
    data, sampled = torch.zeros(1, 4, requires_grad=True), torch.zeros(1, 4, 6)
    (5.0 * conservative_gap(sampled, torch.zeros(4, 6), data).sum()).backward()
    assert data.grad.tolist() == [[-5.0 / 4] * 4]


def test_the_sum_runs_over_three_times_the_samples_of_each_state(monkeypatch):
    seen = {}

    def watch(q_values, log_densities, data_q_values, temperature):
        seen.update(sampled=q_values, densities=log_densities, values=data_q_values)
        return conservative_gap(q_values, log_densities, data_q_values, temperature)

    monkeypatch.setattr(cql, "conservative_gap", watch)
    agent().update(batch(), global_step=0)
    assert seen["values"].shape == (2, 8) and seen["sampled"].shape == (2, 8, 12) and seen["densities"].shape == (8, 12)
    assert torch.allclose(seen["densities"][:, :4], torch.tensor(-2 * math.log(2)))


def test_candidates_are_uniform_then_the_policys_here_then_there():
    uniform, drawn = torch.tensor([[[0.0], [0.75]]]), torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]]])
    actions, densities = candidate_actions(uniform, drawn, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert actions[0, :, 0].tolist() == pytest.approx([-1.0, 0.5, 0.1, 0.2, 0.3, 0.4])
    assert densities[0].tolist() == pytest.approx([-math.log(2), -math.log(2), 1.0, 2.0, 3.0, 4.0])


def test_many_actions_at_once_are_valued_as_one_by_one():
    model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16))
    obs, actions = torch.randn(5, 3), torch.rand(5, 7, 2)

    class Plain(nn.Module):
        q_values = staticmethod(model.q_values)

    at_once = model.q_values_of_many(obs, actions)
    assert torch.allclose(at_once, many_values(Plain(), obs, actions), atol=1e-6)
    single = torch.stack([torch.stack(model.q_values(obs, actions[:, m])) for m in range(7)], -1)
    assert torch.allclose(at_once, single, atol=1e-6)


def test_values_of_unseen_actions_fall_below_those_of_the_data():
    learner, rows = agent(learning_rate=3e-3), batch(64)
    for _ in range(200):
        learner.update(rows, global_step=0)
    with torch.no_grad():
        data = torch.stack(learner.model.q_values(rows["obs"], rows["actions"])).mean()
        others = torch.stack(learner.model.q_values(rows["obs"], -rows["actions"])).mean()
    assert data > others + 0.5


def test_targets_have_no_entropy_unless_requested():
    class Fixed(MLPSACModel):
        """Every action has the same log-density."""

        def sample_actions(self, obs, *, deterministic=False, noise=None):
            sampled = super().sample_actions(obs, deterministic=deterministic, noise=noise)
            return SampledActions(sampled.actions, 0 * sampled.logprobs - 3)

    def target(**options):
        torch.manual_seed(0)
        learner = agent(Fixed(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)), **options)
        return learner.update(batch(), global_step=0).metrics["target_q_mean"]

    assert target(backup_entropy=True) - target() == pytest.approx(0.9 * 0.2 * 3, abs=1e-5)


def test_a_lagrangian_weight_rises_while_the_gap_is_too_large_and_falls_when_it_is_small():
    for goal, sign in ((-100.0, 1), (100.0, -1)):
        learner = agent(lagrange=goal)
        before = learner.log_weight.value.item()
        learner.update(batch(), global_step=0)
        assert (learner.log_weight.value.item() - before) * sign > 0
    fixed = agent()
    fixed.update(batch(), global_step=0)
    assert fixed.log_weight.coefficient().item() == pytest.approx(5.0)


def test_at_first_the_actor_imitates_and_then_it_follows_the_critics():
    follower, imitator = agent(), agent(bc_updates=10)
    imitator.load_state_dict(follower.state_dict())
    rows = batch()

    def likelihood():
        mean, log_std = imitator.model.policy(rows["obs"])
        u, slope = rows["actions"].atanh(), 1 - rows["actions"] ** 2
        return (torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - slope.log()).sum(-1).mean()

    before = likelihood()
    frozen = agent(bc_updates=1, alpha=0.0)  # no entropy: what is left is minus the likelihood
    frozen.load_state_dict({**imitator.state_dict(), "log_alpha": frozen.state_dict()["log_alpha"]})
    assert frozen.update(rows, global_step=0).metrics["actor_loss"] == pytest.approx(-before.item(), rel=1e-4)
    for step in range(10):
        imitator.update(rows, global_step=step)
    assert likelihood() > before
    follower.load_state_dict(imitator.state_dict())
    for learner in (imitator, follower):  # from now on there is no difference
        torch.manual_seed(5)
        learner.update(rows, global_step=10)
    for a, b in zip(imitator.model.parameters(), follower.model.parameters()):
        assert torch.equal(a, b)


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="cql_alpha must be > 0"):
        agent(cql_alpha=0.0)
    with pytest.raises(ValueError, match="num_cql_samples must be >= 1"):
        agent(num_cql_samples=0)


def test_the_loss_from_precomputed_values():
    keys = ("q1_values", "q2_values", "target_q_values", "sampled_logprobs", "sampled_q1", "sampled_q2")
    values = {name: torch.full((2,), float(i)) for i, name in enumerate(keys)}
    terms = cql_loss({**values, "alpha": 0.5, "cql_penalty_q1": torch.tensor(1.0), "cql_penalty_q2": torch.tensor(2.0), "cql_alpha": 4.0})  # fmt: skip
    assert terms["cql_penalty"] == 12 and terms["critic_loss"] == (2**2 + 1**2) + 12


def test_discrete_actions_have_an_exact_soft_maximum():
    table = Table([[1.0, 2.0, 3.0]])
    learner = DiscreteCQL(q_network=table, learning_rate=1e-3, gamma=0.9, target_update_interval=10, cql_alpha=2.0)
    rows = {
        "obs": torch.zeros(1, 1), "actions": torch.tensor([0]), "rewards": torch.ones(1), "next_obs": torch.zeros(1, 1),
        "dones": torch.ones(1),
    }  # fmt: skip
    metrics = learner.update(rows, global_step=0).metrics
    gap = math.log(sum(map(math.exp, (1, 2, 3)))) - 1
    assert metrics["cql_penalty"] == pytest.approx(2 * gap, rel=1e-5)
    assert metrics["loss"] == pytest.approx(2 * gap + 0.0, rel=1e-5)  # Q(s, a) is its target already
    assert learner.last_td_errors.tolist() == [0.0]
