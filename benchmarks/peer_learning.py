"""What a peer learns with our settings.

    python benchmarks/peer_learning.py sac/Hopper-v5 --seeds 101 102 103     after benchmarks/defaults.py sac/Hopper-v5
    python benchmarks/peer_learning.py iql/hopper-medium-replay              after benchmarks/datasets.py hopper-medium-replay
    python benchmarks/peer_learning.py gail/hopper-demos                     after benchmarks/datasets.py hopper-demos

Each after benchmarks/peers.sh NAME: Stable-Baselines3 (sb3) has SAC with the options that bare defaults choose for a task; d3rlpy has
TD3+BC, IQL and CQL with the defaults of ours, on the same file and for as many updates; imitation has GAIL with the options of the preset
gail/hopper, on the same demonstrations. If a peer ends where ours does, a difference to a published figure is in the recipe, not in the
update. All are judged alike: the last networks, twenty greedy episodes. Recorded in benchmarks/results/peers/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from defaults import ROWS, SEEDS
from learning import EPISODES, facts_of_the_machine, summarise

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("PEERS", HERE / ".venvs"))
DATA = Path("data")
UPDATES = 50_000  # as many as the campaign's rows make


class Work(NamedTuple):
    """Who learns what: the peer, the settings that its unit is given, the dataset's facts, and the seeds by default."""

    peer: str
    settings: dict[str, Any]
    data: dict[str, Any] | None = None
    seeds: tuple[int, ...] = (201,)


def online(row: str) -> Work:
    """The options that bare defaults choose for a task."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec

    algo, env_id = row.split("/")
    spec = get_algorithm_spec(algo)
    config = spec.complete(TrainConfig(algo=algo, env_id=env_id, total_timesteps=ROWS[row].steps))
    options = spec.options(config).model_dump(mode="json")
    settings = {"env_id": env_id, "total_timesteps": config.total_timesteps, "options": options}
    return Work("sb3", settings, seeds=tuple(SEEDS))


def facts_of_data(name: str) -> dict[str, Any]:
    from datasets import known_facts

    facts = known_facts(DATA, name)
    if facts is None:
        raise SystemExit(f"make {name} first: python benchmarks/datasets.py {name}")
    return facts


def offline(row: str, updates: int) -> Work:
    """Our defaults, with IQL's rewards scaled as in our row of the campaign, on a file of data."""
    from rl_training.data.dataset_files import read_npz
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec

    algo, name = row.split("/")
    facts, path = facts_of_data(name), DATA / f"{name}.npz"
    spec, factor = get_algorithm_spec(algo), 1.0
    given: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": str(path)}
    if algo == "iql":
        given["reward_scale"], returns = "returns", read_npz(path).finished_returns()
        factor = 1000 / float(returns.max() - returns.min())
    config = spec.complete(TrainConfig(algo=algo, env_id=facts["env_id"], total_timesteps=updates, algo_kwargs=given))
    options = spec.options(config).model_dump(mode="json")
    settings = {"algo": algo, "env_id": facts["env_id"], "updates": updates, "data": str(path), "options": options}
    return Work("d3rlpy", {**settings, "reward_factor": factor}, facts)


def imitated(row: str) -> Work:
    """The preset's options, on a file of demonstrations."""
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.yaml_config import read_config

    algo, name = row.split("/")
    facts, path = facts_of_data(name), DATA / f"{name}.npz"
    spec = get_algorithm_spec(algo)
    changes = {"env_id": facts["env_id"], "algo_kwargs.expert_dataset_path": str(path)}
    config = spec.complete(read_config("configs/gail/hopper.yaml", changes))
    options = spec.options(config).model_dump(mode="json")
    shared = {"env_id": config.env_id, "total_timesteps": config.total_timesteps, "num_envs": config.num_envs}
    return Work("imitation", {**shared, "data": str(path), "options": options}, facts)


def run(work: Work, seed: int) -> dict[str, Any]:
    """One run in the peer's own environment, with its normalised score where the data has one."""
    command = [PEERS / work.peer / "bin" / "python", HERE / "units" / f"{work.peer}_learning.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command), json.dumps(work.settings), str(seed), str(EPISODES)],
        check=True, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if work.data is not None:
        low, high = work.data["random_return"], work.data["expert_return"]
        result["score"] = 100 * (result["return_mean"] - low) / (high - low)
    print(f"  seed {seed}: {result['return_mean']:.1f} in {result['cpu_seconds']:.0f} s", flush=True)
    return result


def write(row: str, work: Work, runs: list[dict[str, Any]]) -> None:
    summary = summarise([run["return_mean"] for run in runs])
    facts = {} if work.data is None else {"data": work.data}
    content = {
        "peer": work.peer, "row": row, **summary, "settings": work.settings, **facts, **facts_of_the_machine(), "runs": runs,
    }  # fmt: skip
    folder = HERE / "results" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{work.peer}_{row.replace('/', '_')}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"  mean {summary['mean']:.1f}, IQM {summary['iqm']:.1f} [{summary['low']:.1f}, {summary['high']:.1f}]")


def main() -> int:
    on_data = [
        f"{algo}/{name}" for name in ("hopper-medium-replay", "hopper-medium") for algo in ("td3_bc", "iql", "cql")
    ]
    shown = [f"gail/{task}-demos" for task in ("hopper", "walker2d", "halfcheetah")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[*(name for name in ROWS if name.startswith("sac/")), *on_data, *shown])
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 101 102 103 for sac, one (201) for the others")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of td3_bc, iql and cql (default: 50,000)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, on one thread each")
    args = parser.parse_args()
    if args.row in on_data:
        work = offline(args.row, args.updates)
    else:
        work = imitated(args.row) if args.row in shown else online(args.row)
    seeds = args.seeds or list(work.seeds)
    print(f"{work.peer} {args.row}: seeds {seeds}", flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = list(pool.map(lambda seed: run(work, seed), seeds))
    write(args.row, work, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
