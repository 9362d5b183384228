"""PETS's maths: particles and members, where plans end, warm starts, and planning with models that are known exactly."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.dynamics import gaussian_ensemble_loss
from rl_training.algorithms.pets import PETS, pets_loss
from rl_training.algorithms.planning import CEM


class Toy(nn.Module):
    """Just what the planner needs of a model: here, ``delta`` and ``reward`` of (member, obs, action), without noise."""

    def __init__(self, delta, reward, members=5, obs_dim=1, action_dim=1):
        super().__init__()
        self.obs_dim, self.action_dim, self.num_ensembles = obs_dim, action_dim, members
        self.delta, self.reward = delta, reward
        self.weight = nn.Parameter(torch.zeros(()))

    def ensemble_parameters(self):
        return [self.weight]

    def predict_distribution(self, obs, actions):
        if obs.ndim == 2:
            obs, actions = (x.expand(self.num_ensembles, *x.shape) for x in (obs, actions))
        member = torch.arange(float(self.num_ensembles)).view(-1, 1, 1)
        reward = self.reward(obs, actions)[..., None]
        means = torch.cat([self.delta(member, obs, actions), reward], -1) + 0 * self.weight
        return means, torch.full_like(means, -1e9)


def still(member, obs, actions):
    return torch.zeros_like(obs)


def test_the_planner_finds_the_best_action_of_a_toy():
    agent = PETS(dynamics_model=Toy(still, lambda obs, actions: -((actions[..., 0] - 0.7) ** 2)), learning_rate=1e-3)
    options = {
        "action_low": [-1.0],
        "action_high": [1.0],
        "horizon": 3,
        "num_candidates": 200,
        "num_iterations": 5,
        "num_topk": 20,
    }
    action = agent.plan_action(np.zeros(1), **options)
    assert action.shape == (1,) and action[0] == pytest.approx(0.7, abs=0.05)
    assert np.array_equal(action, agent.plan_action(np.zeros(1), **options))  # the same every time
    box = {**options, "action_low": np.array([2.0]), "action_high": np.array([5.0])}
    assert agent.plan_action(np.zeros(1), **box)[0] == pytest.approx(2.0, abs=0.2)


def seen_states(propagation, horizon=3, particles=10, members=5):
    """Member k adds k at every step; the states of all particles after the last one, by plan."""
    states = []

    def reward(obs, actions):
        states.append(obs.clone())
        return obs[..., 0]

    model = Toy(lambda member, obs, actions: member.expand_as(obs), reward, members)
    agent = PETS(dynamics_model=model, learning_rate=1e-3, propagation=propagation)
    torch.manual_seed(0)
    agent.values_of(torch.zeros(1), torch.zeros(4, horizon + 1, 1), particles)
    asked = states[-1][0, :, 0]  # by rows: what the first member was asked, all were
    return asked.view(members, -1)  # (members, plans * particles of each)


def test_particles_keep_their_member_with_ts_infinity():
    states = seen_states("tsinf")
    assert torch.equal(states, (3.0 * torch.arange(5.0))[:, None].expand(5, 8))


def test_particles_change_members_with_ts1_and_every_plan_keeps_as_many_of_each():
    states = seen_states("ts1", members=2, particles=40)
    assert set(states.unique().tolist()) == {0.0, 1.0, 2.0, 3.0}  # sums of three zeros or ones
    assert states.mean().item() == pytest.approx(1.5, abs=1e-6)  # each step, half of them were with member 1


def test_plans_are_valued_by_the_mean_over_members_and_particles():
    model = Toy(lambda member, obs, actions: member.expand_as(obs), lambda obs, actions: obs[..., 0])
    agent = PETS(dynamics_model=model, learning_rate=1e-3)
    values = agent.values_of(torch.zeros(1), torch.zeros(7, 3, 1), 5)
    assert values.tolist() == pytest.approx([2 * (0 + 1 + 2)] * 7)  # the mean member adds 2 a step


def test_rewards_stop_after_a_termination_and_that_steps_own_counts():
    model = Toy(lambda member, obs, actions: torch.ones_like(obs), lambda obs, actions: torch.ones_like(obs[..., 0]))
    agent = PETS(
        dynamics_model=model, learning_rate=1e-3, terminated=lambda obs, actions, next_obs: next_obs[:, 0] >= 3
    )
    assert agent.values_of(torch.zeros(1), torch.zeros(2, 10, 1), 5).tolist() == [3.0, 3.0]


def test_known_rewards_replace_the_models():
    model = Toy(still, lambda obs, actions: torch.full_like(obs[..., 0], -99.0))
    agent = PETS(dynamics_model=model, learning_rate=1e-3, rewards=lambda obs, actions, next_obs: actions[:, 0])
    plans = torch.tensor([[[0.5], [0.25]], [[-1.0], [0.0]]])
    assert agent.values_of(torch.zeros(1), plans, 5).tolist() == pytest.approx([0.75, -1.0])


def test_the_next_search_starts_from_the_rest_of_the_plan():
    agent = PETS(
        dynamics_model=Toy(still, lambda obs, actions: -((actions[..., 0] - 0.5) ** 2)), learning_rate=1e-3, horizon=4,
        planner=CEM(candidates=100, elites=10, iterations=5),
    )  # fmt: skip
    seen = []
    plan = agent._plan
    agent._plan = lambda *args: seen.append(args[-1].clone()) or plan(*args)
    first = agent.act(np.zeros((1, 1), np.float32), deterministic=True)
    agent.act(np.zeros((1, 1), np.float32), carry=first.carry, deterministic=True)
    assert torch.equal(seen[0], torch.zeros(4, 1))  # the middle of the box
    assert seen[1][:3, 0].tolist() == pytest.approx([0.5] * 3, abs=0.1) and seen[1][3] == 0
    assert np.array_equal(agent.initial_carry(1), np.zeros((1, 4, 1)))


def test_a_deterministic_plan_has_noise_of_its_own_for_every_observation():
    """With the same noise at every step, the search would err in the same direction step after step."""
    agent = PETS(dynamics_model=Toy(still, lambda obs, actions: 0 * actions[..., 0]), learning_rate=1e-3, horizon=2)
    obs = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
    first, again = (agent.act(obs, deterministic=True).actions for _ in range(2))
    assert np.array_equal(first, again) and len(np.unique(first)) == 6
    assert np.array_equal(agent.act(obs * (1 + 1e-6), deterministic=True).actions, first)  # the last bits do not count
    box = {
        "action_low": -1.0,
        "action_high": 1.0,
        "horizon": 2,
        "num_candidates": 9,
        "num_iterations": 2,
        "num_topk": 3,
    }
    one, same, other = (agent.plan_action(row, **box) for row in obs[[0, 0, 1]])
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_planning_leaves_the_other_random_numbers_alone():
    agent = PETS(dynamics_model=Toy(still, lambda obs, actions: actions[..., 0]), learning_rate=1e-3, horizon=2)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    agent.act(np.zeros((1, 1), np.float32), deterministic=True)
    agent.act(np.zeros((1, 1), np.float32), rng=np.random.default_rng(0))
    assert torch.equal(before, torch.get_rng_state())


class ExactPendulum(nn.Module):
    """Pendulum-v1's own equations as a model of one member."""

    obs_dim, action_dim, num_ensembles = 3, 1, 1

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def ensemble_parameters(self):
        return [self.weight]

    def predict_distribution(self, obs, actions):
        torque = 2 * actions[..., 0].clamp(-1, 1)
        angle, speed = torch.atan2(obs[..., 1], obs[..., 0]), obs[..., 2]
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = (speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        angle = angle + speed * 0.05
        after = torch.stack([angle.cos(), angle.sin(), speed], -1)
        means = torch.cat([after - obs, -cost[..., None]], -1) + 0 * self.weight
        return means, torch.full_like(means, -1e9)


def test_with_exact_dynamics_the_planner_swings_a_pendulum_up():
    agent = PETS(
        dynamics_model=ExactPendulum(), learning_rate=1e-3, horizon=20, num_particles=1,
        planner=CEM(candidates=200, elites=20, iterations=4),
    )  # fmt: skip
    env, total, carry = gym.make("Pendulum-v1"), 0.0, None
    obs, _ = env.reset(seed=0)
    for _ in range(200):
        acting = agent.act(obs[None].astype(np.float32), carry=carry, deterministic=True)
        carry = acting.carry
        obs, reward, *_ = env.step(2 * acting.actions[0])
        total += reward
    assert total > -250


def test_the_loss_is_the_ensembles():
    means, logvars = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    batch = {"predicted_means": means, "predicted_logvars": logvars, "targets": torch.randn(4, 2), "ensemble_disagreement": torch.rand(4)}  # fmt: skip
    terms = pets_loss(batch)
    assert terms["pets_model_loss"] == gaussian_ensemble_loss(batch)["model_loss"] and math.isfinite(
        terms["reward_mae"]
    )
    assert set(terms) == {"pets_model_loss", "reward_mae", "delta_obs_mae", "ensemble_disagreement"}


class RowsAlone(nn.Module):
    """What the contract asks of a model and no more: rows (B, ...) to means and log-variances (E, B, D + 1)."""

    def __init__(self, members=3):
        super().__init__()
        self.obs_dim, self.action_dim, self.num_ensembles = 1, 1, members
        self.step = nn.Parameter(torch.arange(float(members)))

    def ensemble_parameters(self):
        return [self.step]

    def predict_distribution(self, obs, actions):
        (rows, _), (same, _) = obs.shape, actions.shape
        assert rows == same
        delta = self.step[:, None, None].expand(self.num_ensembles, rows, 1)
        reward = (obs - (actions - 0.7).square()).expand(self.num_ensembles, rows, 1)
        means = torch.cat([delta, reward], -1)
        return means, torch.full_like(means, -1e9)


def test_the_planner_needs_no_more_of_a_model_than_rows():
    agent = PETS(dynamics_model=RowsAlone(), learning_rate=1e-3)
    options = {"horizon": 3, "num_candidates": 200, "num_iterations": 5, "num_topk": 20}
    action = agent.plan_action(np.zeros(1), action_low=[-1.0], action_high=[1.0], **options)
    assert action[0] == pytest.approx(0.7, abs=0.05)
    # member k adds k to the state, which is the reward: 0 + k + 2k after three steps, each member with its own particles
    values = agent.values_of(torch.zeros(1), torch.full((2, 3, 1), 0.7), 6)
    assert values.tolist() == pytest.approx([(0 + 3 + 6) / 3] * 2, abs=1e-5)


def test_a_model_that_answers_with_another_shape_is_named():
    class Flat(RowsAlone):
        def predict_distribution(self, obs, actions):
            means, logvars = super().predict_distribution(obs.reshape(-1, 1), actions.reshape(-1, 1))
            return means[0], logvars[0]

    agent = PETS(dynamics_model=Flat(), learning_rate=1e-3)
    with pytest.raises(
        ValueError, match=r"Flat\.predict_distribution should give means of shape \(members, rows, obs_dim \+ 1\)"
    ):
        agent.values_of(torch.zeros(1), torch.zeros(2, 3, 1), 6)
