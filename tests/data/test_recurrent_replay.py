"""Sequences: aligned, never joined across environments, episode starts marked, the last observation kept."""

import numpy as np
import pytest
import torch

from rl_training.base.saved import StateError
from rl_training.base.state import Rng
from rl_training.data import RecurrentReplayBuffer
from toys import assert_same


def filled(num_envs=2, steps=40, length=5, capacity=60, limit=7):
    """Environment e observes 100 e + t; episodes have ``limit`` steps; the reward for a step is the next t."""
    buffer = RecurrentReplayBuffer(capacity, num_envs, (1,), length, rng=Rng(0, "replay"))
    t = np.zeros(num_envs)
    for _ in range(steps):
        obs = 100 * np.arange(num_envs) + t
        t = t + 1
        over = t == limit
        buffer.add(
            obs=obs[:, None], actions=t, rewards=t, next_obs=(100 * np.arange(num_envs) + t)[:, None],
            dones=over & (np.arange(num_envs) == 0), truncations=over & (np.arange(num_envs) == 1),
        )  # fmt: skip
        t = np.where(over, 0, t)
    return buffer


def test_rewards_arrive_with_the_observation_they_led_to_and_actions_leave_from_it():
    batch = filled().sample(200)
    time = batch["obs"][..., 0] % 100
    assert torch.equal(batch["rewards"], time)  # zero at the start of an episode
    last = time == 7
    assert torch.equal(batch["actions"][~last], time[~last] + 1) and (batch["actions"][last] == 0).all()


def test_sequences_stay_in_one_environment_and_mark_where_episodes_start():
    batch = filled().sample(300)
    env, time = batch["obs"][..., 0] // 100, batch["obs"][..., 0] % 100
    assert (env == env[0]).all()
    assert torch.equal(batch["episode_starts"], (time == 0).float())
    steps = time.diff(dim=0)
    assert ((steps == 1) | (batch["episode_starts"][1:] > 0)).all()
    assert batch["obs"].shape == (5, 300, 1) and batch["mask"].shape == (5, 300) and batch["mask"].all()


def test_a_truncation_is_no_termination():
    batch = filled().sample(300)
    env, time = batch["obs"][..., 0] // 100, batch["obs"][..., 0] % 100
    assert torch.equal(batch["dones"], ((time == 7) & (env == 0)).float())


def test_only_the_newest_rows_are_drawn_and_no_sequence_crosses_the_seam():
    buffer = filled(num_envs=1, steps=300, capacity=30)
    assert len(buffer) == 30
    time = buffer.sample(500)["obs"][..., 0]
    assert (((time[1:] - time[:-1]) == 1) | (time[1:] == 0)).all()
    assert buffer.num_transitions == 30 - int((buffer._columns["last"][0] > 0).sum())


def test_the_last_observations_of_episodes_are_no_transitions():
    for steps in (6, 7, 8, 14):
        assert filled(steps=steps, limit=7).num_transitions == 2 * steps


def test_steps_of_one_environment_and_a_given_episode_start():
    buffer = RecurrentReplayBuffer(40, 2, (1,), 3)
    for t in range(6):
        buffer.add(
            env_index=1, obs=[t], actions=0.0, rewards=1.0, next_obs=[t + 1], dones=0.0, episode_start=t in (0, 3)
        )
    batch = buffer.sample(100)
    assert set(batch["obs"][0, :, 0].tolist()) == {0, 1, 2, 3}
    assert torch.equal(batch["episode_starts"], ((batch["obs"][..., 0] == 0) | (batch["obs"][..., 0] == 3)).float())
    assert (batch["rewards"][batch["obs"][..., 0] == 3] == 0).all()


def test_state_survives(tmp_path):
    first, second = filled(), RecurrentReplayBuffer(60, 2, (1,), 5, rng=Rng(9, "replay"))
    second.load_state_dict(first.state_dict())
    assert_same(first.sample(20), second.sample(20))
    assert_same(first.state_dict(), second.state_dict())


def test_counts_of_a_state_stay_when_the_buffer_goes_on():
    buffer = filled(steps=9)
    state = buffer.state_dict()
    before = {name: state[name].clone() for name in ("written", "reward", "fresh")}
    buffer.add(
        obs=np.zeros((2, 1)), actions=np.zeros(2), rewards=-np.ones(2), next_obs=np.ones((2, 1)), dones=np.ones(2)
    )
    assert_same({name: state[name] for name in before}, before)


@pytest.mark.parametrize("name", ["reward", "fresh"])
def test_what_belongs_to_the_next_observation_is_refused_where_it_is_no_number(name):
    state = filled().state_dict()
    state[name][1] = np.nan
    with pytest.raises(StateError, match=f"^{name}: holds numbers that are not finite"):
        RecurrentReplayBuffer(60, 2, (1,), 5).load_state_dict(state)


def test_too_small_and_too_empty_buffers_are_refused():
    with pytest.raises(ValueError, match="cannot hold sequences of 10"):
        RecurrentReplayBuffer(15, 2, (1,), 10)
    with pytest.raises(ValueError, match="no sequence of 5 yet"):
        RecurrentReplayBuffer(50, 1, (1,), 5).sample(1)


def test_a_hundred_thousand_images_take_little_more_than_their_pixels():
    buffer = RecurrentReplayBuffer(100_000, 1, (3, 64, 64), 64, obs_dtype=torch.uint8)
    assert sum(column.nbytes for column in buffer._columns.values()) < 1.3e9  # 1.23e9 are pixels


def test_states_are_stored_with_their_observations_the_last_of_an_episode_too_and_only_on_request():
    buffer = RecurrentReplayBuffer(24, 2, (1,), 3, hidden_size=2)
    for t in range(9):
        states = np.array([[t, 0], [t, 1]], np.float32)
        buffer.add(
            obs=np.full((2, 1), t), actions=np.zeros(2), rewards=np.zeros(2), next_obs=np.full((2, 1), t + 0.5),
            dones=np.array([t == 4, 0]), truncations=np.array([0, t == 6]), states=states, next_states=states + np.array([0.5, 0]),
        )  # fmt: skip
    buffer.add(env_index=1, obs=[9], actions=0.0, rewards=0.0, next_obs=[10], dones=0.0, states=[9.0, 1.0])
    buffer.cut(np.array([1, 0]), np.array([[9.0], [0.0]]), np.array([[9.0, 0.0], [0.0, 0.0]]))
    batch = buffer.sample(200)
    assert torch.equal(batch["initial_state"][:, 0], batch["obs"][0, :, 0])
    assert set(batch["initial_state"][:, 1].tolist()) == {0.0, 1.0} and 4.5 in batch["obs"][0]
    again = RecurrentReplayBuffer(24, 2, (1,), 3, hidden_size=2, rng=Rng(9, "replay"))
    again.load_state_dict(buffer.state_dict())
    assert_same(buffer.sample(20), again.sample(20))
    plain = RecurrentReplayBuffer(24, 2, (1,), 3)
    assert "states" not in plain.state_dict()["rows"][0]
    with pytest.raises(ValueError, match="holds no recurrent states: give hidden_size"):
        plain.add(env_index=0, obs=[0], actions=0.0, rewards=0.0, next_obs=[1], dones=0.0, states=[0.0, 0.0])
