"""Putting a trained agent into a zoo: its slim checkpoint, the return of that very agent, and its card."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_training.artifacts.zoo import ZooAgent, checked_name, put_agent
from rl_training.artifacts.zoo_card import LIMITS, ROWS, CardFacts, write_card
from rl_training.artifacts.zoo_source import ZooError
from rl_training.base.saved import Saved
from rl_training.base.trust import trust_modules
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpointing import SUFFIX, CheckpointState, raise_on_mismatch, save_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import RunContext, find_checkpoint, read_metadata, run_dir_of
from rl_training.runtime.slim import evaluated_as_saved, is_slim, slim_copy
from rl_training.runtime.workflows import config_of

__all__ = ["add_agent", "default_name"]

EPISODES = 20  # of an evaluation that is made for the card, at least
OTHER_SEEDS = 1_000_000  # added to a run's seed: episodes that had no part in choosing its best checkpoint
SCORES = ("eval_return_mean", "eval_return_std", "eval_episodes")
FURTHER = ("eval_return_min", "eval_success_rate")
FACT = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,40}").fullmatch


def default_name(config: TrainConfig) -> str:
    """``ppo/CartPole-v1``: the algorithm and the environment, without the module that it comes from."""
    task = re.sub(r"[^A-Za-z0-9._+-]+", "-", config.env_id.rpartition(":")[2]).strip("-._+")
    return f"{config.algo}/{task or 'agent'}"


def add_agent(
    path: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    facts: Mapping[str, str] = {},
    episodes: int | None = None,
    evaluation: Mapping[str, float] | None = None,
    how_evaluated: str = "",
    command: str | None = None,
    limits: str = LIMITS,
    trust: str | Iterable[str] = (),
) -> ZooAgent:
    """Put the agent of a run, of RUN/best or of a checkpoint file into a zoo folder, in place of one of its name.

    The return on the card is that of this very checkpoint: ``evaluation``, if it is given; else what the checkpoint
    recorded of itself; else, and where ``episodes`` asks for it, that of new episodes, of seeds that the run has not
    used to choose its best.
    """
    trust_modules(trust)
    _check_facts(facts)
    found, state = find_checkpoint(path, buffers=False)
    spaces = _known_spaces(state)
    config = config_of(state, env=spaces)
    name = checked_name(name if name is not None else default_name(config))
    with raise_on_mismatch():
        slim = slim_copy(state)
        steps = Saved(state.trainer_state, ("step",), state.trainer_state).count("step")
        # what cannot be loaded again is of no use to anybody
        get_algorithm_spec(config.algo).load(config, slim, "cpu", spaces=spaces)
    if evaluation is None:
        evaluation, how_evaluated = _evaluation(state, slim, episodes)
    scores = _checked_scores(evaluation, found)
    made_by = _made_by(found, state)
    slim.metadata |= {"made_by": made_by, "last_eval": scores}
    told = CardFacts(
        name=name, config=config, steps=steps, evaluation=scores, how_evaluated=how_evaluated, facts=facts,
        commit=made_by["commit"], versions=made_by["versions"], parent=made_by["parent"],
        command=command, limits=limits,
    )  # fmt: skip
    entry = {
        "algo": config.algo, "env_id": config.env_id, "steps": steps, "seed": config.seed,
        "return_mean": scores["eval_return_mean"], "return_std": scores["eval_return_std"],
        "episodes": int(scores["eval_episodes"]), "commit": made_by["commit"], "versions": made_by["versions"],
        "facts": dict(facts),
    }  # fmt: skip
    return put_agent(Path(folder), name, _file_of(slim), write_card(told), entry)


def _check_facts(facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        if not FACT(name) or len(value) > 2_000:
            raise ZooError(f"--card {name[:60]}: a name of letters, and a text of at most 2,000 characters")
        if name.lower() in ROWS:
            raise ZooError(f"--card {name}: the card has this line already, of the agent itself")


def _known_spaces(state: CheckpointState) -> Spaces | None:
    """The spaces that a checkpoint knows, so that no environment is made for it; older ones know none."""
    facts = state.metadata.get("spaces")
    with raise_on_mismatch():
        return None if facts is None else Spaces.of_facts(facts)


def _evaluation(state: CheckpointState, slim: CheckpointState, episodes: int | None) -> tuple[Mapping[str, float], str]:
    """The evaluation of a checkpoint, and where it comes from."""
    with raise_on_mismatch():
        recorded = evaluated_as_saved(state)
    if recorded is not None and episodes is None:
        return recorded, "by its run, of this very checkpoint, with deterministic actions"
    config = config_of(slim)  # whose environment is made now
    config = config.replace(seed=config.seed + OTHER_SEEDS)
    count = max(EPISODES, config.eval_episodes) if episodes is None else episodes
    if count < 1:
        raise ZooError(f"--episodes should be at least 1, got {count}")
    metrics = get_algorithm_spec(config.algo).evaluate_fn(config, slim, "cpu", count)
    return metrics, "for this card, in episodes that had no part in choosing it, with deterministic actions"


def _checked_scores(scores: Mapping[str, Any], found: Path) -> dict[str, float]:
    with raise_on_mismatch():
        saved = Saved(scores, SCORES, scores)
        numbers = {name: saved.number(name) for name in (*SCORES, *FURTHER) if name in saved}
    if not all(map(math.isfinite, numbers.values())) or numbers["eval_episodes"] < 1:
        raise ZooError(f"{found} has no return that is a number")
    return numbers


def _made_by(found: Path, state: CheckpointState) -> dict[str, Any]:
    """Commit, versions and whose networks it began with: of the run that the checkpoint lies in, or as a slim
    checkpoint keeps them."""
    run_dir = run_dir_of(found)
    known: Any = state.metadata.get("made_by") if is_slim(state) else None
    if run_dir is not None:
        metadata = read_metadata(RunContext(run_dir.name, run_dir))
        git = metadata.get("git")
        known = {"commit": git.get("commit") if isinstance(git, dict) else None, "versions": metadata.get("versions")}
        parent = metadata.get("parent")
        known["parent"] = parent.get("step") if isinstance(parent, dict) else None
        if isinstance(git, dict) and git.get("modified") and known["commit"]:
            known["commit"] = f"{known['commit']} and changes that were not committed"
    known = known if isinstance(known, dict) else {}
    parent = known.get("parent")
    commit, versions = known.get("commit"), known.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    return {
        "commit": commit if isinstance(commit, str) else None,
        "versions": {str(package): str(version) for package, version in versions.items()},
        "parent": parent if isinstance(parent, int) else None,
    }


def _file_of(slim: CheckpointState) -> bytes:
    """The bytes of a slim checkpoint as a file."""
    with tempfile.TemporaryDirectory() as folder:
        return save_checkpoint(Path(folder) / f"agent{SUFFIX}", slim).read_bytes()
