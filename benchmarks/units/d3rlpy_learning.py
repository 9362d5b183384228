"""One run of d3rlpy on a dataset with given settings; prints a JSON line: python d3rlpy_learning.py SETTINGS SEED EPISODES

An observation after the last step of a truncated episode is not among its transitions, so those steps are left out of them.
"""

import json
import logging
import sys
import time

import d3rlpy
import gymnasium as gym
import numpy as np
import structlog
import torch
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import StandardObservationScaler

torch.set_num_threads(1)
structlog.configure(
    wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR)
)  # standard output is for the result
settings, seed, episodes = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
algo, updates, options = settings["algo"], settings["updates"], settings["options"]


def dataset() -> MDPDataset:
    """The file's transitions, with rewards scaled as ours are; the last row ends an episode, whatever it was."""
    with np.load(settings["data"], allow_pickle=False) as file:
        columns = {name: file[name] for name in ("obs", "actions", "rewards", "terminations", "truncations")}
    terminals = columns["terminations"].astype(np.float32)
    timeouts = columns["truncations"].astype(np.float32) * (1 - terminals)
    timeouts[-1] = 1 - terminals[-1]
    rewards = columns["rewards"].astype(np.float32) * settings["reward_factor"]
    return MDPDataset(columns["obs"], columns["actions"], rewards, terminals, timeouts)


def shared() -> dict:
    """What all three algorithms have in common."""
    encoder = VectorEncoderFactory(list(options["hidden_sizes"]))
    return {
        "batch_size": options["batch_size"], "gamma": options["gamma"], "tau": options["tau"],
        "actor_encoder_factory": encoder, "critic_encoder_factory": encoder,
        "critic_learning_rate": options["learning_rate"],
        "actor_learning_rate": options.get("actor_learning_rate", options["learning_rate"]),
        "observation_scaler": StandardObservationScaler() if options["normalize_observations"] else None,
    }  # fmt: skip


def learner() -> d3rlpy.algos.QLearningAlgoBase:
    """The library's algorithm with our options."""
    if algo == "td3_bc":
        config = d3rlpy.algos.TD3PlusBCConfig(
            **shared(), alpha=options["alpha"], update_actor_interval=options["policy_delay"],
            target_smoothing_sigma=options["policy_noise"], target_smoothing_clip=options["noise_clip"],
        )  # fmt: skip
    elif algo == "iql":
        falling = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=updates))
        config = d3rlpy.algos.IQLConfig(
            **shared(), value_encoder_factory=VectorEncoderFactory(list(options["hidden_sizes"])),
            actor_optim_factory=falling, expectile=options["expectile"], weight_temp=options["inverse_temperature"],
            max_weight=options["largest_weight"],
        )  # fmt: skip
    else:  # without a Lagrange multiplier its weight stays as it is: initial_alpha is a factor of conservative_weight
        config = d3rlpy.algos.CQLConfig(
            **shared(), conservative_weight=options["cql_alpha"], n_action_samples=options["num_cql_samples"],
            temp_learning_rate=options["learning_rate"], alpha_learning_rate=0.0, initial_alpha=1.0,
            soft_q_backup=options["backup_entropy"],
        )  # fmt: skip
    return config.create(device=False)


def returns_of(agent: d3rlpy.algos.QLearningAlgoBase) -> list[float]:
    """The returns of greedy episodes."""
    env, returns = gym.make(settings["env_id"]), []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + 1_000 * seed + episode)
        total, over = 0.0, False
        while not over:
            action = agent.predict(np.asarray(obs, np.float32)[None])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


d3rlpy.seed(seed)
agent = learner()
began = time.process_time()
agent.fit(
    dataset(), n_steps=updates, n_steps_per_epoch=updates, logger_adapter=NoopAdapterFactory(), show_progress=False
)
cpu = time.process_time() - began
found = returns_of(agent)
result = {
    "seed": seed, "return_mean": sum(found) / len(found), "returns": found, "updates": updates, "cpu_seconds": round(cpu, 1),
    "d3rlpy": d3rlpy.__version__, "gymnasium": gym.__version__, "env_id": settings["env_id"],
}  # fmt: skip
print(json.dumps(result))
