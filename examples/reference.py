"""What the reference scripts share: their few flags, and the three lines they print."""

from __future__ import annotations

import argparse

from rl_training import TrainConfig, load_config
from rl_training.runtime.trainer import TrainResult


def config_from_flags(preset: str) -> TrainConfig:
    """A packaged preset, changed by --total-timesteps, --output-dir, --seed and --eval-episodes."""
    config = load_config(preset)
    parser = argparse.ArgumentParser(description=f"Train with {preset}.")
    parser.add_argument("--total-timesteps", type=int, default=config.total_timesteps, help="environment steps")
    parser.add_argument("--output-dir", default="runs", help="where the run directory is made")
    parser.add_argument("--seed", type=int, default=config.seed, help="seed of everything random")
    parser.add_argument("--eval-episodes", type=int, default=config.eval_episodes, help="episodes per evaluation")
    return config.replace(**vars(parser.parse_args()))


def report(result: TrainResult) -> None:
    print(f"run_dir={result.run_dir}")
    print(f"checkpoint_path={result.checkpoint_path}")
    print(f"metrics={result.metrics}")
