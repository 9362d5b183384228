"""Termination functions agree with the environments' own judgement, near their thresholds above all."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import terminations
from rl_training.envs.terminations import register_termination, termination_of

SPREADS = {  # the simulator's positions (and velocities) that decide: (index, centre, spread), around the thresholds
    "Hopper": [(1, 0.7, 0.05), (2, 0.2, 0.05), (2, -0.2, 0.05)],
    "Walker2d": [(1, 0.8, 0.05), (1, 2.0, 0.05), (2, 1.0, 0.1), (2, -1.0, 0.1)],
    "Ant": [(2, 0.2, 0.05), (2, 1.0, 0.05)],
    "Humanoid": [(2, 1.0, 0.05), (2, 2.0, 0.05)],
    "InvertedPendulum": [(1, 0.2, 0.02), (1, -0.2, 0.02)],
    "InvertedDoublePendulum": [(1, 0.4, 0.4), (1, -0.4, 0.4), (2, 1.1, 0.3), (2, -1.1, 0.3)],
}
CLASSIC = {  # states (low, high) drawn from boxes about the thresholds, and an action
    "CartPole-v0": ([-2.6, -1, -0.25, -1], [2.6, 1, 0.25, 1], 1),
    "CartPole-v1": ([-2.6, -1, -0.25, -1], [2.6, 1, 0.25, 1], 0),
    "MountainCar-v0": ([0.4, -0.05], [0.52, 0.07], 1),
    "MountainCarContinuous-v0": ([0.35, -0.05], [0.5, 0.07], np.zeros(1)),
    "Acrobot-v1": ([-np.pi, -np.pi, -2, -2], [np.pi, np.pi, 2, 2], 1),
    "Pendulum-v1": ([-np.pi, -8], [np.pi, 8], np.ones(1)),
}
MUJOCO = sorted({*terminations._TERMINATIONS} - {*CLASSIC})
ENDLESS = {"Pendulum", "HalfCheetah", "Reacher", "Pusher", "Swimmer", "HumanoidStandup"}


def agree(env, function, action, verdicts):
    """The simulator's next step terminates where the function says so."""
    next_obs, _, terminated, _, _ = env.step(action)
    said = function(np.zeros((1, 1)), np.asarray(action)[None], np.asarray(next_obs)[None])
    assert said.shape == (1,) and bool(said[0]) is bool(terminated), next_obs
    verdicts.append(bool(terminated))


@pytest.mark.parametrize("env_id", MUJOCO)
def test_simulators_terminate_near_the_thresholds_where_the_function_says(env_id):
    pytest.importorskip("mujoco")
    name = env_id.split("-")[0]
    try:
        env, function, verdicts = gym.make(env_id).unwrapped, termination_of(env_id), []
    except ImportError as error:  # of older versions of MuJoCo
        pytest.skip(str(error))
    env.reset(seed=0)
    env.action_space.seed(0)
    rng = np.random.default_rng(0)
    for index, centre, spread in SPREADS.get(name, [(0, 0.0, 3.0)]):
        for _ in range(12):
            qpos, qvel = env.init_qpos.copy(), env.init_qvel + rng.normal(0, 0.1, env.init_qvel.shape)
            qpos[index] = centre + rng.uniform(-spread, spread)
            env.set_state(qpos, qvel)
            agree(env, function, 0.1 * env.action_space.sample(), verdicts)
    if name in ENDLESS:
        assert not any(verdicts)
    else:
        assert 0.2 < np.mean(verdicts) < 0.8  # both verdicts came up
        obs = env._get_obs()
        assert function(None, None, np.where(np.arange(len(obs)) == len(obs) - 1, np.nan, obs)[None]).tolist() == [True]
    env.close()


@pytest.mark.parametrize("env_id", ["Hopper-v4", "Hopper-v5"])
def test_a_hopper_whose_joints_turn_too_far_is_not_healthy(env_id):
    """Any joint beyond 100; observations clip velocities to 10, so that those cannot be judged."""
    pytest.importorskip("mujoco")
    env, function = gym.make(env_id).unwrapped, termination_of(env_id)
    env.reset(seed=0)
    for joint in (3, 4, 5):
        for angle in (-101, -99, 99, 101):
            qpos = env.init_qpos.copy()
            qpos[joint] = angle
            env.set_state(qpos, env.init_qvel)
            assert function(None, None, env._get_obs()[None]).tolist() == [not env.is_healthy] == [abs(angle) > 100]


@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_tasks_terminate_near_the_thresholds_where_the_function_says(env_id):
    low, high, action = CLASSIC[env_id]
    env, function, verdicts = gym.make(env_id).unwrapped, termination_of(env_id), []
    rng = np.random.default_rng(0)
    for _ in range(200):
        env.reset(seed=0)
        env.state = rng.uniform(low, high)
        agree(env, function, action, verdicts)
    assert 0.1 < np.mean(verdicts) < 0.9 or env_id == "Pendulum-v1"


def test_rows_are_judged_one_by_one():
    """A batch of next observations, upright and fallen in turn; the observation before has no say."""
    upright, fallen = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.3, 0.0]
    function = termination_of("CartPole-v1")
    rows = np.array([upright, fallen, upright, fallen])
    assert function(rows[::-1], None, rows).tolist() == [False, True, False, True]
    assert function(rows, None, np.array([[2.39, 0, 0, 0], [-2.41, 0, 0, 0]])).tolist() == [False, True]


def test_a_function_of_ones_own():
    assert termination_of("Mine-v0") is None
    register_termination("Mine-v0", lambda obs, actions, next_obs: next_obs[:, 0] > 1)
    try:
        assert termination_of("Mine-v0")(None, None, np.array([[0.0], [2.0]])).tolist() == [False, True]
    finally:
        del terminations._TERMINATIONS["Mine-v0"]
