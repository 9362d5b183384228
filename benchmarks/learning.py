"""Learning results: trains packaged presets over several seeds and records the last checkpoint's returns, raw.

python benchmarks/learning.py                     every check below, recorded in benchmarks/results/learning/
python benchmarks/learning.py sac/pendulum --seeds 4 5 6 --set algo_kwargs.learning_rate=1e-3 --no-record
python benchmarks/learning.py mbpo/hopper --keep runs/learning   long ones: the same command goes on where it was stopped
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

RESULTS = Path(__file__).parent / "results" / "learning"
# A preset that was tuned must be judged on seeds that had no part in it. dqn/cartpole was chosen on seeds 2, 22, 35 and 41, where
# earlier choices had failed: those had been rejected on 11 to 14 (443), 21 to 25 (381), 31 to 35 (488) and 41 to 42 (321).
UNSEEN = {
    "dqn/cartpole": [51, 52, 53, 54, 55],
    # the quantile family's were chosen on seeds 1 to 4, on CartPole
    **{f"{algo}/{env}": [11, 12, 13] for algo in ("qr_dqn", "iqn", "fqf") for env in ("cartpole", "lunarlander")},
    "qr_dqn/lunarlander": [21, 22, 23],  # an earlier choice had been looked at on 11
    # with a buffer of all steps, some seed always hovered: 47 on 32, -22 on 43 and on 52; chosen on 52
    "iqn/lunarlander": [61, 62, 63],
    "fqf/cartpole": [21, 22, 23],  # eight fractions had 500, 500 and 446 on 11 to 13
    "cql/hopper_medium_replay": [11, 12, 13],  # looked at on 1; with the actor at 1e-4, 4,000 updates came to 43 there
    "gail/hopper": [21, 22, 23],  # looked at on 11
    "mbpo/pendulum": [21, 22, 23],  # ten updates a step had -377, -163 and -160 on 11 to 13
    # looked at on 1 for 16,000 steps: 1044 at 12,000, where a target entropy of -1 had 457; gamma 0.99, an entropy of -1, ten updates
    # a step and a rate of 1e-3 had come to 630 on 31 to 33
    "mbpo/hopper": [41, 42, 43],
    # with a discount of 0.997 and steps that stayed large: 450 on 11 to 13 once, 311 and 189 on two of them later; 30,000 steps that
    # became smaller were at 180 to 300 after 15,000 on 21 to 23
    "dreamer/cartpole_hidden": [31, 32, 33],
    "dreamer/catch": [21, 22, 23],  # looked at on 1; steps that stayed large ended at 1, 0.6 and 1 on 11 to 13
    # looked at on 1, with the settings of cartpole_hidden: -148 with velocities and -150 without, the only ones tried
    "dreamer/pendulum": [11, 12, 13],
    "dreamer/pendulum_hidden": [11, 12, 13],
    "dreamer/boxing_atari": [1],  # one whole run, an hour and more; earlier settings had been given up there
    # a discount of 0.98 and a lambda of 0.9 came to 258, 500 and 500 on 201 to 203; these to 500 on 1 to 5, where they were chosen
    "ppo/cartpole_hidden_recurrent": [211, 212, 213, 214, 215],
    # rollouts of 512 steps came to -231, -312 and -167 on 201 to 203; of 1,024 to -157, -201 and -185 on 1 to 3
    "ppo/pendulum_hidden_recurrent": [211, 212, 213, 214, 215],
    "iqn/cartpole": [21, 22, 23],  # eight fractions had been rejected on 11 and 12 (500 and 463)
}
EPISODES = 20  # of the last checkpoint, never the best
CHECKS = {  # preset: the mean over seeds that a correct build reaches
    "ppo/cartpole_hidden_recurrent": 490.0,
    "ppo/pendulum_hidden_recurrent": -218.0,  # published for sb3-contrib's
    "ppo/cartpole": 490.0,
    "ppo/lunarlander": 220.0,
    "dqn/cartpole": 490.0,
    "qr_dqn/cartpole": 490.0,
    "iqn/cartpole": 490.0,
    "fqf/cartpole": 490.0,
    "qr_dqn/lunarlander": 180.0,
    "iqn/lunarlander": 180.0,
    "fqf/lunarlander": 180.0,
    "sac/pendulum": -180.0,
    "sac/halfcheetah": 3000.0,
    # prior data: benchmarks/datasets.py makes it
    "rlpd/pendulum_replay": -180.0,
    "rlpd/mountaincar_demos": 90.0,
    # the mean return of the earlier file of this name, a beginner's replay, which the records are of
    **{f"{algo}/hopper_medium_replay": 264.0 for algo in ("td3_bc", "iql", "cql")},
    # models
    "pets/pendulum": -200.0,
    "mbpo/pendulum": -180.0,
    "mbpo/hopper": 1000.0,
    "mopo/pendulum": -300.0,
    # on top of PPO
    "ppg/cartpole": 490.0,
    "ppg/lunarlander": 220.0,
    "gail/mountaincar": -130.0,
    "gail/hopper": 2116.0,  # seven tenths of its expert's 3023
    # a world model
    "dreamer/cartpole_hidden": 400.0,
    "dreamer/catch": 0.9,
    "dreamer/pendulum": -250.0,
    "dreamer/pendulum_hidden": -250.0,
    "dreamer/boxing_atari": 5.0,
}
AT_MOST = {"gail/cartpole": 100.0}  # an imitator of a random policy has not learned to balance
TRAINING_EPISODES = {
    "pets/pendulum": 5
}  # judged by its last episodes of training instead: every step of another is a plan
DRAWN = {"dreamer/boxing_atari"}  # judged with actions drawn, as its paper's agents are evaluated
SURVIVAL = {"algo_kwargs.reward_type": "softplus", "algo_kwargs.absorbing": False}
YARDSTICKS = {  # what others make of the same steps or data: (preset, overrides); nothing is asked of them
    "sac/pendulum_1500": ("sac/pendulum", {"total_timesteps": 1_500}),
    "sac/hopper_30k": ("sac/halfcheetah", {"env_id": "Hopper-v5", "total_timesteps": 30_000}),
    "bc/pendulum": ("bc/pendulum", {}),
    "bc/hopper_medium_replay": ("bc/hopper_medium_replay", {}),
    "gail/mountaincar_softplus": ("gail/mountaincar", SURVIVAL),
    "gail/cartpole_softplus": ("gail/cartpole", SURVIVAL),
    "ppo/cartpole_hidden": ("ppo/cartpole", {"env_kwargs.wrappers.keep": [0, 2]}),  # without velocities, nor a memory
    "sac/mountaincar": ("sac/pendulum", {"env_id": "MountainCarContinuous-v0", "total_timesteps": 10_000}),
}


def train_one(
    config: TrainConfig, keep: Path | None, last: int | None = None, drawn: bool = False, episodes: int = EPISODES
) -> dict[str, Any]:
    """One seed: train, or go on with what was kept, then evaluate the last checkpoint on ``episodes`` of its own.

    ``last``: judge by that many of the last episodes of training instead. ``drawn``: evaluate with actions drawn.
    """
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    from rl_training.base.trust import modules_named, trust_modules
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.yaml_config import read_config
    from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

    trust_modules(modules_named(config.env_id, config.env_kwargs))  # the options are ours; files of the run repeat them
    with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        spec = get_algorithm_spec(config.algo)
        config = spec.complete(config.replace(output_dir=folder, progress="off"))
        begun = next(Path(folder).glob("*/config.yaml"), None)
        if begun and read_config(begun) != config:
            raise RuntimeError(f"{begun.parent} was begun with other options; keep these runs elsewhere")
        spent = Path(folder, "spent.json")
        wall, cpu = json.loads(spent.read_text()) if spent.exists() else (0.0, 0.0)
        wall, cpu = wall - time.perf_counter(), cpu - time.process_time()
        result = resume_training(begun.parent) if begun else spec.train(config)
        wall, cpu = wall + time.perf_counter(), cpu + time.process_time()
        spent.write_text(json.dumps([wall, cpu]))
        if result.metrics["global_step"] < config.total_timesteps:
            raise RuntimeError(f"seed {config.seed} was stopped; the same command goes on with it")
        if last:
            final = last_episodes(result.checkpoint_path, last)
        elif config.eval_episodes == episodes and not drawn:
            final = result.metrics  # the run ends with the same evaluation: the same seeds, the same agent
        else:
            final = evaluate_checkpoint(result.checkpoint_path, episodes, deterministic=not drawn)
        curve = evaluations(result.run_dir)
        metadata = json.loads((result.run_dir / "metadata.json").read_text())
    return {
        "seed": config.seed,
        "return_mean": final["eval_return_mean"],
        "return_std": final["eval_return_std"],
        "return_min": final["eval_return_min"],
        **({"success_rate": final["eval_success_rate"]} if "eval_success_rate" in final else {}),
        "steps": result.metrics["global_step"],
        "gradient_steps": result.metrics["gradient_steps"],
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "engine": metadata["engine"],
        "git": metadata["git"],
        "curve": curve,
    }


def evaluations(run_dir: Path) -> list[list[float]]:
    """The steps of a run's evaluations and their mean returns."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    # a run that was gone on with after its end has evaluated that twice
    curve = {line["step"]: line["eval_return_mean"] for line in lines if "eval_return_mean" in line}
    return [list(point) for point in curve.items()]


