"""Tianshou on a unit of the value-based family: python tianshou_peer.py qrdqn_cartpole|iqn_cartpole|fqf_cartpole"""

import contextlib
import logging
import sys

import gymnasium as gym
import torch
from meter import THREADS, Meter
from tianshou.algorithm import IQN, QRDQN
from tianshou.algorithm.modelfree.fqf import FQF, FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import FractionProposalNetwork, FullQuantileFunction, ImplicitQuantileNetwork

unit = sys.argv[1]
torch.set_num_threads(THREADS)
logging.disable(logging.WARNING)
env = gym.make("CartPole-v1")
shape, space = env.observation_space.shape, env.action_space
meter = Meter(1500)
adam = AdamOptimizerFactory(lr=3e-4)


class Over(Exception):
    pass


def tick(epoch: int, step: int) -> None:
    if not meter.tick(step):
        raise Over


if unit == "qrdqn_cartpole":
    net = Net(state_shape=shape, action_shape=space.n, hidden_sizes=[64, 64], num_atoms=50)
    policy = QRDQNPolicy(model=net, action_space=space, eps_training=0.05)
    algorithm = QRDQN(policy=policy, optim=adam, num_quantiles=50, target_update_freq=500)
elif unit == "iqn_cartpole":
    features = Net(state_shape=shape, action_shape=64, hidden_sizes=[64])
    net = ImplicitQuantileNetwork(preprocess_net=features, action_shape=space.n, hidden_sizes=[64], num_cosines=64)
    policy = IQNPolicy(
        model=net, action_space=space, sample_size=32, online_sample_size=8, target_sample_size=8, eps_training=0.05
    )
    algorithm = IQN(policy=policy, optim=adam, target_update_freq=500)
else:
    features = Net(state_shape=shape, action_shape=64, hidden_sizes=())
    net = FullQuantileFunction(preprocess_net=features, action_shape=space.n, hidden_sizes=[64], num_cosines=64)
    policy = FQFPolicy(model=net, fraction_model=FractionProposalNetwork(32, 64), action_space=space, eps_training=0.05)
    algorithm = FQF(
        policy=policy, optim=adam, fraction_optim=RMSpropOptimizerFactory(lr=2.5e-9), num_fractions=32,
        ent_coef=1e-3, target_update_freq=500,
    )  # fmt: skip

envs = DummyVectorEnv([lambda: gym.make("CartPole-v1")])
collector = Collector(algorithm, envs, VectorReplayBuffer(50_000, 1), exploration_noise=True)
collector.reset()
collector.collect(n_step=1000, random=True)
settings = OffPolicyTrainerParams(
    training_collector=collector, collection_step_num_env_steps=1, batch_size=128,
    update_step_num_gradient_steps_per_sample=1.0, max_epochs=10**6, epoch_num_steps=10**7, training_fn=tick,
    verbose=False, show_progress=False, test_collector=None,
)  # fmt: skip
with contextlib.suppress(Over):
    algorithm.run_training(settings)
meter.report(unit, "tianshou")
