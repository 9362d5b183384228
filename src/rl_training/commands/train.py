"""Commands for training: train, resume."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.base.trust import modules_named
from rl_training.base.yaml_text import parse_yaml
from rl_training.commands.flags import (
    Command,
    checkpoint_argument,
    config_flags,
    count,
    goes_on_unread,
    resolved,
    score,
    trust_argument,
)

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainResult


__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    train = command("train", _train, "train an agent from a config, a preset, or an algorithm and an environment")
    config_flags(train)
    train.add_argument("--run-suffix", metavar="NAME", help="end of the run directory's name (default: the time)")
    trust_argument(train)
    train.add_argument("--json", action="store_true", help="print the result as one JSON object")

    resume = command("resume", _resume, "go on with a stopped run, exactly as if it had never stopped")
    checkpoint_argument(resume)
    resume.add_argument("--total-timesteps", type=count, metavar="N", help="a new total (default: the run's own)")
    resume.add_argument(
        "--output-dir", metavar="DIR", help="go on in a new run directory in here (default: the checkpoint's own run)"
    )
    resume.add_argument("--eval-episodes", type=count, metavar="N", help="episodes per evaluation")
    resume.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change an option on which nothing depends that is learned, e.g. keep_checkpoints=9; repeatable",
    )
    resume.add_argument("--json", action="store_true", help="print the result as one JSON object")


@goes_on_unread
def _train(args: argparse.Namespace) -> int:
    config = resolved(args)
    from rl_training.experiment.registry import get_algorithm_spec

    return _report(get_algorithm_spec(config.algo).train(config, run_suffix=args.run_suffix), args.json)


@goes_on_unread
def _resume(args: argparse.Namespace) -> int:
    from rl_training.experiment.yaml_config import parse_override
    from rl_training.runtime.workflows import resume_training

    result = resume_training(
        args.path,
        total_timesteps=args.total_timesteps,
        output_dir=args.output_dir,
        eval_episodes=args.eval_episodes,
        set=dict(parse_override(text) for text in args.set),
    )
    return _report(result, args.json)


def _report(result: TrainResult, as_json: bool) -> int:
    """Print the result; the exit code is that of the run's end, whether or not anybody reads what is printed."""
    facts = json.loads((result.run_dir / "metadata.json").read_text())
    kind = recorded_stop_kind(facts) or StopKind.FAILED
    _print_result(result, kind, facts["stop_reason"], as_json)
    return kind.exit_code


def _print_result(result: TrainResult, kind: StopKind, reason: str | None, as_json: bool) -> None:
    metrics = result.metrics
    if as_json:
        numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        files = {"run_dir": str(result.run_dir), "checkpoint_path": str(result.checkpoint_path)}
        print(json.dumps({**files, "metrics": numbers}))
        return
    print(f"{_outcome(kind, metrics)}: {score(metrics)}")
    if not kind.reached_total:
        print(f"because     {reason}")
    print(f"checkpoint  {result.checkpoint_path}")
    config = parse_yaml((result.run_dir / "config.yaml").read_text())
    trusted = modules_named(str(config["env_id"]), config["env_kwargs"])
    run = " ".join([str(result.run_dir), *(f"--trust {module}" for module in trusted)])
    if not kind.reached_total:
        print(f"go on with  rl-training resume {run}")
    else:
        print(f"evaluate    rl-training eval {run}")
        events = any((result.run_dir / "tensorboard").iterdir())
        drawn = f" (and tensorboard --logdir {result.run_dir.parent})" if events else ""
        print(f"curves      {result.run_dir / 'metrics.jsonl'}{drawn}")


def _outcome(kind: StopKind, metrics: dict[str, Any]) -> str:
    """Say how far the run got, and whether it made an update at all."""
    step = int(metrics["global_step"])
    if metrics["update_count"] or metrics["gradient_steps"]:
        return f"{'trained' if kind.reached_total else 'stopped'} at step {step:,}"
    if not kind.reached_total:
        return f"stopped at step {step:,}, before the first update"
    return f"finished at step {step:,} without an update, the agent is untrained"
