"""Commands about the package and the machine: list, show, config, schema, doctor."""

from __future__ import annotations

import argparse
import json

from rl_training.commands.flags import Command, config_flags, resolved

__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    listing = command("list", _list, "the algorithms")
    listing.add_argument("--json", action="store_true", help="print them as a JSON list")

    show = command("show", _show, "an algorithm's options, with meaning, bounds and default")
    show.add_argument("algo", help="name of an algorithm, e.g. ppo")
    show.add_argument("--json", action="store_true", help="print the options as a JSON object")

    config = command("config", _config, "print a config as it will be used, with every default filled in")
    config_flags(config)
    config.add_argument("--json", action="store_true", help="print it as JSON instead of YAML")

    schema = command("schema", _schema, "the JSON schema of a config, for editors")
    schema.add_argument("algo", help="name of an algorithm, e.g. ppo")

    doctor = command("doctor", _doctor, "check this machine: versions, devices, compiler, environments")
    doctor.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def _list(args: argparse.Namespace) -> None:
    from rl_training.experiment.registry import ALGORITHMS

    if args.json:
        print(json.dumps([entry._asdict() for entry in ALGORITHMS.values()]))
        return
    for entry in ALGORITHMS.values():
        print(f"{entry.name:8} {entry.year}  {entry.summary} ({entry.paper})")


def _show(args: argparse.Namespace) -> None:
    from rl_training.experiment.options_table import describe_options
    from rl_training.experiment.registry import get_algorithm_spec

    spec = get_algorithm_spec(args.algo)
    rows = describe_options(spec.config)
    if args.json:
        print(json.dumps({row.name: row._asdict() for row in rows}))
        return
    print(f"{spec.entry.public}: {spec.entry.summary} ({spec.entry.paper}, {spec.entry.year})")
    print(f"takes {' or '.join(spec.obs)} observations and {' or '.join(spec.actions)} actions\n")
    width, kinds = max(len(row.name) for row in rows), max(len(row.default) for row in rows)
    for row in rows:
        print(f"{row.name:{width}}  {row.default:{kinds}}  {row.meaning}{f' ({row.bounds})' if row.bounds else ''}")


def _config(args: argparse.Namespace) -> None:
    config = resolved(args)
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.runs import dump_yaml

    spec = get_algorithm_spec(config.algo)
    options = spec.options(spec.complete(config))
    whole = {**config.plain(), "algo_kwargs": options.model_dump(mode="json", exclude=options.idle())}
    print(json.dumps(whole) if args.json else dump_yaml(whole), end="\n" if args.json else "")


def _schema(args: argparse.Namespace) -> None:
    from rl_training.experiment.yaml_config import json_schema

    print(json.dumps(json_schema(args.algo), indent=2))


def _doctor(args: argparse.Namespace) -> int:
    from rl_training.commands.doctor import examine

    findings = examine()
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.ok else 'NO '} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok or finding.optional for finding in findings) else 1
