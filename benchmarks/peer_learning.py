"""What a peer learns with our settings: Stable-Baselines3's SAC with the options that bare defaults choose for a task.

    python benchmarks/peer_learning.py sac/Hopper-v5      after benchmarks/peers.sh sb3 and benchmarks/defaults.py sac/Hopper-v5

If it ends where ours does, a difference to a published figure is in the recipe, not in the update. Both are judged alike: the last
policy, twenty greedy episodes, seeds 101 to 103. Recorded in benchmarks/results/peers/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from defaults import ROWS, SEEDS
from learning import EPISODES, facts_of_the_machine, summarise

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("PEERS", HERE / ".venvs"))


def main() -> int:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[name for name in ROWS if name.startswith("sac/")])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, on one thread each")
    args = parser.parse_args()
    algo, env_id = args.row.split("/")
    spec = get_algorithm_spec(algo)
    config = spec.complete(TrainConfig(algo=algo, env_id=env_id, total_timesteps=ROWS[args.row].steps))
    options = spec.options(config).model_dump(mode="json")
    settings = {"env_id": env_id, "total_timesteps": config.total_timesteps, "options": options}

    def run(seed: int) -> dict:
        command = [PEERS / "sb3" / "bin" / "python", HERE / "units" / "sb3_learning.py"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*map(str, command), json.dumps(settings), str(seed), str(EPISODES)],
            check=True, capture_output=True, text=True, env=environment,
        )  # fmt: skip
        result = json.loads(done.stdout.splitlines()[-1])
        print(f"  seed {seed}: {result['return_mean']:.1f} in {result['cpu_seconds']:.0f} s", flush=True)
        return result

    print(f"sb3 {args.row}: seeds {args.seeds}", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(run, args.seeds))
    summary = summarise([run["return_mean"] for run in runs])
    content = {"peer": "sb3", "row": args.row, **summary, "settings": settings, **facts_of_the_machine(), "runs": runs}
    folder = HERE / "results" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"sb3_{args.row.replace('/', '_')}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"  mean {summary['mean']:.1f}, IQM {summary['iqm']:.1f} [{summary['low']:.1f}, {summary['high']:.1f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
