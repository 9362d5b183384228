"""Termination functions agree with the environments' own judgement, near their thresholds above all."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import terminations
from rl_training.envs.terminations import register_termination, termination_of

LIMITS = {  # environment: (what to move in qpos, its centre, its spread), around the thresholds
    "Hopper-v5": [(1, 0.7, 0.05), (2, 0.2, 0.05), (2, -0.2, 0.05)],
    "Walker2d-v5": [(1, 0.8, 0.05), (1, 2.0, 0.05), (2, 1.0, 0.1), (2, -1.0, 0.1)],
    "Ant-v5": [(2, 0.2, 0.05), (2, 1.0, 0.05)],
    "Humanoid-v5": [(2, 1.0, 0.05), (2, 2.0, 0.05)],
}


@pytest.mark.parametrize("env_id", LIMITS)
def test_health_near_the_thresholds(env_id):
    pytest.importorskip("mujoco")
    env = gym.make(env_id).unwrapped
    env.reset(seed=0)
    rng, function, verdicts = np.random.default_rng(0), termination_of(env_id), []
    for index, centre, spread in LIMITS[env_id]:
        for _ in range(40):
            qpos, qvel = env.init_qpos.copy(), env.init_qvel.copy()
            qpos[index] = centre + rng.uniform(-spread, spread)
            env.set_state(qpos, qvel)
            obs = env._get_obs()[None]
            said = bool(function(obs, np.zeros((1, 1)), obs)[0])
            assert said is not bool(env.is_healthy), (env_id, index, qpos[index])
            verdicts.append(said)
    assert 0.2 < np.mean(verdicts) < 0.8  # both verdicts were asked for


@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        ("InvertedPendulum-v5", 400),
        ("InvertedDoublePendulum-v5", 400),
        ("CartPole-v1", 600),
        ("Hopper-v5", 400),
        ("Pendulum-v1", 250),
    ],
)
def test_random_episodes_end_where_the_function_says(env_id, steps):
    if env_id.split("-")[0] not in ("CartPole", "Pendulum"):
        pytest.importorskip("mujoco")
    env, function = gym.make(env_id), termination_of(env_id)
    obs, _ = env.reset(seed=1)
    env.action_space.seed(1)
    ends = 0
    for _ in range(steps):
        action = env.action_space.sample()
        next_obs, _, terminated, truncated, _ = env.step(action)
        said = function(obs[None], np.asarray(action)[None], next_obs[None])[0]
        assert bool(said) is bool(terminated)
        ends += terminated
        obs = env.reset()[0] if terminated or truncated else next_obs
    assert ends > 3 or env_id == "Pendulum-v1"


def test_the_mountain_cars_and_the_acrobot():
    for env_id in ("MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"):
        env = gym.make(env_id).unwrapped
        env.reset(seed=0)
        rng, function, ends = np.random.default_rng(0), termination_of(env_id), 0
        for _ in range(300):
            if env_id == "Acrobot-v1":
                env.state = rng.uniform(-1, 1, 4) * [np.pi, np.pi, 2, 2]
                action = 1
            else:
                env.state = np.array([rng.uniform(0.4, 0.52), rng.uniform(-0.05, 0.07)])
                action = 1 if env_id == "MountainCar-v0" else np.zeros(1)
            next_obs, _, terminated, _, _ = env.step(action)
            assert bool(function(None, None, np.asarray(next_obs)[None])[0]) is bool(terminated)
            ends += bool(terminated)
        assert 20 < ends < 280


def test_a_function_of_ones_own():
    assert termination_of("Mine-v0") is None
    register_termination("Mine-v0", lambda obs, actions, next_obs: next_obs[:, 0] > 1)
    try:
        assert termination_of("Mine-v0")(None, None, np.array([[0.0], [2.0]])).tolist() == [False, True]
    finally:
        del terminations._TERMINATIONS["Mine-v0"]
