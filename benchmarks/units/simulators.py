"""Eight environments stepped for a while, by ours or by Stable-Baselines3: python simulators.py UNIT WHO"""

from __future__ import annotations

import sys
import time

import gymnasium as gym
import numpy as np
from meter import Meter

NUM_ENVS, STEP = 8, 0.005
WARM = {"simulators_cartpole": 4_000}  # steps before the measurement; others: 80


class Busy(gym.Env):
    """Computes for five milliseconds of processor time in each step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self):
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(17, np.float32), {}

    def step(self, action):
        self.work()
        self.t += 1
        return np.full(17, self.t, np.float32), 1.0, False, self.t >= 1000, {}

    def work(self):
        end = time.thread_time() + STEP
        while time.thread_time() < end:
            pass


class Waiting(Busy):
    """Waits for five milliseconds, as for another program."""

    def work(self):
        time.sleep(STEP)


MAKERS = {
    "simulators_busy": Busy,
    "simulators_waiting": Waiting,
    "simulators_cartpole": lambda: gym.make("CartPole-v1"),
}


def ours(unit, meter, backend):
    from rl_training.envs.collector import Collector
    from rl_training.envs.factory import EnvFactory

    source = "CartPole-v1" if unit == "simulators_cartpole" else MAKERS[unit]
    workers = NUM_ENVS if unit == "simulators_waiting" else None
    envs = Collector(EnvFactory(source, {}), NUM_ENVS, 0, backend=backend, workers=workers)
    actions, steps = np.zeros((NUM_ENVS, *envs.spaces.action_shape), envs.spaces.action_dtype), 0
    while meter.tick(steps):
        envs.step(actions)
        steps += NUM_ENVS
    envs.close()


def sb3(unit, meter):
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs, steps = SubprocVecEnv([MAKERS[unit]] * NUM_ENVS), 0
    envs.reset()
    actions = np.zeros((NUM_ENVS, *envs.action_space.shape), envs.action_space.dtype)
    while meter.tick(steps):
        envs.step(actions)
        steps += NUM_ENVS
    envs.close()


if __name__ == "__main__":
    unit, who = sys.argv[1:]
    meter = Meter(WARM.get(unit, 80))
    if who == "sb3":
        sb3(unit, meter)
    else:
        ours(unit, meter, "process" if who == "ours" else "local")
    meter.report(unit, who)
