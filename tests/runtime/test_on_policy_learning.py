"""The smallest tasks that PPO, PPG and GAIL must learn, each in a second or two: a wrong sign anywhere fails them."""

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training.data.dataset_files import write_npz
from rl_training.data.offline_dataset import TransitionDataset

COMMON = {
    "num_steps": 64,
    "minibatch_size": 32,
    "update_epochs": 4,
    "learning_rate": 5e-3,
    "hidden_sizes": [16],
    "gamma": 0.95,
}
OWN = {
    "ppo": {},
    "ppg": {"aux_frequency": 4, "aux_epochs": 3, "aux_minibatch_size": 64, "aux_learning_rate": 5e-3},
    "gail": {"discriminator_batch_size": 64, "discriminator_learning_rate": 5e-3, "discriminator_hidden_sizes": [16]},
}


class Bandit(gym.Env):
    """One observation, one step; ``pays`` maps the action to the reward."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, pays, actions: gym.Space) -> None:
        self.pays, self.action_space = pays, actions

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(self.pays(action)), True, False, {}


class Corridor(gym.Env):
    """Five cells, begun in the second: one step to the left pays a little and ends, three to the right pay most and end."""

    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def _obs(self):
        return np.eye(5, dtype=np.float32)[self.cell]

    def reset(self, *, seed=None, options=None):
        self.cell = 1
        return self._obs(), {}

    def step(self, action):
        self.cell += 1 if action == 1 else -1
        reward = {0: 0.2, 4: 1.0}.get(self.cell, 0.0)
        return self._obs(), reward, self.cell in (0, 4), False, {}


def trained(tiny, algo, env, **options):
    agent = getattr(rl_training, algo.upper())(tiny(algo, **{**COMMON, **OWN[algo], "seed": 1, **options}), env=env)
    agent.learn()
    return agent


def expert_of(folder, obs, actions):
    """The options of GAIL for an expert of one episode, which terminates after its last row."""
    ends = np.arange(len(obs)) == len(obs) - 1
    columns = {"obs": obs, "actions": actions, "rewards": np.zeros(len(obs)), "next_obs": np.roll(obs, -1, 0)}
    write_npz(
        folder / "expert.npz", TransitionDataset.from_dict({**columns, "terminations": ends, "truncations": 0 * ends})
    )
    return {"expert_dataset_kind": "npz", "expert_dataset_path": str(folder / "expert.npz")}


def draws(agent, count=2000):
    """What the policy draws in the bandit's one state."""
    return agent.agent.act(np.ones((count, 1), np.float32), rng=np.random.default_rng(0)).actions


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_the_arm_that_pays_gains_probability(tiny, algo):
    agent = trained(tiny, algo, lambda: Bandit(lambda arm: arm == 2, gym.spaces.Discrete(3)), total_timesteps=640)
    assert np.mean(draws(agent) == 2) > 0.85


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_an_entropy_bonus_keeps_an_arm_that_pays_less_and_its_lack_does_not(tiny, algo):
    """With a bonus of c, the best policy's odds are exp(difference of rewards / c): here e to 1."""
    pays = lambda arm: 0.2 * arm  # noqa: E731
    options = {"normalize_rewards": False, "normalize_advantages": False, "total_timesteps": 4096, "num_steps": 256}
    agent = trained(tiny, algo, lambda: Bandit(pays, gym.spaces.Discrete(2)), **options, ent_coef=0.2)
    assert np.mean(draws(agent) == 1) == pytest.approx(np.e / (1 + np.e), abs=0.08)


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_a_gaussian_moves_to_where_the_reward_is_largest_and_narrows(tiny, algo):
    pays = lambda action: -((action[0] - 1.0) ** 2)  # noqa: E731
    box = gym.spaces.Box(-2, 2, (1,), np.float32)
    agent = trained(tiny, algo, lambda: Bandit(pays, box), total_timesteps=2048, learning_rate=1e-2)
    actions = draws(agent)  # in units of the box: its half is one
    assert actions.mean() == pytest.approx(0.5, abs=0.1) and actions.std() < 0.4


@pytest.mark.parametrize("reward_type", ["softplus", "logsigmoid", "logit"])
def test_the_experts_arm_gains_probability_although_the_environment_pays_for_the_other(tiny, tmp_path, reward_type):
    expert = expert_of(tmp_path, np.ones((8, 1), np.float32), np.ones(8, np.int64))
    env = lambda: Bandit(lambda arm: 10.0 * (arm == 0), gym.spaces.Discrete(2))  # noqa: E731
    agent = trained(tiny, "gail", env, **expert, reward_type=reward_type, total_timesteps=1024)
    assert np.mean(draws(agent) == 1) > 0.85


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_a_larger_reward_that_is_further_away_is_found(tiny, algo):
    agent = trained(tiny, algo, Corridor, total_timesteps=4096, env_kwargs={"max_episode_steps": 20}, ent_coef=0.01)
    assert agent.evaluate()["eval_return_mean"] == 1.0


def test_the_experts_way_is_imitated(tiny, tmp_path):
    expert = expert_of(tmp_path, np.eye(5, dtype=np.float32)[[1, 2, 3]], np.ones(3, np.int64))
    limit = {"max_episode_steps": 20}
    agent = trained(tiny, "gail", Corridor, **expert, total_timesteps=2048, env_kwargs=limit, reward_type="logit")
    assert agent.evaluate()["eval_return_mean"] == 1.0
