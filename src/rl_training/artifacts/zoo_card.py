"""The model card of an agent in a zoo: what it is, what it reaches, how it was made, how it is used, and its limits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rl_training.artifacts.zoo_use import next_commands, trust_note
from rl_training.base.errors import printable
from rl_training.base.options import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, get_entry
from rl_training.experiment.runs import dump_yaml

__all__ = [
    "LIMITS",
    "ROWS",
    "CardFacts",
    "non_default_options",
    "training_command",
    "write_card",
]

LIMITS = (
    "Evaluated in its own task alone, as above. How it acts in other versions of the task, under other time limits, "
    "with other observations or with noise was not tried."
)
ROWS = {
    *("task", "algorithm", "environment steps", "seed", "began with", "return", "lowest return"),
    *("episodes that succeed", "evaluated", "commit", "versions"),
}
UNTOLD = ("algo", "env_id", "seed", "total_timesteps", "output_dir", "device", "threads", "progress", "algo_kwargs")


@dataclass(kw_only=True)
class CardFacts:
    """What a card says, beside what its agent's config says."""

    name: str
    config: TrainConfig
    steps: int
    evaluation: Mapping[str, float]  # as ``evaluate`` names its metrics
    how_evaluated: str
    commit: str | None
    versions: Mapping[str, str]
    parent: int | None = None  # steps of the agent whose networks it began with
    facts: Mapping[str, str] = field(default_factory=dict)  # further rows of the table
    command: str | None = None  # that trained it; None: made of the config
    limits: str = LIMITS


def non_default_options(config: TrainConfig) -> dict[str, Any]:
    """The options of a run that shape what it learns and differ from their defaults, as a config has them."""
    fields = TrainConfig.model_fields
    untold = {*TrainConfig.CHANGEABLE, *UNTOLD, "init_from", "init_parts", "init_optimizer", "init_replay"}
    plain = config.plain()
    told = {name: value for name, value in plain.items() if name not in untold}
    changed = {name: value for name, value in told.items() if value != _plain_default(fields[name])}
    known = get_algorithm_spec(config.algo).config.model_fields
    own = {
        name: _without_folder(value)
        for name, value in plain["algo_kwargs"].items()
        if name not in known or value != _plain_default(known[name])
    }
    return changed | ({"algo_kwargs": own} if own else {})


def _plain_default(option: Any) -> Any:
    value = option.get_default(call_default_factory=True)
    value = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return list(value) if isinstance(value, tuple) else value


def _without_folder(value: Any) -> Any:
    """The name of a file instead of its place on the machine of whoever trained."""
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value


def training_command(config: TrainConfig) -> str:
    """The command that trains an agent of this config anew."""
    words = ["rl-training", "train", "--algo", config.algo, "--env", config.env_id, "--seed", str(config.seed)]
    words += ["--total-timesteps", str(config.total_timesteps)]
    changed = non_default_options(config)
    settings = {f"algo_kwargs.{name}": value for name, value in changed.pop("algo_kwargs", {}).items()}
    for name, value in (changed | settings).items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def write_card(told: CardFacts) -> str:
    """The card in Markdown."""
    config, scores = told.config, told.evaluation
    mean, deviation = scores["eval_return_mean"], scores["eval_return_std"]
    rows = {
        "task": config.env_id,
        "algorithm": get_entry(config.algo).public,
        "environment steps": f"{told.steps:,}",
        "seed": str(config.seed),
        "began with": "" if told.parent is None else f"the networks of an agent trained for {told.parent:,} steps",
        "return": f"{mean:.6g} ± {deviation:.4g} over {scores['eval_episodes']:.0f} episodes",
        "lowest return": f"{scores['eval_return_min']:.6g}" if "eval_return_min" in scores else "",
        "episodes that succeed": f"{scores['eval_success_rate']:.0%}" if "eval_success_rate" in scores else "",
        "evaluated": told.how_evaluated,
        **told.facts,
        "commit": told.commit or "not known",
        "versions": ", ".join(f"{name} {version}" for name, version in told.versions.items()) or "not known",
    }
    changed = non_default_options(config)
    options = f"```yaml\n{dump_yaml(changed)}```" if changed else "None."
    get = f"rl-training zoo get {told.name}"
    file = told.name.replace("/", "-") + ".ckpt"
    use = "\n".join([get, *next_commands(file, config.algo, config.env_id)])
    note = trust_note(config.env_id, config.env_kwargs)
    note = f"{note}.\n\n" if note else ""
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items() if value)
    return (
        f"# {told.name}\n\n| | |\n|---|---|\n{table}\n\n"
        f"## How is it used?\n\n```bash\n{use}\n```\n\n{note}"
        f"## How was it trained?\n\n```bash\n{_told_command(told)}\n```\n\n"
        f"Options that differ from their defaults:\n\n{options}\n\n"
        f"## What was it not tried on?\n\n{_line(told.limits)}\n"
    )


def _told_command(told: CardFacts) -> str:
    try:
        begun = "" if told.parent is None else " --init-from ..."
        return _line(told.command or f"{training_command(told.config)}{begun}")
    except ConfigError:
        return "not known"


def _line(text: str) -> str:
    """A text in one line, without characters that a terminal obeys, and that closes no block of code."""
    return printable(" ".join(str(text).split())).replace("```", "'''")


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")
