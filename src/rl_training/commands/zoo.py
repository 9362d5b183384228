"""Commands for a zoo of trained agents: zoo list, zoo get, zoo add."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import printable
from rl_training.commands.flags import AGENT, Action, Command, count, trust_argument

if TYPE_CHECKING:
    from rl_training.artifacts.zoo_source import ZooSource

__all__ = ["add"]

VARIABLE, FOLDER = "RL_TRAINING_ZOO", "zoo"


def add(command: Command) -> None:
    """Add the commands of this module."""
    zoo = command("zoo", _list, "trained agents: list them, get one, add one")
    below_it: dict[str, Any] = {"metavar": "list|get|add", "help": "what to do", "parser_class": type(zoo)}
    actions = zoo.add_subparsers(dest="what", required=True, **below_it)

    def below(name: str, run: Action, summary: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = actions.add_parser(
            name, help=summary, description=summary, allow_abbrev=False
        )
        parser.set_defaults(run=run, parser=parser)
        return parser

    listed = below("list", _list, "what agents there are, and what they reach")
    _source_argument(listed)
    listed.add_argument("--json", action="store_true", help="print everything that is known as one JSON object")

    get = below("get", _get, "write an agent's checkpoint and its card here")
    get.add_argument("name", metavar="NAME", help="the agent, e.g. ppo/CartPole-v1")
    _source_argument(get)
    get.add_argument("-o", "--output", metavar="FILE", help="the checkpoint (default: NAME with - for /, and .ckpt)")
    get.add_argument("--force", action="store_true", help="overwrite files of another content")

    new = below("add", _add, "put a trained agent into a zoo folder")
    new.add_argument("agent", metavar="RUN", help=AGENT)
    new.add_argument("--to", required=True, metavar="DIR", help="the zoo's folder, which is made if it is not there")
    new.add_argument("--name", metavar="NAME", help="replaces one of this name (default: ALGORITHM/ENVIRONMENT)")
    new.add_argument(
        "--card", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="further lines, e.g. licence=MIT"
    )
    again = "evaluate it anew (default: what its run recorded of this very checkpoint; if nothing, 20)"
    new.add_argument("--episodes", type=count, metavar="N", help=again)
    trust_argument(new)


def _source_argument(parser: argparse.ArgumentParser) -> None:
    where = f"a zoo's folder or its http(s) URL (default: {VARIABLE}, else ./{FOLDER})"
    parser.add_argument("--from", dest="source", metavar="SOURCE", help=where)


def _source(args: argparse.Namespace) -> ZooSource:
    from rl_training.artifacts.zoo_source import ZooError, zoo_source

    text = args.source or os.environ.get(VARIABLE) or (FOLDER if Path(FOLDER).is_dir() else None)
    if text is None:
        raise ZooError(f"no zoo: name one by --from FOLDER (or a URL), set {VARIABLE}, or go where ./{FOLDER} lies")
    return zoo_source(text)


def _list(args: argparse.Namespace) -> None:
    from rl_training.artifacts.zoo import read_zoo
    from rl_training.tracking.figures import short, spread

    source = _source(args)
    agents = read_zoo(source)
    if args.json:
        print(json.dumps({"source": str(source), "agents": {name: agent.entry() for name, agent in agents.items()}}))
        return
    rows = [
        (
            agent.name, printable(agent.algo), printable(agent.env_id), short(agent.steps),
            f"{spread(agent.return_mean, agent.return_std)} ({agent.episodes})", f"{agent.bytes / 1024:,.0f} KiB",
        )
        for agent in agents.values()
    ]  # fmt: skip
    _print_table(("name", "algorithm", "environment", "steps", "return (episodes)", "size"), rows)
    print(f"{len(agents)} agent{'s' * (len(agents) != 1)} in {printable(str(source))}; rl-training zoo get NAME")


def _print_table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Columns as wide as their widest cell; text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    for row in (heads, *rows):
        cells = [cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def _get(args: argparse.Namespace) -> None:
    from rl_training.artifacts.zoo import fetch_agent, read_zoo, zoo_agent
    from rl_training.artifacts.zoo_use import next_commands, trust_note

    source = _source(args)
    agent = zoo_agent(read_zoo(source), args.name, source)
    output = Path(args.output) if args.output is not None else Path(f"{agent.name.replace('/', '-')}.ckpt")
    fetched = fetch_agent(source, agent, output, force=args.force)
    what = f"{agent.name}, {agent.bytes / 1024:,.0f} KiB" if fetched.new else f"{agent.name}, which was there already"
    print(f"{printable(str(fetched.path))}: {what}; its card: {printable(str(fetched.card))}")
    if note := trust_note(agent.env_id):
        print(note)
    for line in next_commands(str(fetched.path), agent.algo, agent.env_id):
        print(f"  {line}")


def _add(args: argparse.Namespace) -> None:
    from rl_training.artifacts.zoo_adding import add_agent
    from rl_training.tracking.figures import spread

    facts = dict(_facts(args.card))
    agent = add_agent(args.agent, args.to, name=args.name, facts=facts, episodes=args.episodes)
    result = spread(agent.return_mean, agent.return_std)
    size = f"{agent.bytes / 1024:,.0f} KiB"
    print(f"{Path(args.to) / agent.file}: {agent.name}, return {result} over {agent.episodes} episodes, {size}")


def _facts(pairs: Iterable[str]) -> Iterable[tuple[str, str]]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"--card takes key=value, e.g. licence=MIT; got {pair[:60]!r}")
        yield name.strip(), value.strip()
