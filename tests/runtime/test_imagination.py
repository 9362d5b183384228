"""Imagined rows: which of them can be drawn, and MBPO part by part with the true dynamics in place of the model."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.mbpo import MBPO
from rl_training.base.state import Rng
from rl_training.data import ReplayBuffer
from rl_training.envs.spaces import Spaces
from rl_training.envs.terminations import termination_of
from rl_training.models import MLPSACModel
from rl_training.runtime.loops.model_based import Imagination, in_units
from rl_training.runtime.mbpo_trainer import MBPOOptions
from rl_training.runtime.run import TrainingFailure
from toys import Counter


class Counting:
    """Stands for an agent: a step adds one, rollouts end at ``limit``, and rewards are the number of the refresh."""

    def __init__(self, limit=np.inf):
        self.refresh, self.limit = 0, limit

    def imagined_actions(self, obs):
        return torch.zeros(len(obs), 1)

    def imagined_step(self, obs, actions):
        return obs + 1, torch.full((len(obs),), float(self.refresh))

    def terminated(self, obs, actions, next_obs):
        return next_obs[:, 0] >= self.limit


def facts_of_a_run(spaces):
    """What Imagination asks of a run."""
    noted = {}
    return SimpleNamespace(
        spaces=spaces, device=torch.device("cpu"), rng=lambda name: Rng(0, name), note=noted.update, noted=noted
    )


def imagination(agent, longest, **options):
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(-1, 1, (1,), np.float32)))
    cfg = MBPOOptions(rollout_batch_size=10, **options)
    return Imagination(facts_of_a_run(spaces), agent, cfg, longest=longest)


def real_rows(values=(0.0,)):
    buffer = ReplayBuffer(len(values), (1,), (1,), rng=Rng(0, "real"))
    for value in values:
        buffer.add(obs=[value], actions=[0.0], rewards=0.0, next_obs=[value + 1], dones=0)
    return buffer


def refreshed(rollouts, agent, horizon, starts=(0.0,)):
    agent.refresh += 1
    rollouts.refresh(real_rows(starts), horizon)
    return set(rollouts.buffer.sample(2_000)["rewards"].int().tolist())


def test_one_refresh_is_retained_by_default():
    agent = Counting()
    rollouts = imagination(agent, longest=2)
    assert [refreshed(rollouts, agent, horizon) for horizon in (1, 1, 2, 1)] == [{1}, {2}, {3}, {4}]


def test_rows_that_were_dropped_do_not_come_back_when_rollouts_grow():
    agent = Counting()
    rollouts = imagination(agent, longest=4, rollouts_retained=2)
    drawn = [refreshed(rollouts, agent, horizon) for horizon in (1, 1, 1, 3, 4, 1)]
    assert drawn == [{1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}]


def test_rollouts_that_terminate_early_leave_no_room_for_older_ones():
    agent = Counting()
    rollouts = imagination(agent, longest=4)
    assert refreshed(rollouts, agent, 4) == {1}
    agent.limit = 2
    assert refreshed(rollouts, agent, 4) == {2} and rollouts.counts == [20]


def test_which_rows_can_be_drawn_is_saved():
    agent = Counting()
    rollouts = imagination(agent, longest=4, rollouts_retained=2)
    for _ in range(3):
        refreshed(rollouts, agent, 1)
    other = imagination(agent, longest=4, rollouts_retained=2)
    other.load_state_dict(rollouts.state_dict())
    assert other.counts == [10, 10] and refreshed(other, agent, 3) == {3, 4}


def test_rows_saved_before_they_were_counted_are_the_newest_whatever_the_ring_was():
    agent = Counting()
    rollouts = imagination(agent, longest=1, rollouts_retained=2)
    for _ in range(3):  # the third overwrites the first
        refreshed(rollouts, agent, 1)
    state = rollouts.state_dict()
    del state["counts"]
    other = imagination(agent, longest=9, rollouts_retained=2)
    other.load_state_dict(state)
    assert set(other.buffer.sample(500)["rewards"].int().tolist()) == {2, 3} and other.counts == [20]
    assert refreshed(other, agent, 1) == {2, 3, 4}


def test_a_model_that_imagines_nothing_finite_is_a_failure_that_says_so():
    agent = Counting()
    agent.imagined_step = lambda obs, actions: (obs * torch.nan, obs[:, 0])
    with pytest.raises(TrainingFailure, match=r"imagined nothing finite from 10 observations.*model_learning_rate"):
        refreshed(imagination(agent, longest=1), agent, 1)


# ---- with the true dynamics


class TrueDynamics(nn.Module):
    """In place of the model, the environment itself: ``step(obs, action in the environment's units)`` to next_obs and reward."""

    num_ensembles = 1

    def __init__(self, step, spaces):
        super().__init__()
        self.step, self.spaces = step, spaces
        self.weight = nn.Parameter(torch.zeros(()))

    def ensemble_parameters(self):
        return [self.weight]

    def sample_member(self, obs, actions):
        results = [self.step(o, a) for o, a in zip(obs.numpy(), np.asarray(self.spaces.to_env(actions.numpy())))]
        next_obs, rewards = (torch.as_tensor(np.array(part), dtype=torch.float32) for part in zip(*results))
        return next_obs, rewards


def mbpo_with(dynamics, spaces, **options):
    torch.manual_seed(0)
    policy = MLPSACModel(obs_dim=spaces.obs_dim, action_dim=spaces.action_dim, hidden_sizes=(32, 32))
    defaults = {"policy_learning_rate": 3e-3, "model_learning_rate": 1e-3, "gamma": 0.9, "alpha": 0.0, "tau": 0.1}
    return MBPO(policy_model=policy, dynamics_model=dynamics, **{**defaults, **options})


def test_rollouts_through_the_simulator_are_the_simulators():
    """Units of actions, where rollouts end, what they pay: every imagined row is a step that MuJoCo makes."""
    pytest.importorskip("mujoco")
    env = gym.make("InvertedPendulum-v5")
    spaces, simulator = Spaces.of(env), env.unwrapped

    def simulated(obs, action):
        simulator.set_state(obs[:2].astype(np.float64), obs[2:].astype(np.float64))
        next_obs, reward, terminated, _, _ = simulator.step(action)
        return next_obs.astype(np.float32), reward, terminated

    agent = mbpo_with(TrueDynamics(lambda obs, action: simulated(obs, action)[:2], spaces), spaces)
    agent.terminations = in_units(termination_of("InvertedPendulum-v5"), spaces)
    rollouts = Imagination(facts_of_a_run(spaces), agent, MBPOOptions(rollout_batch_size=20), longest=40)
    starts = ReplayBuffer(20, (4,), (1,), rng=Rng(0, "real"))
    for seed in range(20):
        obs = env.reset(seed=seed)[0]
        starts.add(obs=obs, actions=[0.0], rewards=0.0, next_obs=obs, dones=0)
    rollouts.refresh(starts, 40)
    rows = rollouts.buffer.columns()
    for i in range(len(rows["obs"])):
        next_obs, reward, terminated = simulated(rows["obs"][i], 3 * rows["actions"][i])  # the cart takes [-3, 3]
        assert np.allclose(rows["next_obs"][i], next_obs, atol=1e-5) and rows["rewards"][i] == reward
        assert bool(rows["dones"][i]) == terminated
    over = {row.tobytes() for row in rows["next_obs"][rows["dones"] > 0]}
    assert len(over) >= 10 and not any(obs.tobytes() in over for obs in rows["obs"])


def test_values_learned_from_true_dynamics_are_the_true_ones():
    """Three steps that pay one each: 1 + 0.9 + 0.81, 1 + 0.9 and 1, from imagined rows and a share of real ones."""
    env = Counter(limit=3, terminate=True, actions=gym.spaces.Box(-2, 2, (1,), np.float32))
    spaces = Spaces.of(env)

    def step(obs, action):
        env.t = int(obs[0])
        next_obs, reward, *_ = env.step(action)
        return next_obs, reward

    agent = mbpo_with(TrueDynamics(step, spaces), spaces)
    agent.terminations = lambda obs, actions, next_obs: next_obs[:, 0] >= 3
    rollouts = Imagination(facts_of_a_run(spaces), agent, MBPOOptions(rollout_batch_size=200), longest=3)
    real = ReplayBuffer(3, (1,), (1,), rng=Rng(0, "real"))
    for t in range(3):
        real.add(obs=[t], actions=[0.0], rewards=1.0, next_obs=[t + 1], dones=float(t == 2))
    rollouts.refresh(real, 3)
    source = rollouts.mixed(real)
    for _ in range(400):
        agent.update(source.sample(64), global_step=0)
    states = torch.tensor([[0.0], [1.0], [2.0]])
    values = torch.stack(agent.policy.model.q_values(states, agent.imagined_actions(states)))
    assert torch.allclose(values, torch.tensor([2.71, 1.9, 1.0]).expand_as(values), atol=0.1)
