"""rl_training on one unit of work: python ours.py UNIT [eager]; ppo_alone is what ppg_cartpole is compared with"""

import sys
import tempfile

from meter import THREADS, UNITS
from timing import Timing

from rl_training import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec

unit = sys.argv[1]
compiled = sys.argv[2:] != ["eager"]
ON_POLICY = {  # beside PPO's own: (algorithm, its options)
    "ppo_alone": ("ppo", {}),
    "ppg_cartpole": ("ppg", {"architecture": "dual", "aux_epochs": 0}),
    "gail_cartpole": ("gail", {"discriminator_updates": 4, "discriminator_batch_size": 256}),
}
VALUE_BASED = {  # double only where the peers' is
    "dqn_cartpole": ("dqn", {"double": False}),
    "qrdqn_cartpole": ("qr_dqn", {"num_quantiles": 50, "double": False}),
    "iqn_cartpole": ("iqn", {"num_quantiles": 8, "action_samples": 32, "hidden_sizes": [64, 64, 64], "double": True}),
    "fqf_cartpole": ("fqf", {"num_quantiles": 32, "double": False, "train_at_fractions": False}),
}


if unit in ON_POLICY or unit in UNITS:
    env, num_envs, steps, minibatch, epochs = UNITS.get(unit, UNITS["ppo_cartpole"])
    algo, own = ON_POLICY.get(unit, ("ppo", {}))
    warm = num_envs * steps * 3
    options = {"num_steps": steps, "minibatch_size": minibatch, "update_epochs": epochs, **own}
elif unit in VALUE_BASED:
    algo, own = VALUE_BASED[unit]
    env, num_envs, warm = "CartPole-v1", 1, 1500
    options = {
        "buffer_capacity": 50_000,
        "learning_starts": 1000,
        "batch_size": 128,
        "target_update_interval": 500,
        "train_frequency": 1,
        "hidden_sizes": [64, 64],
        **own,
    }
else:
    algo, env, num_envs, warm = "sac", "Pendulum-v1" if unit == "sac_pendulum" else "HalfCheetah-v5", 1, 450
    options = {"buffer_capacity": 200_000, "learning_starts": 300, "initial_random_steps": 300, "batch_size": 256}

with tempfile.TemporaryDirectory() as folder:
    config = TrainConfig(
        algo=algo, env_id=env, num_envs=num_envs, total_timesteps=10**9, output_dir=folder, eval_episodes=1, compile=compiled,
        threads=THREADS, progress="off", log_interval=10_000, checkpoint_interval=10**9, algo_kwargs={**options, "eval_interval": 0},
    )  # fmt: skip
    timing = Timing(warm)
    get_algorithm_spec(algo).train(config, callbacks=[timing])
timing.meter.report(unit, "rl_training" if compiled else "rl_training (eager)")
