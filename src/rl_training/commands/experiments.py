"""Commands for many runs: sweep, tune."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.signals import StoppedAtOnce
from rl_training.base.stop_kind import RESUMABLE
from rl_training.base.trust import modules_named
from rl_training.commands.flags import Command, config_flags, count, goes_on_unread, resolved

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.sweeps.backends import Backend
    from rl_training.sweeps.plan import JobStatus


__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    sweep = command("sweep", _sweep, "train over seeds and values of options; repeat the command to go on after a stop")
    config_flags(sweep, values=True)
    sweep.add_argument("--seeds", metavar="A-B", help="such as 0-4 or 1,2,7 (default: the config's seed)")
    _spread_flags(sweep)

    tune = command("tune", _tune, "search for good options; repeat the command to go on after a stop")
    config_flags(tune)
    tune.add_argument("--trials", type=count, default=20, metavar="N", help="choices of options to try (default: 20)")
    tune.add_argument("--space", metavar="FILE", help="YAML of what to search (default: one made for the algorithm)")
    tune.add_argument("--seeds", metavar="A-B", help="runs of each trial, such as 0-2 (default: the config's seed)")
    tune.add_argument("--no-pruning", action="store_true", help="let every trial run to its end")
    _spread_flags(tune)


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


@goes_on_unread
def _sweep(args: argparse.Namespace) -> int:
    from rl_training.base.files import lock_folder
    from rl_training.sweeps.plan import combinations, label_of, make_job, open_sweep, parse_seeds, parse_values
    from rl_training.sweeps.sweep import Interrupted, run_jobs

    values = dict(parse_values(text) for text in args.set)
    _flags_of_their_own(args, values)
    base = resolved(args, {name: some[0] for name, some in values.items()})
    seeds = parse_seeds(args.seeds) if args.seeds else [base.seed]
    folder = _folder(args, base, "sweep")
    jobs = []
    for seed in seeds:  # every choice gets its first seed before any gets its second
        for chosen in combinations(values):
            config = resolved(args, {**chosen, "seed": seed, "threads": args.threads})
            jobs.append(make_job(config, folder, label_of(chosen, list(values))))
    open_sweep(folder, jobs)
    try:
        with lock_folder(folder):
            statuses = run_jobs(jobs, _backend(args))
    except (Interrupted, StoppedAtOnce):
        print(f"interrupted; the same command goes on with it ({folder})", file=sys.stderr)
        return RESUMABLE
    return _conclude(folder, statuses)


@goes_on_unread
def _tune(args: argparse.Namespace) -> int:
    from rl_training.base.files import lock_folder
    from rl_training.experiment.yaml_config import full_names, parse_override
    from rl_training.sweeps.plan import parse_seeds
    from rl_training.sweeps.space import Range, read_space
    from rl_training.sweeps.sweep import Interrupted, JobTable, run_feed
    from rl_training.sweeps.tune import TrialFeed, conclude, open_study

    if args.trials < 1:
        raise ValueError("--trials is at least 1")
    given = dict(parse_override(text) for text in args.set)
    _flags_of_their_own(args, given)
    fixed = {**given, "threads": args.threads}
    base = resolved(args, fixed)
    algo = {"algo": base.algo}
    fixed, space = full_names(algo, fixed), full_names(algo, read_space(args.space or base.algo))
    space = {name: part for name, part in space.items() if name not in fixed}
    for end in (0, -1):  # both ends of everything must be options that the algorithm takes
        for name, part in space.items():
            resolved(args, {**fixed, name: (part.low, part.high)[end] if isinstance(part, Range) else part[end]})
    folder = _folder(args, base, "tune")
    seeds = parse_seeds(args.seeds) if args.seeds else [base.seed]
    study = open_study(folder, base, space, pruning=not args.no_pruning)

    def configure(options: dict[str, Any]) -> TrainConfig:
        return resolved(args, {**fixed, **options})

    try:
        with lock_folder(folder):
            source = TrialFeed(study, space, folder, trials=args.trials, seeds=seeds, configure=configure)
            run_feed(source, _backend(args), JobTable([], sys.stderr), {})
    except (Interrupted, StoppedAtOnce):
        print(f"interrupted; the same command goes on with it ({folder})", file=sys.stderr)
        return RESUMABLE
    outcome = conclude(study, space, folder, configure)
    print(f"trials: {', '.join(f'{count} {state}' for state, count in outcome.counts.items())}, in {folder}")
    for error in outcome.errors:
        print(f"failed  {error}")
    if outcome.value is None:
        return 1
    print(f"best    {outcome.value:.6g} (trial {outcome.number})")
    for name, value in outcome.options.items():
        share = f"  ({outcome.importances[name]:.0%} of what mattered)" if name in outcome.importances else ""
        print(f"        {name} = {value}{share}")
    if (folder / "importance.png").exists():
        print(f"picture {folder / 'importance.png'}")
    trusted = "".join(f" --trust {module}" for module in modules_named(base.env_id, base.env_kwargs))
    print(f"train   rl-training train --config {folder / 'best.yaml'}{trusted}")
    return 0


def _flags_of_their_own(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Refuse options that have an argument of their own: one of the two would be ignored."""
    for name, flag in (("seed", "--seeds"), ("threads", "--threads"), ("output_dir", "--output-dir")):
        if name in given:
            raise ValueError(f"--set {name}: use {flag}")
    if args.seeds and args.seed is not None:
        raise ValueError("give --seed or --seeds, not both")


def _folder(args: argparse.Namespace, base: TrainConfig, kind: str) -> Path:
    return base.output_dir / (args.name or f"{kind}__{base.algo}__{base.env_id.replace('/', '-').replace(':', '-')}")


def _conclude(folder: Path, statuses: dict[str, JobStatus]) -> int:
    from rl_training.sweeps.sweep import state_counts

    failed = {name: now.error for name, now in statuses.items() if now.state == "failed"}
    print(f"{state_counts(statuses)} in {folder}")
    for name, error in failed.items():
        print(f"failed  {name}: {error}")
    if failed:
        print(f"what they printed is in {folder / 'jobs'}; the same command tries them again")
    print(f"compare  rl-training leaderboard {folder}")
    print(f"look     rl-training report {folder} -o report.html")
    return 1 if failed else 0