def train_all(
    name: str, config: TrainConfig, seeds: list[int], *, jobs: int, threads: int, keep: str | None, **judged: Any
) -> list[dict[str, Any]]:
    """One run for each seed, ``jobs`` at a time; with ``keep``, in that folder, where the same call goes on with them."""
    print(f"{name}: seeds {seeds}", flush=True)
    runs = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        configs = [config.replace(seed=seed, threads=threads) for seed in seeds]
        folders = [Path(keep, name.replace("/", "_"), str(seed)) if keep else None for seed in seeds]
        for future in [pool.submit(train_one, *pair, **judged) for pair in zip(configs, folders)]:
            runs.append(future.result())
            last = runs[-1]
            print(
                f"  seed {last['seed']}: {last['return_mean']:.1f} ± {last['return_std']:.1f} in {last['seconds']:.0f} s",
                flush=True,
            )
    return runs


def record(folder: Path, name: str, config: TrainConfig, runs: list[dict[str, Any]], **facts: Any) -> bool:
    """Compare the mean over seeds with what is asked (``threshold``, ``at_most``), say so, and write the record.

    ``figure``: which number of a run that is (default: ``return_mean``).
    """
    summary = summarise([run[facts.get("figure", "return_mean")] for run in runs])
    threshold, ceiling = facts["threshold"], facts["at_most"]
    passed = (threshold is None or summary["mean"] >= threshold) and (ceiling is None or summary["mean"] <= ceiling)
    asked = f"at most {ceiling}" if ceiling is not None else threshold
    verdict = "" if asked is None else f"; asked {asked}: {'passed' if passed else 'NOT PASSED'}"
    print(
        f"  mean {summary['mean']:.4g}, IQM {summary['iqm']:.4g} [{summary['low']:.4g}, {summary['high']:.4g}]{verdict}",
        flush=True,
    )
    content = {
        "preset": name, "algo": config.algo, "env_id": config.env_id, "total_timesteps": config.total_timesteps,
        "passed": passed, **summary, "config": {**config.plain(), "output_dir": "runs"}, **facts, "runs": runs,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name.replace('/', '_')}.json").write_text(json.dumps(content, indent=1) + "\n")
    return passed


