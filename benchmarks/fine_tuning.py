"""What starting from a trained agent is worth: runs that start from one beside runs that start from nothing, with the same budget.

python benchmarks/fine_tuning.py                       every row below, recorded in benchmarks/results/fine_tuning/
python benchmarks/fine_tuning.py iql_to_sac --no-record

Everything is made here, from nothing: agents are trained, data is collected from them with the package's own ``collect``, other agents
learn from the data, and new runs start from those (``init_from``). All of it takes about twenty minutes of one core.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from learning import EPISODES, facts_of_the_machine, summarise

RESULTS = Path(__file__).parent / "results" / "fine_tuning"
SEEDS = [1, 2, 3]
LANDER, PENDULUM = "LunarLander-v3", "InvertedDoublePendulum-v5"
WIND = {"enable_wind": True, "wind_power": 15.0, "turbulence_power": 1.5}


class Workshop:
    """Makes agents and data in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, algo: str, env_id: str, steps: int, seed: int, **given: Any) -> dict[str, Any]:
        """Train, then evaluate the last checkpoint on ``EPISODES`` episodes."""
        from rl_training.experiment.config import TrainConfig
        from rl_training.experiment.registry import get_algorithm_spec
        from rl_training.runtime.workflows import evaluate_checkpoint

        fields = {name: given.pop(name) for name in ("env_kwargs", "init_from", "num_envs") if name in given}
        config = TrainConfig(
            algo=algo, env_id=env_id, total_timesteps=steps, seed=seed, output_dir=self.folder, progress="off", threads=1,
            eval_episodes=5, loggers=(), algo_kwargs=given, **fields,
        )  # fmt: skip
        began = time.process_time()
        result = get_algorithm_spec(algo).train(config)
        spent = time.process_time() - began
        final = evaluate_checkpoint(result.checkpoint_path, EPISODES)
        lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        return {
            "seed": seed,
            "return_mean": final["eval_return_mean"],
            "return_std": final["eval_return_std"],
            "cpu_seconds": round(spent, 1),
            "curve": [[line["step"], line["eval_return_mean"]] for line in lines if "eval_return_mean" in line],
            "run_dir": str(result.run_dir),
            "config": {**config.plain(), "output_dir": "runs", "init_from": None},
        }

    @functools.cached_property
    def lander(self) -> dict[str, Any]:
        """An agent that lands."""
        return self.train("ppo", LANDER, 400_000, 11, num_envs=8, gamma=0.999, gae_lambda=0.98, ent_coef=0.01)

    @functools.cached_property
    def balancer(self) -> dict[str, Any]:
        """An agent that balances, not perfectly yet."""
        return self.train("sac", PENDULUM, 12_000, 11)

    def data(self, agent: dict[str, Any], **much: int) -> str:
        """What an agent does, drawing its actions, as a file."""
        from rl_training.data.dataset_files import write_npz
        from rl_training.runtime.experience import collect_from_checkpoint

        path = Path(agent["run_dir"]).with_suffix(".npz")
        if not path.exists():
            write_npz(path, collect_from_checkpoint(agent["run_dir"], seed=0, **much))
        return str(path)


class Made(NamedTuple):
    """A source for each seed, how it does in the new task, and what the runs beside each other are."""

    source: Callable[[int], dict[str, Any]]
    target: Callable[[int, str | None], dict[str, Any]]  # (seed, init_from) -> its run


def bc_to_ppo(shop: Workshop) -> Made:
    demonstrations = shop.data(shop.lander, episodes=20)
    data = {"dataset_kind": "npz", "dataset_path": demonstrations}
    rollouts = {"num_envs": 8, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01}
    return Made(
        lambda seed: shop.train("bc", LANDER, 5_000, seed, **data),
        lambda seed, start: shop.train("ppo", LANDER, 100_000, seed, init_from=start, **rollouts),
    )


def iql_to_sac(shop: Workshop) -> Made:
    data = {"dataset_kind": "npz", "dataset_path": shop.data(shop.balancer, steps=10_000)}
    return Made(
        lambda seed: shop.train("iql", PENDULUM, 5_000, seed, **data),
        lambda seed, start: shop.train("sac", PENDULUM, 5_000, seed, init_from=start),
    )


def moved(shop: Workshop) -> Made:
    rollouts = {"num_envs": 8, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01}
    windy = {"env_kwargs": WIND}
    return Made(
        lambda seed: shop.lander,
        lambda seed, start: shop.train("ppo", LANDER, 100_000, seed, init_from=start, **rollouts, **windy),
    )


ROWS = {
    "bc_to_ppo": (bc_to_ppo, "BC on 20 episodes of a PPO agent, then PPO, LunarLander-v3"),
    "iql_to_sac": (iql_to_sac, "IQL on 10,000 steps of a SAC agent, then SAC, InvertedDoublePendulum-v5"),
    "moved": (moved, "PPO from LunarLander-v3 without wind, then PPO with wind"),
}


def before(source: dict[str, Any], target: dict[str, Any]) -> float:
    """What the source does in the task of the target, before it learns there."""
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.evaluation import evaluate
    from rl_training.runtime.workflows import config_of, find_checkpoint

    _, state = find_checkpoint(source["run_dir"], buffers=False)
    config = config_of(state)
    agent = get_algorithm_spec(config.algo).load_fn(config, state)
    factory = EnvFactory(target["config"]["env_id"], target["config"]["env_kwargs"])
    return evaluate(agent, factory, episodes=EPISODES, seed=0)["eval_return_mean"]


def measure(name: str, shop: Workshop, seeds: list[int], folder: Path | None) -> None:
    make, what = ROWS[name]
    print(f"{name}: {what}", flush=True)
    made, sides = make(shop), {"nothing": [], "trained": []}
    for seed in seeds:
        source = made.source(seed)
        for side, start in (("nothing", None), ("trained", source["run_dir"])):
            run = made.target(seed, start)
            run["untouched"] = before(source, run) if start else None
            sides[side].append(run)
            shown = f" (the agent it starts from: {run['untouched']:.0f})" if start else ""
            print(f"  seed {seed} from {side}: {run['return_mean']:.0f} ± {run['return_std']:.0f}{shown}", flush=True)
    runs = {
        side: [{k: v for k, v in run.items() if k not in ("run_dir", "config")} for run in sides[side]]
        for side in sides
    }
    config = sides["nothing"][0]["config"]
    content = {
        "name": name, "what": what, "total_timesteps": config["total_timesteps"], "episodes": EPISODES,
        "judged": "evaluation of the last checkpoint", "seeds": seeds,
        **{side: {**summarise([run["return_mean"] for run in runs[side]]), "runs": runs[side]} for side in runs},
        "untouched": summarise([run["untouched"] for run in runs["trained"]]),
        "config": config, **facts_of_the_machine(),
    }  # fmt: skip
    for side in runs:
        one = content[side]
        print(f"  from {side}: {one['mean']:.0f} [{one['low']:.0f}, {one['high']:.0f}]", flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="such as iql_to_sac; none: all of them")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as scratch:
        shop = Workshop(Path(scratch))
        for name in args.rows or ROWS:
            measure(name, shop, args.seeds, None if args.no_record else RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
