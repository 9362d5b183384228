"""TD3+BC's maths: targets with clipped noise, the scale of values, the delay."""

import pytest
import torch
from torch import nn

from rl_training.algorithms.td3_bc import TD3BC, td3_bc_actor_loss
from rl_training.models import MLPTD3Model


class Known(nn.Module):
    """An actor that always takes one action, and critics that are that action plus their own constant."""

    def __init__(self, action=0.4, q=(3.0, 5.0)):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([action]))
        self.q = nn.Parameter(torch.tensor(q))

    def actions(self, obs):
        return self.a.expand(len(obs), 1)

    def q_values(self, obs, actions):
        return tuple(q + actions[:, 0] for q in self.q)

    def actor_parameters(self):
        return [self.a]

    def critic_parameters(self):
        return [self.q]


def batch(rows=4, done=0.0):
    return {
        "obs": torch.zeros(rows, 2), "actions": torch.zeros(rows, 1), "rewards": torch.ones(rows),
        "next_obs": torch.zeros(rows, 2), "dones": torch.full((rows,), done),
    }  # fmt: skip


def agent(model, **options):
    return TD3BC(model=model, **{"learning_rate": 1e-3, "gamma": 0.9, "tau": 0.005, **options})


def test_the_target_takes_the_smaller_critic_of_the_target_actors_action():
    plain = agent(Known(), policy_noise=0.0).update(batch(), global_step=0)
    assert plain.metrics["target_q_mean"] == pytest.approx(1 + 0.9 * (3 + 0.4))
    assert agent(Known()).update(batch(done=1.0), global_step=0).metrics["target_q_mean"] == 1


def test_the_noise_on_it_is_clipped_and_so_is_the_action():
    torch.manual_seed(0)
    noisy = agent(Known(action=0.0), policy_noise=100.0, noise_clip=0.5)
    values = noisy.update(batch(rows=20_000), global_step=0).metrics["target_q_mean"]
    assert values == pytest.approx(1 + 0.9 * 3, abs=0.02)  # ±0.5, in equal parts
    edge = agent(Known(action=0.9), policy_noise=100.0, noise_clip=0.5)
    values = edge.update(batch(rows=20_000), global_step=0).metrics["target_q_mean"]
    assert values == pytest.approx(1 + 0.9 * (3 + (1.0 + 0.4) / 2), abs=0.02)


def test_the_actors_direction_does_not_depend_on_the_rewards_units():
    grads = []
    for units in (1.0, 10.0):
        actions = torch.tensor([[0.3], [-0.2]], requires_grad=True)
        q_values = units * (2 + actions[:, 0] ** 2)
        loss, imitation, scale = td3_bc_actor_loss(actions, torch.zeros(2, 1), q_values, alpha=2.5)
        loss.backward()
        grads.append(actions.grad)
    assert torch.allclose(grads[0], grads[1]) and imitation.item() == pytest.approx((0.09 + 0.04) / 2)
    assert scale.item() == pytest.approx(2.5 / (10 * (2 + 0.065)))


def test_actor_and_targets_move_every_second_update():
    model = Known()
    learner = agent(model, policy_delay=2)
    before = model.a.item(), learner.target_model.q[0].item()
    assert "actor_loss" not in learner.update(batch(), global_step=0).metrics
    assert (model.a.item(), learner.target_model.q[0].item()) == before
    assert "actor_loss" in learner.update(batch(), global_step=0).metrics
    assert model.a.item() != before[0] and learner.target_model.q[0].item() != before[1]
    assert learner.target_model.a.item() == pytest.approx(before[0] + 0.005 * (model.a.item() - before[0]))


def test_without_values_it_is_cloning():
    torch.manual_seed(0)
    model = MLPTD3Model(obs_dim=2, action_dim=1, hidden_sizes=(16,))
    learner = agent(model, alpha=0.0, learning_rate=1e-2)
    rows = {**batch(rows=16), "actions": torch.full((16, 1), 0.7)}
    for _ in range(400):
        learner.update(rows, global_step=0)
    assert model.actions(torch.zeros(1, 2)).item() == pytest.approx(0.7, abs=0.01)