def facts_of_the_machine() -> dict[str, Any]:
    """Commit, versions and processor, without the command line, which differs from record to record."""
    from rl_training.experiment.runs import provenance

    return {name: fact for name, fact in provenance().items() if name != "command"}


def last_episodes(checkpoint: Path, count: int) -> dict[str, float]:
    """The last episodes of training, which the checkpoint remembers, as an evaluation would report them."""
    from rl_training.experiment.checkpointing import load_checkpoint

    returns = [value for value, _ in load_checkpoint(checkpoint).buffer_state["collector"]["recent"]][-count:]
    return {
        "eval_return_mean": statistics.fmean(returns),
        "eval_return_std": statistics.pstdev(returns),
        "eval_return_min": min(returns),
    }


def summarise(returns: list[float]) -> dict[str, float]:
    """Mean and interquartile mean over seeds, with a 95 % bootstrap interval of the latter, within what was seen."""
    from rl_training.analysis.statistics import iqm, stratified_bootstrap

    value, low, high = stratified_bootstrap(iqm, returns)
    bounds = (value, value) if low is None else (low, high)
    return {"mean": statistics.fmean(returns), "iqm": float(value), "low": float(bounds[0]), "high": float(bounds[1])}


def check(
    name: str,
    seeds: list[int],
    overrides: dict[str, Any],
    jobs: int,
    threads: int,
    folder: Path,
    keep: str | None = None,
) -> bool:
    from rl_training.experiment.yaml_config import read_config

    preset, given = YARDSTICKS.get(name, (name, {}))
    config = read_config(f"configs/{preset}.yaml", {**given, **overrides})
    facts, last, drawn = facts_of_the_machine(), TRAINING_EPISODES.get(name), name in DRAWN
    runs = train_all(name, config, seeds, jobs=jobs, threads=threads, keep=keep, last=last, drawn=drawn)
    judged = "the last episodes of training" if last else "evaluation of the last checkpoint"
    judged += ", actions drawn" if drawn else ""
    asked = {
        "threshold": CHECKS.get(name),
        "at_most": AT_MOST.get(name),
        "episodes": last or EPISODES,
        "judged": judged,
    }
    return record(folder, name, config, runs, **asked, **facts)


def main() -> int:
    from rl_training.experiment.yaml_config import parse_override

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help="such as ppo/cartpole; none: every check")
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="one run each (default: 1 2 3, or seeds that a preset was not tuned on)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each run")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override an option")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the runs there, and go on with those that are")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    overrides = dict(parse_override(text) for text in args.set)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if args.no_record or overrides else RESULTS
        results = [
            check(p, args.seeds or UNSEEN.get(p, [1, 2, 3]), overrides, args.jobs, args.threads, folder, args.keep)
            for p in args.presets or [*CHECKS, *AT_MOST, *YARDSTICKS]
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
