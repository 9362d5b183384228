"""The smallest tasks that can be learned: two arms, and a temptation that costs more at the next step."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from built_learners import DIM, OBS, built
from rl_training.experiment.registry import get_algorithm_spec

ACTORS = {
    "sac": {},
    "rlpd": {"num_critics": 3, "gradient_updates_per_step": 2},
    "cql": {"num_cql_samples": 4, "cql_alpha": 0.5, "actor_learning_rate": 0.01},
    "iql": {},
    "td3_bc": {"normalize_observations": False},
    "bc": {"loss": "likelihood"},
}


@pytest.mark.parametrize("algo", ACTORS)
def test_the_better_of_two_arms_is_preferred(algo):
    """Both arms are in the data at every observation; behaviour cloning gets the better one alone."""
    learner = built(algo, **ACTORS[algo], **({} if algo == "bc" else {"tau": 0.1}))
    generator = torch.Generator().manual_seed(0)
    side = torch.where(torch.arange(32) % 2 == 0, 1.0, 1.0 if algo == "bc" else -1.0)
    obs = torch.randn(16, OBS, generator=generator).repeat_interleave(2, 0)
    batch = {
        "obs": obs, "actions": 0.5 * side[:, None].expand(32, DIM), "rewards": side, "next_obs": obs,
        "dones": torch.ones(32),
    }  # fmt: skip
    before = learner.act(obs.numpy(), deterministic=True).actions
    for number in range(100):
        learner.update({name: column.clone() for name, column in batch.items()}, global_step=number)
    after = learner.act(obs.numpy(), deterministic=True).actions
    assert after.mean() > 0.2 and after.mean() > before.mean() + 0.2
    drawn = learner.act(obs.numpy(), rng=np.random.default_rng(0)).actions
    assert (drawn > 0).mean() > 0.6


class Temptation(gym.Env):
    """The first action pays minus itself, and the second step three times the first action; the second action changes
    nothing. Who looks one step ahead takes -1 and gets -2 in all, who looks two steps ahead takes 1 and gets 2."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first = None
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self.first is None:
            self.first = float(action[0])
            return np.array([self.first, 1.0], np.float32), -self.first, False, False, {}
        return np.zeros(2, np.float32), 3 * self.first, True, False, {}


ONLINE = {"learning_starts": 50, "initial_random_steps": 50, "batch_size": 32, "buffer_capacity": 1000}
OFFLINE = {"dataset_size": 300, "batch_size": 32}
LEARNING = {
    "sac": {**ONLINE, "total_timesteps": 350},
    "rlpd": {
        **ONLINE,
        "total_timesteps": 200,
        "dataset_size": 200,
        "num_critics": 3,
        "gradient_updates_per_step": 2,
        "offline_pretrain_updates": 0,
    },
    "cql": {**OFFLINE, "total_timesteps": 300, "num_cql_samples": 4, "cql_alpha": 0.5, "actor_learning_rate": 0.01},
    "iql": {**OFFLINE, "total_timesteps": 300},
    "td3_bc": {**OFFLINE, "total_timesteps": 300},
    "bc": {**OFFLINE, "total_timesteps": 150, "best_fraction": 0.2},
}


@pytest.mark.parametrize("algo", ACTORS)
def test_what_pays_later_is_learned(tiny, algo):
    given = {"hidden_sizes": [16, 16], "learning_rate": 0.01, "eval_interval": 0, **LEARNING[algo]}
    given |= {} if algo == "bc" else {"tau": 0.05}
    config = tiny(algo, **given, checkpoint_interval=10_000, env_kwargs={"max_episode_steps": 5})
    result = get_algorithm_spec(algo).train(config, env=Temptation)
    assert result.metrics["eval_return_mean"] > 1.0  # the best is 2; at random it is 0
