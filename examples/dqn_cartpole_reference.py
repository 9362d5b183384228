"""DQN from a packaged preset: train, then look at what came out. Run with --help for the few things one changes."""

from __future__ import annotations

import argparse

from rl_training import DQN, load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, help="environment steps (default: the preset's)")
    parser.add_argument("--output-dir", default="runs", help="where the run directory is made")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything random")
    parser.add_argument("--eval-episodes", type=int, default=5, help="episodes per evaluation")
    args = parser.parse_args()

    preset = load_config("configs/dqn/cartpole.yaml")
    config = preset.replace(
        seed=args.seed,
        output_dir=args.output_dir,
        eval_episodes=args.eval_episodes,
        total_timesteps=args.total_timesteps or preset.total_timesteps,
    )
    result = DQN(config).learn()

    print(f"run_dir={result.run_dir}")
    print(f"checkpoint_path={result.checkpoint_path}")
    print(f"metrics={result.metrics}")


if __name__ == "__main__":
    main()
