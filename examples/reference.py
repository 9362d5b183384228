"""What the reference scripts share: their few flags, and the three lines they print."""

from __future__ import annotations

import argparse

from rl_training import TrainConfig, load_config
from rl_training.experiment.yaml_config import parse_override, read_config
from rl_training.runtime.trainer import TrainResult


def config_from_flags(preset: str) -> TrainConfig:
    """A packaged preset, changed by --total-timesteps, --output-dir, --seed, --eval-episodes and --set."""
    config = load_config(preset)
    parser = argparse.ArgumentParser(description=f"Train with {preset}.")
    parser.add_argument("--total-timesteps", type=int, default=config.total_timesteps, help="environment steps")
    parser.add_argument("--output-dir", default="runs", help="where the run directory is made")
    parser.add_argument("--seed", type=int, default=config.seed, help="seed of everything random")
    parser.add_argument("--eval-episodes", type=int, default=config.eval_episodes, help="episodes per evaluation")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other option")
    flags = vars(parser.parse_args())
    return read_config(preset, dict(map(parse_override, flags.pop("set")))).replace(**flags)


def report(result: TrainResult) -> None:
    print(f"run_dir={result.run_dir}")
    print(f"checkpoint_path={result.checkpoint_path}")
    print(f"metrics={result.metrics}")
