"""One run of Stable-Baselines3's SAC with given settings; prints a JSON line: python sb3_learning.py SETTINGS SEED EPISODES"""

import json
import sys
import time

import gymnasium as gym
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

torch.set_num_threads(1)
settings, seed, episodes = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
steps, options = settings["total_timesteps"], settings["options"]
model = stable_baselines3.SAC(
    "MlpPolicy", gym.make(settings["env_id"]), seed=seed, device="cpu", train_freq=1, gradient_steps=1,
    learning_rate=options["learning_rate"], learning_starts=options["learning_starts"], batch_size=options["batch_size"],
    gamma=options["gamma"], tau=options["tau"], buffer_size=min(options["buffer_capacity"], steps), ent_coef="auto",
    policy_kwargs={"net_arch": list(options["hidden_sizes"])},
)  # fmt: skip
watch = EvalCallback(Monitor(gym.make(settings["env_id"])), n_eval_episodes=5, eval_freq=steps // 20, verbose=0)
began = time.process_time()
model.learn(steps, callback=watch)
cpu = time.process_time() - began
test = Monitor(gym.make(settings["env_id"]))
test.reset(seed=10_000 + seed)
returns, _ = evaluate_policy(model, test, episodes, deterministic=True, return_episode_rewards=True)
curve = [
    [int(step), sum(map(float, points)) / len(points)]
    for step, points in zip(watch.evaluations_timesteps, watch.evaluations_results)
]
print(
    json.dumps(
        {
            "seed": seed,
            "return_mean": sum(returns) / len(returns),
            "returns": returns,
            "steps": steps,
            "cpu_seconds": round(cpu, 1),
            "curve": curve,
            "stable_baselines3": stable_baselines3.__version__,
        }
    )
)
