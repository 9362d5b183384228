"""What starting from a trained agent is worth: runs that start from one beside runs that start from nothing, with the same budget.

python benchmarks/fine_tuning.py                       every row below, recorded in benchmarks/results/fine_tuning/
python benchmarks/fine_tuning.py iql_to_sac --no-record

Everything is made here, from nothing: agents are trained, data is collected from them with the package's own ``collect``, other agents
learn from the data, and new runs start from those (``init_from``). All of it takes about five minutes of one core.
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
NARROW = {"hidden_sizes": [64, 64]}  # of actors and critics: enough for these tasks, and cheaper
ROLLOUTS = {"num_envs": 8}
MASS = 2.0  # of the second link that is moved to; Acrobot-v1's is 1
LENGTH = 5.0  # of the pole that is moved to; CartPole-v1's is 0.5


def long_pole() -> Any:
    """CartPole-v1 with a longer pole."""
    import gymnasium as gym

    env: Any = gym.make("CartPole-v1")
    cart = env.unwrapped
    cart.length, cart.polemass_length = LENGTH, cart.masspole * LENGTH
    return env


def heavy_arm() -> Any:
    """Acrobot-v1 with a heavier second link."""
    import gymnasium as gym

    env: Any = gym.make("Acrobot-v1")
    env.unwrapped.LINK_MASS_2 = MASS
    return env


def judged(path: str | Path, env: Any) -> dict[str, float]:
    """What an agent does in a task, on ``EPISODES`` episodes."""
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.evaluation import evaluate
    from rl_training.runtime.workflows import config_of, find_checkpoint

    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state, env=env)
    agent, _ = get_algorithm_spec(config.algo).load(config, state, "cpu", env=env)
    factory = EnvFactory(config.env_id if env is None else env, config.env_kwargs)
    return evaluate(agent, factory, episodes=EPISODES, seed=0)


class Workshop:
    """Makes agents and data in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, algo: str, env_id: str, steps: int, seed: int, env: Any = None, **given: Any) -> dict[str, Any]:
        """Train, then evaluate the last checkpoint on ``EPISODES`` episodes; also the agent that it started from."""
        from rl_training.experiment.config import TrainConfig
        from rl_training.experiment.registry import get_algorithm_spec

        fields = {name: given.pop(name) for name in ("init_from", "init_parts", "num_envs") if name in given}
        config = TrainConfig(
            algo=algo, env_id=env_id, total_timesteps=steps, seed=seed, output_dir=self.folder, progress="off", threads=1,
            eval_episodes=3, loggers=(), algo_kwargs={"eval_interval": steps // 4, **given}, **fields,
        )  # fmt: skip
        began = time.process_time()
        result = get_algorithm_spec(algo).train(config, env=env)
        spent = time.process_time() - began
        final = judged(result.checkpoint_path, env)
        lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        return {
            "seed": seed,
            "return_mean": final["eval_return_mean"],
            "return_std": final["eval_return_std"],
            "cpu_seconds": round(spent, 1),
            "curve": [[line["step"], line["eval_return_mean"]] for line in lines if "eval_return_mean" in line],
            "untouched": None if config.init_from is None else judged(config.init_from, env)["eval_return_mean"],
            "run_dir": str(result.run_dir),
            "config": {**config.plain(), "output_dir": "runs", "init_from": None},
        }

    @functools.cached_property
    def swinger(self) -> dict[str, Any]:
        """An agent that swings up."""
        return self.train("ppo", "Acrobot-v1", 60_000, 11, **ROLLOUTS)

    @functools.cached_property
    def balancer(self) -> dict[str, Any]:
        """An agent that balances two poles, for part of an episode."""
        return self.train("sac", "InvertedDoublePendulum-v5", 10_000, 11, **NARROW)

    @functools.cached_property
    def carter(self) -> dict[str, Any]:
        """An agent that balances a pole of the usual length."""
        return self.train("ppo", "CartPole-v1", 60_000, 11, **ROLLOUTS)

    def data(self, agent: dict[str, Any], **much: Any) -> str:
        """What an agent does, as a file; its actions are drawn unless ``deterministic``."""
        from rl_training.data.dataset_files import write_npz
        from rl_training.runtime.experience import collect_from_checkpoint

        path = Path(agent["run_dir"] + "".join(f"_{name}{value}" for name, value in much.items()) + ".npz")
        if not path.exists():
            write_npz(path, collect_from_checkpoint(agent["run_dir"], seed=0, **much))
        return str(path)


class Made(NamedTuple):
    """A source for each seed, how it does in the new task, and what the runs beside each other are."""

    source: Callable[[int], dict[str, Any]]
    target: Callable[[int, str | None], dict[str, Any]]  # (seed, init_from) -> its run


def bc_to_ppo(shop: Workshop) -> Made:
    data = {"dataset_kind": "npz", "dataset_path": shop.data(shop.swinger, episodes=10)}
    return Made(
        lambda seed: shop.train("bc", "Acrobot-v1", 2_000, seed, **data, **NARROW),
        lambda seed, start: shop.train("ppo", "Acrobot-v1", 16_384, seed, init_from=start, **ROLLOUTS),
    )


def iql_to_sac(shop: Workshop, **how: bool) -> Made:
    task, data = (
        "InvertedDoublePendulum-v5",
        {"dataset_kind": "npz", "dataset_path": shop.data(shop.balancer, steps=10_000, **how)},
    )
    return Made(
        lambda seed: shop.train("iql", task, 3_000, seed, **data, **NARROW),
        lambda seed, start: shop.train("sac", task, 4_000, seed, init_from=start, **NARROW),
    )


def iql_to_rlpd(shop: Workshop, **parts: Any) -> Made:
    """Both sides have the data, and critics of the form that IQL has; one starts from IQL's agent too."""
    task = "InvertedDoublePendulum-v5"
    data = {"dataset_kind": "npz", "dataset_path": shop.data(shop.balancer, steps=10_000)}
    form = {"num_critics": 2, "layer_norm": False, "gradient_updates_per_step": 4, **NARROW}
    return Made(
        lambda seed: shop.train("iql", task, 10_000, seed, **data, **NARROW),
        lambda seed, start: shop.train(
            "rlpd", task, 3_000, seed, init_from=start, **(parts if start else {}), **data, **form
        ),
    )


def iql_to_rlpd_frozen(shop: Workshop) -> Made:
    """Both sides have the data, RLPD's own critics with normalised layers (here two of them), and as many updates before the first
    step; one starts from IQL's policy, which does not move until new critics know its values. (At 3,000 steps both have solved the task; recorded with --seeds 4 5 6.)"""
    task = "InvertedDoublePendulum-v5"
    data = {"dataset_kind": "npz", "dataset_path": shop.data(shop.balancer, steps=10_000)}
    form = {"num_critics": 2, "gradient_updates_per_step": 4, "offline_pretrain_updates": 3_000, **NARROW}
    known = {"init_parts": ("actor",), "frozen_actor_updates": 3_500}
    return Made(
        lambda seed: shop.train("iql", task, 10_000, seed, **data, **NARROW),
        lambda seed, start: shop.train(
            "rlpd", task, 2_000, seed, init_from=start, **(known if start else {}), **data, **form
        ),
    )


def moved_acrobot(shop: Workshop) -> Made:
    return Made(
        lambda seed: shop.swinger,
        lambda seed, start: shop.train("ppo", "Acrobot-v1", 16_384, seed, init_from=start, env=heavy_arm, **ROLLOUTS),
    )


def moved_cartpole(shop: Workshop) -> Made:
    return Made(
        lambda seed: shop.carter,
        lambda seed, start: shop.train("ppo", "CartPole-v1", 4_096, seed, init_from=start, env=long_pole, **ROLLOUTS),
    )


ROWS = {
    "bc_to_ppo": (bc_to_ppo, "BC on 10 episodes of a PPO agent, then PPO, Acrobot-v1"),
    "iql_to_sac": (iql_to_sac, "IQL on 10,000 steps of a SAC agent, then SAC, InvertedDoublePendulum-v5"),
    "iql_to_sac_best": (
        functools.partial(iql_to_sac, deterministic=True),
        "IQL on 10,000 steps of a SAC agent's best actions, then SAC, InvertedDoublePendulum-v5",
    ),
    "iql_to_rlpd": (
        iql_to_rlpd,
        "IQL on 10,000 steps of a SAC agent, then RLPD with the same data, InvertedDoublePendulum-v5",
    ),
    "iql_to_rlpd_actor": (
        functools.partial(iql_to_rlpd, init_parts=("actor",)),
        "the same with IQL's policy alone (`init_parts: [actor]`)",
    ),
    "iql_to_rlpd_frozen": (
        iql_to_rlpd_frozen,
        "IQL's policy, not moved until RLPD's own critics know its values (`frozen_actor_updates`), then RLPD with the same data, "
        "InvertedDoublePendulum-v5",
    ),
    "moved_acrobot": (moved_acrobot, f"PPO on Acrobot-v1, then PPO with a second link of mass {MASS:g} instead of 1"),
    "moved_cartpole": (moved_cartpole, f"PPO on CartPole-v1, then PPO with a pole of length {LENGTH:g} instead of 0.5"),
}


def measure(name: str, shop: Workshop, seeds: list[int], folder: Path | None) -> None:
    make, what = ROWS[name]
    print(f"{name}: {what}", flush=True)
    made, sides = make(shop), {"nothing": [], "trained": []}
    for seed in seeds:
        source = made.source(seed)
        for side, start in (("nothing", None), ("trained", source["run_dir"])):
            run = made.target(seed, start)
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
