"""The smallest tasks on which a value learner with a wrong sign fails: a bandit, and a larger reward further away."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.cql import DiscreteCQL
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork

SIZES = {"obs_dim": 1, "action_dim": 2, "hidden_sizes": (16, 16)}
QUANTILES = {"num_quantiles": 5}
BANDITS = {
    "dqn": lambda **options: DQN(q_network=MLPQNetwork(**SIZES), **options),
    "qr_dqn": lambda **options: QRDQN(q_network=MLPQRQNetwork(**SIZES, **QUANTILES), **QUANTILES, **options),
    "iqn": lambda **options: IQN(q_network=MLPIQNetwork(**SIZES), **QUANTILES, **options),
    "fqf": lambda **options: FQF(
        q_network=MLPFQFNetwork(**SIZES, **QUANTILES), **QUANTILES, fraction_learning_rate=1e-3, **options
    ),
    "discrete_cql": lambda **options: DiscreteCQL(q_network=MLPQNetwork(**SIZES), cql_alpha=0.02, **options),
}


@pytest.mark.parametrize("better", [0, 1])
@pytest.mark.parametrize("kind", BANDITS)
def test_the_better_arm_of_a_bandit_gets_the_higher_value(kind, better):
    """One arm pays 1, the other -1; every pull ends the episode."""
    learner = BANDITS[kind](learning_rate=1e-2, gamma=0.9, target_update_interval=10, double_q=True)
    obs, actions = np.zeros((1, 1), np.float32), torch.arange(32) % 2
    for step in range(150):
        rewards = torch.where(actions == better, 1.0, -1.0)
        seen = torch.zeros(32, 1)
        rows = {"obs": seen, "actions": actions, "rewards": rewards, "next_obs": seen, "dones": torch.ones(32)}
        learner.update(rows, global_step=step)
    values = learner._values.on_arrays(obs, None)[0]
    assert learner.act(obs, deterministic=True).actions.tolist() == [better]
    assert values[better] == pytest.approx(1, abs=0.15) and values[1 - better] == pytest.approx(-1, abs=0.15)


class Corridor(gym.Env):
    """Begins at place 1 of 0 … 4, pays -0.1 a step. To the left, 0.2 is one step away; to the right, 1 is three."""

    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place, self.t = 1, 0
        return self._obs(), {}

    def _obs(self):
        return np.eye(5, dtype=np.float32)[self.place]

    def step(self, action):
        self.place, self.t = self.place + (1 if action else -1), self.t + 1
        prize = {0: 0.2, 4: 1.0}.get(self.place, 0.0)
        return self._obs(), prize - 0.1, self.place in (0, 4), self.t >= 20, {}


@pytest.mark.parametrize("algo", ["dqn", "qr_dqn", "iqn", "fqf", "cql"])
def test_the_larger_reward_is_found_although_it_lies_further_away(tiny, algo):
    online = {"learning_starts": 64, "train_frequency": 2, "batch_size": 32, "exploration_fraction": 0.5}
    offline = {"dataset_size": 600, "hidden_sizes": [16], "cql_alpha": 0.05, "batch_size": 32}
    options = {"learning_rate": 3e-3, "gamma": 0.95, "target_update_interval": 20}
    steps, own = (400, offline) if algo == "cql" else (900, online)
    config = tiny(algo, total_timesteps=steps, algo_kwargs={**own, **options, "eval_interval": 0})
    result = get_algorithm_spec(algo).train(config, env=Corridor)
    assert result.metrics["eval_return_mean"] == pytest.approx(0.7)
