"""The command about an environment: check-env."""

from __future__ import annotations

import argparse
import json

from rl_training.base.modules import look_here
from rl_training.base.trust import words_of_modules
from rl_training.commands.flags import Command, count

__all__ = ["add"]

SIGNS = {"ok": "ok ", "note": "!  ", "problem": "NO "}


def add(command: Command) -> None:
    """Add the command of this module."""
    check = command(
        "check-env", _check, "play at random in an environment, and say what there is to know before training"
    )
    check.add_argument("env", metavar="ID", help="Gymnasium environment, e.g. CartPole-v1 or my_module:MyEnv-v0")
    check.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an option in env_kwargs, e.g. env_kwargs.max_episode_steps=200; repeatable",
    )
    check.add_argument("--steps", type=count, default=1_000, metavar="N", help="random steps (default: 1000)")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes and of the actions")
    check.add_argument("--json", action="store_true", help="print remarks and facts as one JSON object")


def _check(args: argparse.Namespace) -> int:
    from rl_training.base.options import ConfigError
    from rl_training.experiment.yaml_config import apply_overrides, parse_override

    chosen = {}
    for name, value in map(parse_override, args.set):
        if name.partition(".")[0] != "env_kwargs":
            raise ConfigError(
                [((name,), "a check sets options in env_kwargs only, such as env_kwargs.max_episode_steps")]
            )
        chosen[name] = value
    env_kwargs = apply_overrides({}, chosen).get("env_kwargs", {})
    if not isinstance(env_kwargs, dict):
        raise ConfigError([(("env_kwargs",), f"must be a mapping, got {env_kwargs!r:.60}")])
    look_here(words_of_modules(args.env, env_kwargs))
    from rl_training.runtime.environment_check import check_env

    report = check_env(args.env, env_kwargs, seed=args.seed, steps=args.steps)
    if args.json:
        print(json.dumps(report))
    else:
        _say(report)
    return 0 if report["trainable"] else 1


def _say(report: dict[str, object]) -> None:
    """Print a line for each remark, and one below it on what to do."""
    remarks: list[dict[str, str]] = report["remarks"]  # type: ignore[assignment]
    for remark in remarks:
        print(f"{SIGNS[remark['level']]} {remark['about']}: {remark['says']}")
        if remark["do"] and remark["level"] != "ok":
            print(f"      {remark['do']}")
    verdict = "can be trained in" if report["trainable"] else "cannot be trained in as it is"
    print(f"\n{report['environment']} {verdict}")
