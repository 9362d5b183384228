"""PETS's values of plans and its actions against a reference that moves particles one by one."""

import zlib
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from oracles import planning
from oracles.ensemble import EnsembleReference
from oracles.pets import PETSReference
from oracles.precision import double_precision
from rl_training.algorithms.pets import PETS
from rl_training.algorithms.planning import CEM, ICEM, RandomShooting
from rl_training.models import MLPMOPOEnsembleModel

HORIZON = 3
SEARCHES = {
    "cem": (CEM, planning.cem, {"candidates": 6, "elites": 2, "iterations": 2, "alpha": 0.2}),
    "icem": (ICEM, planning.icem, {"candidates": 6, "elites": 3, "iterations": 2, "alpha": 0.2}),
    "random": (RandomShooting, planning.random_shooting, {"candidates": 6}),
}


@pytest.fixture
def double():
    with double_precision():
        yield


def paid(obs, actions, next_obs):
    """A known reward, of all that it may depend on."""
    return obs[:, 0] - 2 * actions[:, 0] + 3 * next_obs[:, 1]


def ended(obs, actions, next_obs):
    """A known termination, of all that it may depend on; it happens to about half of the particles, and to some only for a while."""
    return next_obs[:, 0] + 0.2 * obs[:, 1] + 0.5 * actions[:, 0] > 0.6


def both(search="cem", particles=4, propagation="tsinf", rewards=None, terminated=None):
    torch.manual_seed(2)
    model = MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=(6,), num_ensembles=3, num_elites=1)
    with torch.no_grad():
        for layer in model.layers():
            layer.weight.mul_(2)
            layer.bias.normal_(std=0.3)
    kind, reference, options = SEARCHES[search]
    shared = {"horizon": HORIZON, "propagation": propagation, "rewards": rewards, "terminated": terminated}
    learner = PETS(dynamics_model=model, learning_rate=1e-3, planner=kind(**options), num_particles=particles, **shared)
    ensemble = EnsembleReference(model, 1e-3)
    return learner, PETSReference(ensemble, partial(reference, **options), particles=particles, **shared)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("terminated", [None, ended], ids=["for ever", "terminated"])
@pytest.mark.parametrize("rewards", [None, paid], ids=["learned", "known"])
@pytest.mark.parametrize("propagation", ["tsinf", "ts1"])
def test_the_value_of_plans_is_the_mean_of_what_particles_earn(propagation, rewards, terminated):
    """Four particles are rounded up to two for every one of three members."""
    learner, reference = both(propagation=propagation, rewards=rewards, terminated=terminated)
    obs, plans = torch.randn(2), torch.rand(4, HORIZON, 1) * 2 - 1
    torch.manual_seed(0)
    ours = learner.values_of(obs, plans, 4)
    torch.manual_seed(0)
    theirs = reference.values(obs, plans)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # known functions give float32
    if terminated is not None:
        reference.terminated = None
        torch.manual_seed(0)
        assert not torch.allclose(theirs, reference.values(obs, plans), atol=1e-3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("search", SEARCHES)
def test_actions_are_the_first_of_a_plan_and_the_next_search_starts_from_the_rest(search, deterministic):
    learner, reference = both(search)
    rngs = [None if deterministic else np.random.default_rng(7) for _ in range(2)]
    carry, start = np.zeros((2, HORIZON, 1)), np.zeros((2, HORIZON, 1))
    for t in range(2):
        obs = np.random.default_rng(t).normal(size=(2, 2))
        ours = learner.act(obs, carry=carry, deterministic=deterministic, rng=rngs[0])
        theirs = [reference.act(row, before, rngs[1]) for row, before in zip(obs, start)]
        carry, start = ours.carry, np.stack([rest for _, rest in theirs])
        np.testing.assert_allclose(ours.actions, [action for action, _ in theirs], rtol=1e-6)
        np.testing.assert_allclose(carry, start, rtol=1e-6)


def test_a_plan_in_a_box_of_the_callers_own():
    learner, reference = both()
    box = [torch.full((HORIZON, 1), bound) for bound in (1.0, 3.0)]
    options = {"num_candidates": 8, "num_iterations": 2, "num_topk": 3}
    obs = torch.randn(2)
    action = learner.plan_action(obs, action_low=[1.0], action_high=3.0, horizon=HORIZON, num_particles=4, **options)
    torch.manual_seed(zlib.crc32(obs.numpy().astype(np.float16).tobytes()))
    search = {"candidates": 8, "elites": 3, "iterations": 2, "alpha": 0.1}
    plan = planning.cem(lambda plans: reference.values(obs, plans), *box, None, **search)
    np.testing.assert_allclose(action, plan[0], rtol=1e-5)


class Simulator(nn.Module):
    """Pendulum-v1 itself as a model of one member."""

    obs_dim, action_dim, num_ensembles = 3, 1, 1

    def __init__(self):
        super().__init__()
        self.env, self.weight = gym.make("Pendulum-v1").unwrapped, nn.Parameter(torch.zeros(()))
        self.env.reset(seed=0)

    def ensemble_parameters(self):
        return [self.weight]

    def from_here(self, obs, actions):
        """The observation after these actions in [-1, 1], and the rewards on the way."""
        self.env.state, rewards = np.array([np.arctan2(obs[1], obs[0]), obs[2]]), []
        for action in actions:
            obs, reward, *_ = self.env.step(2 * action)
            rewards.append(reward)
        return obs, rewards

    def predict_distribution(self, obs, actions):
        steps = [self.from_here(x, a[None]) for x, a in zip(obs.double().numpy(), actions.numpy())]
        rows = [[*(after - x), *reward] for x, (after, reward) in zip(obs.numpy(), steps)]
        means = torch.tensor(np.array(rows), dtype=torch.float32)[None]
        return means, torch.full_like(means, -1e9)


def test_with_the_simulator_as_its_model_a_plan_is_worth_what_it_earns():
    model = Simulator()
    learner = PETS(dynamics_model=model, learning_rate=1e-3)
    obs, plans = model.env.reset(seed=1)[0], torch.rand(4, 6, 1) * 2 - 1
    values = learner.values_of(torch.from_numpy(obs), plans, 2)
    earned = [sum(model.from_here(obs.astype(np.float64), plan.numpy())[1]) for plan in plans]
    np.testing.assert_allclose(values, earned, rtol=1e-4)
