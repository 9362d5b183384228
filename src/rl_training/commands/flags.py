"""Arguments that several commands share, and the config that they make."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from rl_training.base.modules import look_here
from rl_training.base.streams import Forgiving
from rl_training.base.trust import words_of_modules

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

__all__ = [
    "AGENT",
    "Action",
    "Command",
    "checkpoint_argument",
    "config_flags",
    "count",
    "device_argument",
    "goes_on_unread",
    "rate",
    "resolved",
    "score",
    "settle_checkpoint",
    "stochastic_argument",
    "trust_argument",
]

Action = Callable[[argparse.Namespace], int | None]  # what a command does; its exit code
AGENT = "a run directory, RUN/best, or a checkpoint file"
Command = Callable[[str, Action, str], argparse.ArgumentParser]  # (name, what it does, help) -> its parser


def config_flags(parser: argparse.ArgumentParser, *, values: bool = False) -> None:
    """Add the arguments that make or change a config; ``values``: --set takes several."""
    parser.add_argument(
        "--config", metavar="FILE", help="a YAML file, or a packaged preset such as configs/ppo/cartpole.yaml"
    )
    parser.add_argument("--algo", help="algorithm, e.g. ppo (see rl-training list)")
    parser.add_argument("--env", metavar="ID", help="Gymnasium environment, e.g. CartPole-v1 or my_module:MyEnv-v0")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random in the run")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--total-timesteps", type=count, metavar="N", help="environment steps; 1e6 is fine")
    parser.add_argument("--output-dir", metavar="DIR", help="where run directories are made")
    parser.add_argument("--num-envs", type=count, metavar="N", help="environments stepped together")
    parser.add_argument("--eval-episodes", type=count, metavar="N", help="episodes per evaluation")
    parser.add_argument("--init-from", metavar="PATH", help=f"{AGENT}, whose networks the new run starts with")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=A,B" if values else "NAME=VALUE",
        help=f"{'try values of' if values else 'set'} any option, e.g. learning_rate=1e-3"
        f"{',3e-4' if values else ''}; repeatable",
    )


def checkpoint_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the argument that names a trained agent, to be found in ``path``; ``--checkpoint`` is its older form."""
    parser.add_argument("agent", nargs="?", metavar="RUN", help=AGENT if required else f"{AGENT} (not with --env)")
    parser.add_argument("--checkpoint", metavar="RUN", help=argparse.SUPPRESS)
    parser.set_defaults(agent_required=required)
    trust_argument(parser)


def settle_checkpoint(args: argparse.Namespace, rest: list[str]) -> tuple[list[str], str]:
    """Put the agent that the arguments name into ``args.path``; what is left of ``rest``, and what is wrong, if
    anything is. The name may stand behind options, where argparse does not look for it."""
    if not hasattr(args, "agent_required"):
        return rest, ""
    if args.agent is None and rest and not rest[0].startswith("-"):
        args.agent, *rest = rest
    if None not in (args.agent, args.checkpoint):
        return rest, f"the agent is named twice, as {args.agent} and by --checkpoint {args.checkpoint}"
    args.path = args.agent if args.agent is not None else args.checkpoint
    missing = args.path is None and args.agent_required
    return rest, f"say which agent: {AGENT}" if missing else ""


def trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that allows the modules which a file names."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="let the file name an environment or wrapper of this module, whose code then runs; repeatable",
    )


def device_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that chooses where networks run."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def stochastic_argument(parser: argparse.ArgumentParser) -> None:
    """Add the switch from the best action to a sampled one."""
    parser.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the best ones")


def count(text: str) -> int:
    """Read a whole number, also one written as 1e6."""
    number = float(text)
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number)


def rate(text: str) -> float:
    """Read a number above 0, and not infinite."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


count.__name__ = rate.__name__ = "number"


def goes_on_unread(action: Action) -> Action:
    """The action, for which a closed standard output is no reason to stop."""

    def run(args: argparse.Namespace) -> int | None:
        with contextlib.redirect_stdout(cast(TextIO, Forgiving(sys.stdout))):
            return action(args)

    return run


def resolved(args: argparse.Namespace, chosen: dict[str, Any] | None = None) -> TrainConfig:
    """Make the config from the arguments of ``config_flags``; ``chosen`` replaces ``--set``.

    What it names may stand in the current directory, unless a file of a run or a sweep names it.
    """
    config = _config(args, chosen)
    found = None if args.config is None else Path(args.config)
    if found is None or not any(
        (found.parent / name).exists() for name in ("metadata.json", "sweep.json", "study.json")
    ):
        look_here(words_of_modules(config.env_id, config.env_kwargs))
    return config


def _config(args: argparse.Namespace, chosen: dict[str, Any] | None) -> TrainConfig:
    from rl_training.base.options import ConfigError
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.yaml_config import apply_overrides, full_names, parse_override, read_config

    flags = {"algo": args.algo, "env_id": args.env, "seed": args.seed, "device": args.device}
    flags |= {"total_timesteps": args.total_timesteps, "output_dir": args.output_dir, "num_envs": args.num_envs}
    flags |= {"eval_episodes": args.eval_episodes, "init_from": args.init_from}
    overrides = {name: value for name, value in flags.items() if value is not None}
    overrides |= dict(parse_override(text) for text in args.set) if chosen is None else chosen
    if args.config is not None:
        return read_config(args.config, overrides)
    if args.algo is None or args.env is None:
        raise ConfigError([((), "give --config FILE, or --algo and --env")])
    config = TrainConfig(**apply_overrides({}, full_names({}, overrides)))
    get_algorithm_spec(config.algo).options(config)
    return config


def score(metrics: dict[str, Any]) -> str:
    """Format the return of an evaluation, over how many episodes, and if it is known, how many of them succeeded."""
    from rl_training.tracking.figures import spread

    episodes = int(metrics["eval_episodes"])
    if not episodes:
        return "not evaluated"
    result = spread(metrics["eval_return_mean"], metrics["eval_return_std"])
    rate = metrics.get("eval_success_rate")
    succeed = "" if rate is None else f", {rate:.0%} succeed"
    return f"return {result} over {episodes} episode{'s' if episodes != 1 else ''}{succeed}"
