"""Commands for datasets: collect, dataset."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from rl_training.base.errors import printable
from rl_training.base.modules import look_here
from rl_training.base.trust import words_of_modules
from rl_training.commands.flags import Command, checkpoint_argument, count

__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    collect = command(
        "collect", _collect, "record a dataset from a trained agent, random actions, or a run's replay buffer"
    )
    checkpoint_argument(collect, required=False)
    collect.add_argument("--env", metavar="ID", help="with --random and no checkpoint: the environment")
    collect.add_argument("--output", required=True, metavar="FILE", help="where to; for minari: the dataset's id")
    collect.add_argument("--format", choices=("npz", "hdf5", "minari"), help="default: by the file's ending")
    collect.add_argument("--steps", type=count, metavar="N", help="how many steps")
    collect.add_argument("--episodes", type=count, metavar="N", help="or how many whole episodes")
    collect.add_argument("--deterministic", action="store_true", help="take the best action instead of drawing one")
    collect.add_argument("--stochastic", dest="deterministic", action="store_false", help="draw actions (the default)")
    collect.add_argument("--random", action="store_true", help="uniformly random actions instead of the agent's")
    collect.add_argument("--from-replay", action="store_true", help="the run's replay buffer instead of new steps")
    collect.add_argument(
        "--expert", metavar="RETURN|PATH", help="return that scores 100, or the checkpoint of an expert"
    )
    collect.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the collection (default: 0)")

    dataset = command("dataset", _dataset_info, "look into a file of transitions")
    dataset.add_argument("what", choices=("info",), help="size, returns, spaces, and what would break training")
    dataset.add_argument("path", help="an npz or hdf5 file, or a Minari id")
    dataset.add_argument("--format", choices=("npz", "hdf5", "minari"), help="default: by the file's ending")
    dataset.add_argument("--env", metavar="ID", help="the environment it is meant for: check that the data fits it")
    dataset.add_argument(
        "--episode-steps", type=count, metavar="N", help="for files that mark no time-outs: steps of the time limit"
    )
    dataset.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def _format(path: str, chosen: str | None) -> str:
    if chosen is not None:
        return chosen
    suffix = Path(path).suffix.lower()
    known = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}
    if suffix not in known:
        raise ValueError(f"{path} ends in none of {', '.join(known)}; say what it is with --format")
    return known[suffix]


def _collect(args: argparse.Namespace) -> None:
    from rl_training.artifacts import collection
    from rl_training.data import dataset_files as files
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.experience import collect, collect_from_checkpoint
    from rl_training.runtime.workflows import config_of, find_checkpoint

    kind = _format(args.output, args.format)
    if args.path is None and not (args.random and args.env):
        raise ValueError("name a run or a checkpoint, or give --random and --env")
    if args.env is not None and args.path is not None:
        raise ValueError("--env goes with --random and no checkpoint; a checkpoint has its own environment")
    if args.from_replay and (args.steps or args.episodes or args.random):
        raise ValueError("--from-replay takes the whole buffer: --steps, --episodes and --random do not go with it")
    if args.path is not None:
        config = config_of(find_checkpoint(args.path, buffers=False)[1])
    else:
        look_here(words_of_modules(args.env))
        config = TrainConfig(algo="bc", env_id=args.env)
    if args.from_replay:
        data = collection.export_replay(args.path)
    else:
        much = {"steps": args.steps, "episodes": args.episodes, "seed": args.seed, "progress": "auto"}
        if args.random:
            data = collect(config, None, **much)
        else:
            data = collect_from_checkpoint(args.path, deterministic=args.deterministic, **much)
    collection.add_returns(data)
    collection.add_references(data, config, seed=args.seed, expert=args.expert)
    if kind == "minari":
        env = EnvFactory(config.env_id, config.env_kwargs).make(training=False)
        files.write_minari(args.output, data, env)
    else:
        {"npz": files.write_npz, "hdf5": files.write_hdf5}[kind](Path(args.output), data)
    _show_dataset(args.output, collection.describe_dataset(data))


def _dataset_info(args: argparse.Namespace) -> None:
    from rl_training.artifacts.collection import describe_dataset
    from rl_training.data.dataset_files import load_transition_dataset
    from rl_training.data.environment_match import time_limits
    from rl_training.envs.factory import EnvFactory

    local = args.format is None and not Path(args.path).suffix and not Path(args.path).exists()
    kind = "minari" if local else _format(args.path, args.format)
    where = {"dataset_id": args.path} if kind == "minari" else {"dataset_path": args.path}
    look_here(words_of_modules(args.env))
    factory = None if args.env is None else EnvFactory(args.env, {})
    limit = args.episode_steps if factory is None else args.episode_steps or (lambda: time_limits(factory))
    with warnings.catch_warnings(record=True) as assumed:
        warnings.simplefilter("always")
        data = load_transition_dataset(kind, **where, time_limit=limit)
    facts = describe_dataset(data, factory)
    facts["concerns"] += [str(warning.message) for warning in assumed if warning.category is UserWarning]
    if args.json:
        print(json.dumps(facts))
    else:
        _show_dataset(args.path, facts)


def _show_dataset(path: str, facts: dict[str, Any]) -> None:
    meta = facts["meta"]
    env_id = printable(str(meta.get("env_id", "?")))
    print(f"{path}: {facts['transitions']:,} transitions in {facts['episodes']:,} episodes of {env_id}")
    left = f", {facts['unfinished']:,} unfinished" if facts["unfinished"] else ""
    print(f"ends          {facts['terminations']:,} terminated, {facts['truncations']:,} truncated{left}")
    if facts["return_mean"] is not None:
        spread = ", ".join(f"{value:.4g}" for value in facts["return_quantiles"])
        print(f"returns       mean {facts['return_mean']:.4g}; smallest, quartiles, largest: {spread}")
        print(f"lengths       mean {facts['length_mean']:.4g}")
    print(f"observations  {facts['observations']}")
    print(f"actions       {facts['actions']} in {facts['action_range']}")
    print(f"rewards       in {facts['reward_range']}")
    for name in ("random_return", "expert_return", "seed", "behaviour"):
        if meta.get(name) is not None:
            shown = json.dumps(meta[name]) if isinstance(meta[name], dict) else printable(str(meta[name]))
            print(f"{name:13} {shown}")
    for concern in facts["concerns"]:
        print(f"WARNING       {concern}")
