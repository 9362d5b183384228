"""Recorded experience is what was done: observations, actions in the environment's units, its own rewards, every end."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.base import Acting
from rl_training.artifacts.collection import add_references, add_returns, describe_dataset, export_replay
from rl_training.data.recorder import collect_random
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.experience import collect

LENGTHS = (3, 1, 4, 2)  # of episodes, over and over; odd ones terminate, even ones are truncated


class Diary(gym.Env):
    """Observes (episode, step); pays 10 x episode + step + the action; notes every action."""

    observation_space, action_space = gym.spaces.Box(-1e3, 1e3, (2,), np.float32), gym.spaces.Box(-2.0, 4.0, (1,))
    made: list = []

    def __init__(self, bonus=0.0):
        self.bonus, self.episode, self.actions = bonus, -1, []
        Diary.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        self.actions.append(float(action[0]))
        length = LENGTHS[self.episode % 4]
        over = self.t == length
        reward = 10 * self.episode + self.t + float(action[0]) + self.bonus
        return (
            np.array([self.episode, self.t], np.float32),
            reward,
            over and length % 2 == 1,
            over and length % 2 == 0,
            {},
        )


@pytest.fixture(autouse=True)
def _registered():
    gym.register("Diary-v0", entry_point=Diary, max_episode_steps=50)
    Diary.made.clear()
    yield
    del gym.registry["Diary-v0"]


class Counting:
    """Acts by its carry, a tenth of the step's number in its episode, and notes how it was asked."""

    def __init__(self):
        self.asked = []

    def initial_carry(self, n):
        return np.zeros((n, 1), np.float32)

    def act(self, obs, *, carry, deterministic, rng):
        self.asked.append(deterministic)
        torch.rand(1)
        return Acting(carry / 10, {}, carry + 1)


def config(**env_kwargs):
    return TrainConfig(algo="sac", env_id="Diary-v0", env_kwargs=env_kwargs)


def assert_diary(data, first_episode=0):
    """Rows of the diary's episodes in order, with these actions; the last episode may be unfinished."""
    row = 0
    for episode in range(first_episode, 99):
        for t in range(LENGTHS[episode % 4]):
            if row == len(data):
                return
            last = t + 1 == LENGTHS[episode % 4]
            assert data.obs[row].tolist() == [episode, t] and data.next_obs[row].tolist() == [episode, t + 1]
            assert bool(data.dones[row]) is (last and LENGTHS[episode % 4] % 2 == 1)
            assert bool(data.truncations[row]) is (last and LENGTHS[episode % 4] % 2 == 0)
            assert data.rewards[row].item() == pytest.approx(10 * episode + t + 1 + data.actions[row].item(), abs=1e-4)
            row += 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_agents_steps_are_recorded_one_by_one(deterministic):
    agent, before = Counting(), torch.get_rng_state()
    data = collect(config(), agent, steps=13, deterministic=deterministic, seed=3)
    assert len(data) == 13
    assert_diary(data)
    steps = np.concatenate([np.arange(n) for n in (*LENGTHS, *LENGTHS)])[:13]  # the carry begins anew with an episode
    np.testing.assert_allclose(data.actions[:, 0], 1 + 3 * steps / 10, rtol=1e-6)  # [-1, 1] is [-2, 4]
    np.testing.assert_allclose(data.actions[:, 0], Diary.made[-1].actions, rtol=1e-6)
    assert {*agent.asked} == {deterministic} and torch.equal(torch.get_rng_state(), before)
    assert data.meta["env_id"] == "Diary-v0" and data.meta["seed"] == 3
    assert data.meta["behaviour"] == {"algo": "sac", "deterministic": deterministic}


def test_whole_episodes_are_recorded_or_as_many_steps_as_there_may_be():
    data = collect(config(), Counting(), episodes=3)
    assert [rows.stop - rows.start for rows in data.episodes()] == [3, 1, 4]
    assert len(collect(config(), None, episodes=3, most_steps=5)) == 5
    for much in ({}, {"steps": 3, "episodes": 3}):
        with pytest.raises(ValueError, match="how many steps or how many episodes"):
            collect(config(), None, **much)


