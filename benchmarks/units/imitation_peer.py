"""imitation's GAIL: python imitation_peer.py gail_cartpole"""

import sys

import gymnasium as gym
import numpy as np
import torch
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Transitions
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util.networks import RunningNorm
from meter import THREADS, Meter
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

unit = sys.argv[1]
torch.set_num_threads(THREADS)
rng = np.random.default_rng(0)
obs = rng.standard_normal((2_001, 4)).astype(np.float32)
expert = Transitions(
    obs=obs[:-1], next_obs=obs[1:], acts=rng.integers(2, size=2_000), dones=np.zeros(2_000, bool),
    infos=np.array([{}] * 2_000),
)  # fmt: skip
envs = DummyVecEnv([lambda: RolloutInfoWrapper(gym.make("CartPole-v1")) for _ in range(8)])
agent = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, learning_rate=3e-4, device="cpu")
judge = BasicRewardNet(envs.observation_space, envs.action_space, hid_sizes=(64, 64), normalize_input_layer=RunningNorm)
trainer = GAIL(
    demonstrations=expert, demo_batch_size=256, venv=envs, gen_algo=agent, reward_net=judge, n_disc_updates_per_round=4,
    gen_train_timesteps=1024, gen_replay_buffer_capacity=1024, allow_variable_horizon=True,
)  # fmt: skip
meter, rounds = Meter(3 * 1024), 0


class Over(Exception):
    pass


def tick(_) -> None:
    global rounds
    rounds += 1
    if not meter.tick(rounds * 1024):
        raise Over


try:
    trainer.train(10**8, tick)
except Over:
    meter.report(unit, "imitation")
