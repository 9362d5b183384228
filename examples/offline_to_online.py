"""The whole way: train an expert, record its experience, learn from that alone, then go on online from it.

Each part is a few minutes on a laptop; ``--scale 0.1`` shortens all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rl_training import RLPD, SAC, TD3BC
from rl_training.artifacts.collection import add_references, export_replay
from rl_training.data.dataset_files import write_npz

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", default="runs", help="where run directories and the dataset go")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the length of every part")
    flags = parser.parse_args()

    def steps(count: int) -> int:
        return max(300, int(count * flags.scale))

    common = {"seed": 1, "output_dir": flags.output_dir, "eval_episodes": 10}
    expert = SAC("Pendulum-v1", total_timesteps=steps(8_000), learning_rate=1e-3, **common)
    expert.learn()
    expert_return = expert.evaluate()["eval_return_mean"]

    data = export_replay(expert.checkpoint_path)  # all of its experience, from its first clumsy steps on
    add_references(data, expert.config, seed=0, expert=expert_return)
    path = Path(flags.output_dir) / "pendulum-replay.npz"
    write_npz(path, data)
    prior = {"dataset_kind": "npz", "dataset_path": str(path)}

    offline = TD3BC("Pendulum-v1", total_timesteps=steps(10_000), **prior, **common)
    offline.learn()
    online = RLPD(
        "Pendulum-v1",
        total_timesteps=steps(1_500),
        learning_starts=200,
        initial_random_steps=200,
        gradient_updates_per_step=8,
        hidden_sizes=[128, 128],
        **prior,
        **common,
    )
    online.learn()
    print(f"expert {expert_return:.0f}, after {expert.config.total_timesteps:,} steps")
    print(f"offline {offline.evaluate()['eval_return_mean']:.0f}, from its replay buffer alone")
    print(f"online {online.evaluate()['eval_return_mean']:.0f}, after {online.config.total_timesteps:,} steps with it")
