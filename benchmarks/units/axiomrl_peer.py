"""AxiomRL on a unit of the value-based family or GAIL, its evaluations switched off: python axiomrl_peer.py fqf_cartpole"""

import contextlib
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
from axiomrl.experiment.config import TrainConfig
from meter import THREADS, Meter

unit = sys.argv[1]
torch.set_num_threads(THREADS)
gail = unit == "gail_cartpole"
meter = Meter(3 * 1024 if gail else 1500)


class Over(Exception):
    pass


class Timing:
    def on_train_start(self, trainer):
        pass

    def on_collect_end(self, trainer, result):
        if not meter.tick(trainer.global_step):
            raise Over

    def on_update_end(self, trainer, result):
        pass

    def on_eval_end(self, trainer, metrics):
        pass

    def on_train_end(self, trainer, result):
        pass


if gail:
    algo, module = "gail", "gail_trainer"
    options = {
        "num_steps": 128, "update_epochs": 4, "minibatch_size": 256, "hidden_sizes": (64, 64), "discriminator_updates": 4,
        "discriminator_batch_size": 256, "discriminator_hidden_sizes": (64, 64), "expert_dataset_size": 2_000,
        "eval_interval": 10**9,
    }  # fmt: skip
else:
    algo, quantiles = {"qrdqn_cartpole": ("qr_dqn", 50), "iqn_cartpole": ("iqn", 8), "fqf_cartpole": ("fqf", 32)}[unit]
    module = "dqn_trainer"
    options = {
        "batch_size": 128, "learning_starts": 1000, "train_frequency": 1, "target_update_interval": 500,
        "hidden_sizes": (64, 64), "num_quantiles": quantiles, "eval_interval": 10**9,
    }  # fmt: skip
trainer = import_module(f"axiomrl.runtime.{module}")
for name in dir(trainer):
    if name.startswith("_evaluate"):
        setattr(trainer, name, lambda *args, **kwargs: {"eval_return_mean": 0.0})
if hasattr(trainer, "should_run_evaluation"):
    trainer.should_run_evaluation = lambda *args, **kwargs: False
config = TrainConfig(
    algo=algo, env_id="CartPole-v1", seed=0, total_timesteps=10**8, output_dir=Path(tempfile.mkdtemp()), num_envs=8 if gail else 1,
    eval_episodes=1, device="cpu", log_interval=10**9, checkpoint_interval=10**9, algo_kwargs=options,
)  # fmt: skip
with contextlib.suppress(Over):
    train = getattr(trainer, f"train_{algo}", None) or trainer.train_dqn
    train(config, callbacks=[Timing()])
meter.report(unit, "axiomrl")