def test_the_environment_is_that_of_evaluation_and_rewards_are_its_own():
    wrapped = config(
        training={"bonus": 500.0}, evaluation={"bonus": 0.0}, wrappers={"reward": {"scale": 0.01, "clip": 0.1}}
    )
    assert_diary(collect(wrapped, None, steps=9))


def test_random_data_is_uniform_over_the_box_and_repeats_with_its_seed():
    factory = EnvFactory("Diary-v0", {"wrappers": {"reward": {"clip": 0.1}}})
    data = collect_random(factory, 400, seed=1)
    assert_diary(data)
    actions = data.actions.numpy()
    assert -2 <= actions.min() < -1.9 and 3.9 < actions.max() <= 4 and abs(actions.mean() - 1) < 0.2
    assert data.fingerprint() == collect_random(factory, 400, seed=1).fingerprint()
    assert [rows.stop for rows in collect_random(factory, 400, 1, episodes=2).episodes()] == [3, 4]


@pytest.mark.parametrize("capacity", [100, 21])
def test_a_replay_buffer_gives_each_environments_steps_in_order(tiny, capacity):
    """Three environments of 12 steps each, of which a ring of 21 rows keeps the last seven."""
    options = {"buffer_capacity": capacity, "learning_starts": 30, "initial_random_steps": 36}
    run = get_algorithm_spec("sac").train(tiny("sac", env_id="Diary-v0", num_envs=3, total_timesteps=36, **options))
    data = export_replay(run.run_dir)
    kept = min(12, capacity // 3)
    assert len(data) == 3 * kept
    steps = [(episode, t) for episode in range(9) for t in range(LENGTHS[episode % 4])][:12][-kept:]
    assert [tuple(row) for row in data.obs.int().tolist()] == 3 * steps
    assert all(data.actions[i * kept : (i + 1) * kept].std() > 0 for i in range(3))
    paid = 10 * data.obs[:, 0] + data.obs[:, 1] + 1 + data.actions[:, 0]
    np.testing.assert_allclose(data.rewards, paid, rtol=1e-4, atol=1e-4)
    ends = [t + 1 == LENGTHS[episode % 4] for episode, t in steps]
    cuts = [end and LENGTHS[episode % 4] % 2 == 0 for end, (episode, t) in zip(ends, steps)]
    assert data.dones.tolist() == 3 * [float(end and not cut) for end, cut in zip(ends, cuts)]
    cuts[-1] = cuts[-1] or not ends[-1]  # the next row is another environment's
    assert data.truncations.tolist() == 3 * [float(cut) for cut in cuts]
    assert data.meta["behaviour"] == {"algo": "sac", "replay": True, "step": 36}


def test_reference_returns_are_means_of_random_episodes_and_what_the_expert_is_said_to_reach():
    data = collect(config(), None, steps=5, seed=0)
    add_references(data, config(), seed=0, expert="12.5")
    drawn = collect(config(), None, episodes=10, seed=1).returns()
    assert data.meta["random_return"] == pytest.approx(drawn.mean()) and data.meta["expert_return"] == 12.5
    add_returns(data)
    assert data.meta["returns"] == pytest.approx(data.returns().tolist(), abs=1e-4)


def test_a_description_counts_episodes_ends_and_ranges():
    data = collect(config(), Counting(), steps=9)  # episodes of 3, 1, 4, and one step of the fourth
    facts = describe_dataset(data)
    returns = data.returns()[:3]
    assert (facts["transitions"], facts["episodes"], facts["unfinished"]) == (9, 4, 1)
    assert (facts["terminations"], facts["truncations"]) == (2, 1)
    assert facts["return_mean"] == pytest.approx(returns.mean()) and facts["length_mean"] == 9 / 4
    assert facts["return_quantiles"] == pytest.approx(np.quantile(returns, [0, 0.25, 0.5, 0.75, 1]).tolist())
    assert facts["observations"] == "float32 (2,)" and facts["actions"] == "float32 (1,)"
    assert facts["action_range"] == pytest.approx([1.0, 1.9]) and facts["reward_range"] == pytest.approx([2.0, 32.0])
    assert facts["concerns"] == []
