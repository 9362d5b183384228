"""Stable-Baselines3 or sbx on the same unit of work: python peer.py sb3|sbx UNIT"""

import os
import sys
from importlib import import_module

who, unit = sys.argv[1:3]
from meter import THREADS, UNITS, Meter  # noqa: E402

if who == "sbx" and THREADS == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

torch.set_num_threads(THREADS)
library = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[who])
ppo = unit.startswith("ppo")
device = {"device": "cpu"} if who == "sb3" else {}


class Timing(BaseCallback):
    """PPO is timed from rollout to rollout, the others from step to step."""

    def __init__(self, meter):
        super().__init__()
        self.meter, self.go = meter, True

    def _on_rollout_start(self):
        if ppo:
            self.go = self.meter.tick(self.num_timesteps)

    def _on_step(self):
        return self.go if ppo else self.meter.tick(self.num_timesteps)


if ppo:
    env_id, num_envs, steps, minibatch, epochs = UNITS[unit]
    meter = Meter(num_envs * steps * 3)
    model = library.PPO(
        "MlpPolicy", make_vec_env(env_id, num_envs), n_steps=steps, batch_size=minibatch, n_epochs=epochs,
        policy_kwargs={"net_arch": [64, 64]}, **device,
    )  # fmt: skip
elif unit in ("dqn_cartpole", "qrdqn_cartpole"):
    meter = Meter(1500)
    quantiles = {"n_quantiles": 50} if unit == "qrdqn_cartpole" else {}
    kind = import_module("sb3_contrib").QRDQN if quantiles else library.DQN
    model = kind(
        "MlpPolicy", gym.make("CartPole-v1"), buffer_size=50_000, learning_starts=1000, batch_size=128, train_freq=1,
        gradient_steps=1, target_update_interval=500, policy_kwargs={"net_arch": [64, 64], **quantiles}, **device,
    )  # fmt: skip
else:
    meter = Meter(450)
    env = gym.make("Pendulum-v1" if unit == "sac_pendulum" else "HalfCheetah-v5")
    model = library.SAC(
        "MlpPolicy", env, buffer_size=200_000, learning_starts=300, batch_size=256, train_freq=1, gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256]}, **device,
    )  # fmt: skip
model.learn(10**9, callback=Timing(meter))
meter.report(unit, who)
