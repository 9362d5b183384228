"""Many runs: sweep, tune."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.commands.flags import config_flags, count, resolved

if TYPE_CHECKING:
    from rl_training.sweeps.backends import Backend
    from rl_training.sweeps.plan import Standing


def add(command: Callable) -> None:
    """Add the commands of this module."""
    sweep = command("sweep", _sweep, "train over seeds and values of options; repeat the command to go on after a stop")
    config_flags(sweep, values=True)
    sweep.add_argument("--seeds", metavar="A-B", help="such as 0-4 or 1,2,7 (default: the config's seed)")
    _spread_flags(sweep)


def _spread_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="of the folder in --output-dir that holds the runs (default: by algo and env)")
    parser.add_argument("--jobs", type=count, metavar="N", help="runs at a time (default: one per core)")
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads of each run (default: 1)")
    parser.add_argument("--backend", choices=("local", "ray"), default="local", help="processes here, or Ray tasks")
    parser.add_argument("--address", help="of a Ray cluster, host:port or auto (default: one made here)")


def _backend(args: argparse.Namespace) -> Backend:
    from rl_training.sweeps.backends import Processes, Ray

    if (args.jobs is not None and args.jobs < 1) or args.threads < 1:
        raise ValueError("--jobs and --threads are at least 1")
    if args.backend == "ray":
        return Ray(args.jobs, args.threads, args.address)
    if args.address is not None:
        raise ValueError("--address goes with --backend ray")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processes(args.jobs or max(1, cores // args.threads), args.threads)


def _sweep(args: argparse.Namespace) -> int:
    from rl_training.sweeps.plan import combinations, label_of, make_job, open_sweep, parse_seeds, parse_values
    from rl_training.sweeps.sweep import Interrupted, run_jobs

    values = dict(parse_values(text) for text in args.set)
    base = resolved(args, {name: some[0] for name, some in values.items()})
    seeds = parse_seeds(args.seeds) if args.seeds else [base.seed]
    folder = base.output_dir / (args.name or f"sweep__{base.algo}__{base.env_id.replace('/', '-').replace(':', '-')}")
    jobs = []
    for seed in seeds:  # every choice gets its first seed before any gets its second
        for chosen in combinations(values):
            config = resolved(args, {**chosen, "seed": seed, "threads": args.threads})
            jobs.append(make_job(config, folder, label_of(chosen, list(values))))
    open_sweep(folder, jobs)
    try:
        standings = run_jobs(jobs, _backend(args))
    except Interrupted:
        print(f"interrupted; the same command goes on with it ({folder})", file=sys.stderr)
        return 130
    return _conclude(folder, standings)


def _conclude(folder: Path, standings: dict[str, Standing]) -> int:
    from rl_training.sweeps.sweep import summary

    failed = {name: now.error for name, now in standings.items() if now.state == "failed"}
    print(f"{summary(standings)} in {folder}")
    for name, error in failed.items():
        print(f"failed  {name}: {error}")
    if failed:
        print(f"what they printed is in {folder / 'jobs'}; the same command tries them again")
    print(f"compare  rl-training leaderboard {folder}")
    print(f"look     rl-training report {folder} -o report.html")
    return 1 if failed else 0
