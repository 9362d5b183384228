"""A zoo of the campaign's agents: for every finished row the agent of the median seed, with a card that says what it reaches.

    python benchmarks/zoo.py FOLDER [--to zoo]

FOLDER is a campaign's (benchmarks/campaign.py), which is read and not changed, also while it is at work. Rows that answer a question
about settings (choice/, ablation/) give no agents. Run it again at any time: an agent that is there already is replaced, and agents
of rows that are not in FOLDER stay. Agents are never chosen by their score: it is the last checkpoint of the seed in the middle.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

QUESTIONS = ("choice/", "ablation/")
LICENCE = "MIT"


def finished(folder: Path) -> list[tuple[dict[str, Any], dict[int, dict[str, Any]]]]:
    """Every row all of whose seeds are done, with the result of each seed."""
    from campaign import Job, queue

    rows = {job.row["name"]: job.row for job in queue(folder / "queue.yaml")}
    found = []
    for row in (row for name, row in rows.items() if not name.startswith(QUESTIONS)):
        paths = {seed: folder / Job(row, seed).folder / "result.json" for seed in row["seeds"]}
        if all(path.exists() for path in paths.values()):
            found.append((row, {seed: json.loads(path.read_text()) for seed, path in paths.items()}))
    return found


def median_seed(row: dict[str, Any], results: dict[int, dict[str, Any]]) -> int:
    """The seed whose figure is the median; of an even number of seeds, that of the lower middle one."""
    figures = {seed: result[row.get("figure", "return_mean")] for seed, result in results.items()}
    middle = statistics.median_low(figures.values())
    return next(seed for seed, value in figures.items() if value == middle)


def command_of(row: dict[str, Any], seed: int) -> str | None:
    """The command that trains this agent; None where the row has no preset, and the config says it all."""
    if "preset" not in row:
        return None
    words = ["rl-training", "train", "--config", f"configs/{row['preset']}.yaml", "--seed", str(seed)]
    for name, value in {**row.get("set", {}), "threads": 1}.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def evaluation_of(result: dict[str, Any], episodes: int) -> dict[str, float]:
    """A run's result, by the names that evaluations have."""
    names = {"return_mean", "return_std", "return_min", "success_rate"} & set(result)
    return {f"eval_{name}": float(result[name]) for name in names} | {"eval_episodes": float(episodes)}


def facts_of(folder: Path, row: dict[str, Any], results: dict[int, dict[str, Any]], config: Any) -> dict[str, str]:
    """What the card says beside the agent's own facts."""
    from report import nearest, published

    figure = row.get("figure", "return_mean")
    each = ", ".join(f"{result['return_mean']:.4g} (seed {seed})" for seed, result in results.items())
    facts = {"returns of all seeds": each}
    if figure != "return_mean":
        each = ", ".join(f"{result[figure]:.4g} (seed {seed})" for seed, result in results.items())
        facts[f"{figure} of all seeds".replace("_", " ")] = each
    facts["chosen"] = "the seed of the median figure, its last checkpoint"
    record = {
        "config": config.plain(), "env_id": config.env_id, "algo": config.algo, "total_timesteps": config.total_timesteps,
    }  # fmt: skip
    if figure_of_others := nearest(record, published()):
        facts["published for the algorithm"] = figure_of_others
    path = folder / "records" / f"{row['name'].replace('/', '_')}.json"
    versions = json.loads(path.read_text())["versions"] if path.exists() and row.get("group") else {}
    if versions:
        facts["all packages"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return facts | {"licence": LICENCE}


def put(folder: Path, row: dict[str, Any], results: dict[int, dict[str, Any]], zoo: Path) -> str:
    """Put a row's agent into the zoo; returns what is to be said of it."""
    from campaign import Job
    from learning import EPISODES
    from rl_training.artifacts.zoo_adding import add_agent
    from rl_training.artifacts.zoo_card import LIMITS
    from rl_training.base.trust import modules_named
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.runs import find_checkpoint

    seed = median_seed(row, results)
    result, place = results[seed], folder / Job(row, seed).folder
    run_dir = next((path.parent for path in sorted(place.glob("*/config.yaml"))), None)
    if run_dir is None:  # its record was taken over from an earlier campaign
        return f"{row['name']}: left out, as the run of seed {seed} is not in this folder"
    path, state = find_checkpoint(run_dir, buffers=False)
    if state.trainer_state["step"] != result["steps"]:
        return f"{row['name']}: left out, as {path} is not the checkpoint that was judged"
    config = TrainConfig(**state.config)
    several = f"One of {len(results)} seeds; the others' returns are above. " if len(results) > 1 else ""
    agent = add_agent(
        path, zoo, name=row["name"],
        evaluation=evaluation_of(result, EPISODES), how_evaluated="the last checkpoint, with deterministic actions",
        facts=facts_of(folder, row, results, config), command=command_of(row, seed), limits=several + LIMITS,
        trust=modules_named(config.env_id, config.env_kwargs),  # the queue is ours, and the run repeats it
    )  # fmt: skip
    return f"{agent.name}: seed {seed}, return {agent.return_mean:.4g} ± {agent.return_std:.3g}, {agent.bytes:,} bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=Path("zoo"), metavar="DIR", help="the zoo's folder (default: zoo)")
    args = parser.parse_args()
    rows = finished(args.folder)
    for row, results in rows:
        print(put(args.folder, row, results, args.to), flush=True)
    if not rows:
        print("no row is finished yet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
