"""The smallest tasks that PETS, MBPO, MOPO and Dreamer cannot learn if anything has the wrong sign."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.rssm import Size

SMALL = Size(deter=16, hidden=16, latents=4, classes=4, units=16, depth=2, blocks=2)


class Point(gym.Env):
    """A point on a line that an action moves by up to a half; it pays minus the distance from one half, for eight steps.

    It starts 1.5 to the left or to the right of there. Going there at once costs 1 + 0.5 in all, staying 12, and random moves about as much.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0.5 + 1.5 * self.np_random.choice([-1, 1])
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x += 0.5 * float(action[0])
        return np.array([self.x], np.float32), -abs(self.x - 0.5), False, False, {}


gym.register("Point-v0", Point, max_episode_steps=8)

MODEL = {"model_hidden_sizes": [32, 32], "num_ensembles": 3, "model_learning_rate": 3e-3}
ROLLOUTS = {
    **{**MODEL, "num_elites": 2, "model_batch_size": 64, "model_updates": 250, "rollout_batch_size": 300},
    **{
        "hidden_sizes": [32, 32],
        "batch_size": 64,
        "policy_learning_rate": 3e-3,
        "gamma": 0.8,
        "tau": 0.05,
        "alpha": 0.02,
    },
}
TASKS = {
    "pets": (310, {**MODEL, "learning_starts": 300, "initial_random_steps": 300, "train_frequency": 300, "batch_size": 32,
        "model_updates_per_step": 4.0, "planning_horizon": 4, "planning_candidates": 40, "planning_topk": 6,
        "planning_iterations": 4, "planning_particles": 3}),
    "mbpo": (300, {**ROLLOUTS, "learning_starts": 150, "initial_random_steps": 150, "model_train_frequency": 150,
        "rollout_horizon": 2, "gradient_updates_per_step": 2}),
    "mopo": (300, {**ROLLOUTS, "dataset_size": 200, "rollout_horizon": 2, "rollout_refresh_interval": 100, "penalty_coef": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("algo", TASKS)
def test_a_point_finds_its_place(tiny, algo):
    steps, options = TASKS[algo]
    config = tiny(algo, env_id="Point-v0", total_timesteps=steps, eval_episodes=6, compile=False)
    config = config.replace(algo_kwargs={**options, "eval_interval": 0}, checkpoint_interval=10_000, loggers=())
    result = get_algorithm_spec(algo).train(config)
    assert result.metrics["eval_return_mean"] > -5  # twelve seeds: -2.1 to -3.2, MOPO's -3.9


# ---- Dreamer

RATES = {"world_model_learning_rate": 1e-2, "actor_learning_rate": 1e-2, "critic_learning_rate": 5e-3}


class Buttons(gym.Env):
    """Two buttons, of which the second pays two and darkens the screen; in eight steps random presses earn eight."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.array([-action], np.float32), 2.0 * action, False, False, {}


gym.register("Buttons-v0", Buttons, max_episode_steps=8)


def test_dreamer_finds_the_button_that_pays(tiny):
    options = {"size": "nano", "batch_size": 16, "sequence_length": 5, "learning_starts": 100, "train_frequency": 2}
    options |= {"imagination_horizon": 1, "gamma": 0.5, "initial_random_steps": 200, **RATES}
    config = tiny("dreamer", env_id="Buttons-v0", total_timesteps=450, eval_episodes=2, compile=False)
    config = config.replace(algo_kwargs={**options, "eval_interval": 0}, checkpoint_interval=10_000, loggers=())
    result = get_algorithm_spec("dreamer").train(config)
    assert result.metrics["eval_return_mean"] > 14


def pulls(learner, generator, n=16):
    """Sequences of random pulls. A choice of two pays two for the second; a box pays its entry; either arrives at the next observation."""
    length = 6
    if learner.actor.categorical:
        actions = torch.randint(2, (length, n), generator=generator)
        paid = 2.0 * actions
    else:
        actions = torch.rand(length, n, 1, generator=generator) * 2 - 1
        paid = 2 * actions[..., 0]
    rewards = torch.cat([torch.zeros(1, n), paid[:-1]])
    starts = torch.zeros(length, n)
    starts[0] = 1
    zeros = torch.zeros(length, n)
    return {"obs": zeros[..., None], "actions": actions, "rewards": rewards, "dones": zeros, "episode_starts": starts}


@pytest.mark.parametrize("space", [{"num_actions": 2}, {"action_dim": 1}], ids=["choices", "a box"])
def test_dreamers_actor_prefers_the_better_arm(space):
    torch.manual_seed(0)
    learner = Dreamer(obs_shape=(1,), size=SMALL, gamma=0.5, imagination_horizon=1, **RATES, **space)
    generator, first = torch.Generator().manual_seed(0), preference(learner)
    for _ in range(100):
        learner.update_world_model(pulls(learner, generator), global_step=0)
    for _ in range(80):
        metrics = learner.update(pulls(learner, generator), global_step=0).metrics
    assert abs(first) < 0.2 and preference(learner) > 0.6
    assert metrics["dreamer_imagination_reward_mean"] > 0.5 + (
        "num_actions" in space
    )  # a random policy earns that less 0.5


def preference(learner):
    """Of the first observation: by how much the better choice is more probable than the other, or the mean of a box's action."""
    outputs = []
    hook = learner.actor.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    learner.act(np.zeros((1, 1), np.float32), deterministic=True)
    hook.remove()
    (output,) = outputs
    if learner.actor.categorical:
        worse, better = output[0].exp().tolist()
        return better - worse
    return float(output[0, 0].tanh())
