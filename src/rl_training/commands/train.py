"""Commands for training: train, resume."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.trust import module_of
from rl_training.commands.flags import (
    Command,
    checkpoint_argument,
    config_flags,
    count,
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
    checkpoint_argument(resume, "path")
    resume.add_argument("--total-timesteps", type=count, metavar="N", help="a new total (default: the run's own)")
    resume.add_argument(
        "--output-dir", metavar="DIR", help="go on in a new run directory in here (default: the checkpoint's own run)"
    )
    resume.add_argument("--eval-episodes", type=count, metavar="N", help="episodes per evaluation")
    resume.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _train(args: argparse.Namespace) -> int:
    config = resolved(args)
    from rl_training.experiment.registry import get_algorithm_spec

    result = get_algorithm_spec(config.algo).train(config, run_suffix=args.run_suffix)
    return _report(result, config.total_timesteps, args.json, config.env_id)


def _resume(args: argparse.Namespace) -> int:
    from rl_training.runtime.workflows import config_of, find_checkpoint, resume_training

    path, state = find_checkpoint(args.path, buffers=False)
    config = config_of(state)
    total = args.total_timesteps or config.total_timesteps
    result = resume_training(
        path, total_timesteps=args.total_timesteps, output_dir=args.output_dir, eval_episodes=args.eval_episodes
    )
    return _report(result, total, args.json, config.env_id)


def _report(result: TrainResult, total: int, as_json: bool, env_id: str) -> int:
    metrics = result.metrics
    if as_json:
        numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        files = {"run_dir": str(result.run_dir), "checkpoint_path": str(result.checkpoint_path)}
        print(json.dumps({**files, "metrics": numbers}))
        return 0
    step = int(metrics["global_step"])
    print(f"{_outcome(step, total, metrics)}: {score(metrics)}")
    if step < total:
        print(f"because     {_reason(result.run_dir)}")
    print(f"checkpoint  {result.checkpoint_path}")
    module = module_of(env_id)
    run = f"{result.run_dir} --trust {module}" if module is not None else f"{result.run_dir}"
    if step < total:
        print(f"go on with  rl-training resume {run}")
    else:
        print(f"evaluate    rl-training eval {run}")
        events = any((result.run_dir / "tensorboard").iterdir())
        drawn = f" (and tensorboard --logdir {result.run_dir.parent})" if events else ""
        print(f"curves      {result.run_dir / 'metrics.jsonl'}{drawn}")
    return 0


def _outcome(step: int, total: int, metrics: dict[str, Any]) -> str:
    """Say how far the run got, and whether it made an update at all."""
    if metrics["update_count"] or metrics["gradient_steps"]:
        return f"{'trained' if step >= total else 'stopped'} at step {step:,}"
    if step < total:
        return f"stopped at step {step:,}, before the first update"
    return f"finished at step {step:,} without an update, the agent is untrained"


def _reason(run_dir: Path) -> str:
    """Read why a run ended before its total."""
    return str(json.loads((run_dir / "metadata.json").read_text())["stop_reason"])
