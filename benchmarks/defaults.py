"""What bare defaults learn: `rl-training train --algo X --env Y` with nothing else set, on tasks that had no part in choosing them.

python benchmarks/defaults.py                        every row below, recorded in benchmarks/results/defaults/
python benchmarks/defaults.py sac/Hopper-v5 --keep FOLDER      one of them; the same command goes on where it was stopped

The defaults were chosen on CartPole-v1, Pendulum-v1, LunarLander-v3, HalfCheetah-v5 and Walker2d-v5, on seeds 1 to 3; docs/benchmarks.md
says how many settings were tried.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from learning import EPISODES, facts_of_the_machine, record, train_all

RESULTS = Path(__file__).parent / "results" / "defaults"
SEEDS = [101, 102, 103]


class Row(NamedTuple):
    steps: int
    asked: float | None = None  # mean over seeds; None: recorded without a bar
    options: dict[str, Any] = {}  # what is not bare about it
    episodes: int = EPISODES  # of the evaluation that judges a run
    own: int = 5  # of its own evaluations, which do not


VALUE_BASED = ("dqn", "qr_dqn", "iqn", "fqf")
ROWS = {
    **{f"{algo}/Acrobot-v1": Row(100_000, -100.0) for algo in ("ppo", "ppg")},
    **{f"{algo}/InvertedPendulum-v5": Row(100_000, 950.0) for algo in ("ppo", "ppg")},
    "ppo/Hopper-v5": Row(300_000, 1_700.0),
    "ppg/Hopper-v5": Row(300_000),
    **{f"{algo}/Acrobot-v1": Row(60_000, -90.0) for algo in VALUE_BASED},
    "mbpo/InvertedPendulum-v5": Row(3_000, 950.0, {"gradient_updates_per_step": 10}),
    "pets/InvertedPendulum-v5": Row(3_000, 950.0, episodes=2, own=2),  # every step is a plan: minutes an episode
    "sac/InvertedDoublePendulum-v5": Row(30_000, 8_000.0),
    "sac/Hopper-v5": Row(100_000, 1_500.0),
    "sac/MountainCarContinuous-v0": Row(30_000),
    "ppo/MountainCarContinuous-v0": Row(100_000),
    "ppo/BipedalWalker-v3": Row(300_000),
    "sac/BipedalWalker-v3": Row(100_000),
}


def check(name: str, *, seeds: list[int], jobs: int, keep: str | None) -> bool:
    from rl_training.experiment.config import TrainConfig

    algo, env_id = name.split("/")
    row = ROWS[name]
    options = {"algo_kwargs": row.options, "eval_episodes": row.own}
    config = TrainConfig(algo=algo, env_id=env_id, total_timesteps=row.steps, **options)
    facts = facts_of_the_machine()
    runs = train_all(name, config, seeds, jobs=jobs, threads=1, keep=keep, episodes=row.episodes)
    judged = {"episodes": row.episodes, "judged": "evaluation of the last checkpoint"}
    return record(RESULTS, name, config, runs, threshold=row.asked, at_most=None, **judged, **facts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="such as sac/Hopper-v5; none: all of them")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, on one thread each")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the runs there, and go on with those that are")
    args = parser.parse_args()
    results = [check(name, seeds=args.seeds, jobs=args.jobs, keep=args.keep) for name in args.rows or ROWS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
