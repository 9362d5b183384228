"""One run of imitation's GAIL on demonstrations with given settings; prints a JSON line: python imitation_learning.py SETTINGS SEED EPISODES

Its reward is softplus alone, without absorbing states, a gradient penalty or a scale that follows its returns. With a Gymnasium
before 1.0, which it needs, a task has its fourth version where ours has its fifth; the result says which one it was.
"""

import json
import sys
import tempfile
import time
from importlib import metadata

import gymnasium as gym
import numpy as np
import torch
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Transitions
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.policies.base import NormalizeFeaturesExtractor
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

torch.set_num_threads(1)
settings, seed, episodes = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
steps, num_envs, options = settings["total_timesteps"], settings["num_envs"], settings["options"]
older = settings["env_id"].replace("-v5", "-v4")
env_id = settings["env_id"] if settings["env_id"] in gym.registry else older
rollout = num_envs * options["num_steps"]


def demonstrations() -> Transitions:
    """The file's transitions."""
    with np.load(settings["data"], allow_pickle=False) as file:
        obs, next_obs, acts = (file[name].astype(np.float32) for name in ("obs", "next_obs", "actions"))
        dones = file["terminations"].astype(bool)
    return Transitions(obs=obs, next_obs=next_obs, acts=acts, dones=dones, infos=np.array([{}] * len(obs)))


def generator(envs: DummyVecEnv) -> PPO:
    """PPO with our options; its observations are scaled by running statistics, as ours are."""
    scaled = {"normalize_class": RunningNorm}
    policy = {"net_arch": list(options["hidden_sizes"])}
    if options["normalize_observations"]:
        policy |= {"features_extractor_class": NormalizeFeaturesExtractor, "features_extractor_kwargs": scaled}
    return PPO(
        "MlpPolicy", envs, seed=seed, device="cpu", n_steps=options["num_steps"], batch_size=options["minibatch_size"],
        n_epochs=options["update_epochs"], learning_rate=options["learning_rate"], gamma=options["gamma"],
        gae_lambda=options["gae_lambda"], clip_range=options["clip_coef"], ent_coef=options["ent_coef"],
        vf_coef=options["vf_coef"], max_grad_norm=options["max_grad_norm"], policy_kwargs=policy,
    )  # fmt: skip


envs = DummyVecEnv([lambda: RolloutInfoWrapper(gym.make(env_id)) for _ in range(num_envs)])
envs.seed(seed)
agent = generator(envs)
judge = BasicRewardNet(
    envs.observation_space, envs.action_space, hid_sizes=tuple(options["discriminator_hidden_sizes"]),
    normalize_input_layer=RunningNorm if options["normalize_discriminator"] else None,
)  # fmt: skip
trainer = GAIL(
    demonstrations=demonstrations(), demo_batch_size=options["discriminator_batch_size"], venv=envs, gen_algo=agent,
    reward_net=judge, n_disc_updates_per_round=options["discriminator_updates"], gen_train_timesteps=rollout,
    disc_opt_kwargs={"lr": options["discriminator_learning_rate"]}, gen_replay_buffer_capacity=rollout,
    allow_variable_horizon=True, custom_logger=logger.configure(tempfile.mkdtemp(), []),
)  # fmt: skip


def falling(rounds: int) -> None:
    """Each round is a whole run to the generator, so that its own schedule would not last."""
    left = max(0.0, 1 - (rounds + 1) * rollout / steps)
    if options["learning_rate_schedule"] == "linear":
        agent.lr_schedule = lambda _: options["learning_rate"] * left


began = time.process_time()
trainer.train(-(-steps // rollout) * rollout, falling)
cpu = time.process_time() - began
test = Monitor(gym.make(env_id))
test.reset(seed=10_000 + seed)
returns, _ = evaluate_policy(agent, test, episodes, deterministic=True, return_episode_rewards=True)
result = {
    "seed": seed, "return_mean": sum(returns) / len(returns), "returns": returns, "steps": steps, "cpu_seconds": round(cpu, 1),
    "imitation": metadata.version("imitation"), "gymnasium": gym.__version__, "env_id": env_id,
}  # fmt: skip
print(json.dumps(result))
