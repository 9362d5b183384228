"""DQN's maths: targets, loss, double-Q, target copies, exploration."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.value_learner import td_target
from rl_training.models import MLPQNetwork
from toys import Table


def transition(reward=1.0, done=0.0, action=0):
    return {
        "obs": torch.tensor([[0.0]]), "actions": torch.tensor([action]), "rewards": torch.tensor([reward]),
        "next_obs": torch.tensor([[1.0]]), "dones": torch.tensor([done]),
    }  # fmt: skip


def make(online, target, double_q=False, **changes):
    agent = DQN(
        q_network=Table(online), learning_rate=0.1, gamma=0.9, target_update_interval=1000, double_q=double_q, **changes
    )
    agent.target_network.load_state_dict({"rows": torch.tensor(target, dtype=torch.float32)})
    return agent


def test_td_target_does_not_bootstrap_through_termination():
    assert td_target(transition(done=1.0), torch.tensor([100.0]), 0.9).item() == 1.0
    assert td_target(transition(done=0.0), torch.tensor([100.0]), 0.9).item() == pytest.approx(91.0)


def test_the_target_is_the_target_networks_best_value():
    agent = make(online=[[0, 0], [5, 1]], target=[[0, 0], [2, 3]])
    metrics = agent.update(transition(), global_step=0).metrics
    assert metrics["target_mean"] == pytest.approx(1 + 0.9 * 3)


def test_double_q_chooses_by_the_online_and_evaluates_by_the_target_network():
    agent = make(online=[[0, 0], [5, 1]], target=[[0, 0], [2, 3]], double_q=True)
    metrics = agent.update(transition(), global_step=0).metrics
    assert metrics["target_mean"] == pytest.approx(1 + 0.9 * 2)


def test_termination_kills_the_bootstrap():
    agent = make(online=[[0, 0], [5, 1]], target=[[0, 0], [2, 3]])
    assert agent.update(transition(done=1.0), global_step=0).metrics["target_mean"] == pytest.approx(1.0)


def test_the_loss_is_hubers_on_the_chosen_action():
    batch = {
        "q_values": torch.tensor([[1.0, 9.0], [0.0, 4.0]]),
        "actions": torch.tensor([0, 1]),
        "target_q_values": torch.tensor([1.5, 1.0]),
    }
    terms = dqn_loss(batch)
    assert terms["loss"].item() == pytest.approx((0.5 * 0.5**2 + (3 - 0.5)) / 2)
    assert terms["td_errors"].tolist() == [0.5, -3.0]
    assert terms["td_error_mean"].item() == pytest.approx(1.75)


def test_weights_scale_each_rows_loss():
    batch = {
        "q_values": torch.zeros(2, 1),
        "actions": torch.tensor([0, 0]),
        "target_q_values": torch.tensor([1.0, 3.0]),
    }
    assert dqn_loss({**batch, "weights": torch.tensor([2.0, 0.0])})["loss"].item() == pytest.approx(2 * 0.5 / 2)


def test_only_the_chosen_action_learns():
    agent = make(online=[[0, 0], [0, 0]], target=[[0, 0], [0, 0]])
    agent.update(transition(reward=1.0, action=1), global_step=0)
    rows = agent.q_network.rows
    assert rows[0, 1] > 0
    assert rows[0, 0] == 0 and (rows[1] == 0).all()


def test_the_target_network_is_copied_every_so_many_updates():
    agent = DQN(q_network=Table([[0.0], [0.0]]), learning_rate=0.1, gamma=0.9, target_update_interval=3)
    for update in range(1, 7):
        agent.update(transition(), global_step=update)
        assert torch.equal(agent.target_network.rows, agent.q_network.rows) == (update % 3 == 0)


def test_metrics_and_td_errors():
    agent = make(online=[[0, 0], [5, 1]], target=[[0, 0], [2, 3]])
    result = agent.update(transition(), global_step=0)
    assert set(result.metrics) >= {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert agent.last_td_errors.shape == (1,)
    assert agent.last_td_errors.item() == pytest.approx(3.7)


def test_greedy_acting_takes_the_best_action_and_epsilon_one_any():
    agent = make(online=[[0, 1], [5, 1]], target=[[0, 0], [0, 0]])
    obs = np.array([[0.0], [1.0]] * 500, np.float32)
    agent.set_control("epsilon", 1.0)
    assert agent.act(obs, deterministic=True).actions.tolist()[:2] == [1, 0]
    share = agent.act(obs, rng=np.random.default_rng(0)).actions.mean()
    assert share == pytest.approx(0.5, abs=0.05)


def test_the_networks_own_greedy_actions_draw_no_random_number():
    network, obs = MLPQNetwork(obs_dim=3, action_dim=4, hidden_sizes=(8,)), torch.randn(50, 3)
    before = torch.get_rng_state()
    assert torch.equal(network.act(obs), network(obs).argmax(1))
    assert torch.equal(torch.get_rng_state(), before)
    network.act(obs, 0.5)
    assert not torch.equal(torch.get_rng_state(), before)


def test_epsilon_is_the_share_of_random_actions():
    agent = make(online=[[0, 1], [0, 1]], target=[[0, 0], [0, 0]])
    agent.set_control("epsilon", 0.2)
    actions = agent.act(np.zeros((20_000, 1), np.float32), rng=np.random.default_rng(0)).actions
    assert (actions == 0).mean() == pytest.approx(0.1, abs=0.01)  # half of the random ones


def test_any_module_is_a_q_network():
    agent = DQN(q_network=nn.Linear(2, 3), learning_rate=0.1, gamma=0.9, target_update_interval=5)
    assert agent.act(np.zeros((4, 2), np.float32)).actions.shape == (4,)


def test_image_networks_take_uint8_pictures():
    network = MLPQNetwork(obs_shape=(4, 84, 84), action_dim=6, hidden_sizes=(32,))
    assert network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 6)


def test_the_target_network_copies_buffers_too():
    network = Table([[0.0], [0.0]])
    network.register_buffer("seen", torch.zeros(2))
    agent = DQN(q_network=network, learning_rate=0.1, gamma=0.9, target_update_interval=2)
    agent.q_network.seen += 5
    for update, expected in ((1, 0.0), (2, 5.0)):
        agent.update(transition(), global_step=update)
        assert agent.target_network.seen.tolist() == [expected] * 2
