"""MBPO's maths: how rollouts grow, what batches are made of, and that only the asked member is evaluated."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.dynamics import imagine
from rl_training.algorithms.mbpo import MBPO, mbpo_model_loss, rollout_length
from rl_training.data import Mixed, ReplayBuffer
from rl_training.models import MLPMOPOEnsembleModel, MLPSACModel


def agent(members=4, elites=2):
    torch.manual_seed(0)
    return MBPO(
        policy_model=MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8,)),
        dynamics_model=MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=(8,), num_ensembles=members, num_elites=elites),
        policy_learning_rate=1e-3, model_learning_rate=1e-3, gamma=0.99, alpha="auto", tau=0.005,
    )  # fmt: skip


def test_rollouts_grow_on_a_line():
    assert [rollout_length((20, 150, 1, 15), epoch) for epoch in (0, 20, 85, 150, 500)] == [1, 1, 8, 15, 15]
    assert rollout_length((5, 5, 1, 3), 4) == 1 and rollout_length((5, 5, 1, 3), 6) == 3


@pytest.mark.parametrize(("ratio", "real"), [(0.95, 12), (0.5, 128), (0.0, 256)])
def test_batches_have_exactly_their_share_of_real_rows(ratio, real):
    buffers = [ReplayBuffer(10, (1,), (1,)) for _ in range(2)]
    for value, buffer in enumerate(buffers):
        if ratio > 0 or value == 0:  # without imagined rows, an empty buffer will do
            buffer.add(obs=[0.0], actions=[0.0], rewards=value, next_obs=[0.0], dones=0)
    rewards = Mixed((buffers[0], 1 - ratio), (buffers[1], ratio)).sample(256)["rewards"]
    assert int((rewards == 0).sum()) == real


def test_only_the_elites_are_asked():
    learner, asked = agent(), []
    model = learner.dynamics.model
    draw = model.draw

    def watch(obs, actions, members=None):
        asked.append((tuple(obs.shape), members.tolist()))
        return draw(obs, actions, members)

    model.draw = watch
    rows = list(imagine(learner.imagined_step, learner.imagined_actions, torch.zeros(100, 2), 2, None))
    assert asked == [((2, 50, 2), [0, 1])] * 2 and [len(r["obs"]) for r in rows] == [100, 100]
    assert np.abs(rows[0]["actions"]).max() <= 1


def test_only_the_newest_rows_are_drawn_once_that_is_said():
    buffer = ReplayBuffer(10, (1,), (1,))
    for i in range(14):
        buffer.add(obs=[0.0], actions=[0.0], rewards=float(i), next_obs=[0.0], dones=0)
    assert set(buffer.sample(500)["rewards"].tolist()) == set(range(4, 14))
    buffer.newest = 3
    assert set(buffer.sample(500)["rewards"].tolist()) == {11, 12, 13}


def test_the_models_loss_has_its_name():
    batch = {"predicted_means": torch.zeros(2, 3, 2), "predicted_logvars": torch.zeros(2, 3, 2), "targets": torch.ones(3, 2), "ensemble_disagreement": torch.zeros(3)}  # fmt: skip
    assert mbpo_model_loss(batch)["mbpo_model_loss"] == 2.0
    rows = {"obs": torch.randn(8, 2), "actions": torch.rand(8, 1), "rewards": torch.ones(8), "next_obs": torch.randn(8, 2), "dones": torch.zeros(8)}  # fmt: skip
    assert {"mbpo_model_loss", "reward_mae"} <= set(agent().update_model(rows, global_step=0).metrics)
