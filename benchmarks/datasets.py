"""Makes the datasets that offline checks learn from, in data/, the same for the same seeds.

python benchmarks/datasets.py                                            those that take minutes
python benchmarks/datasets.py hopper-medium-replay --keep runs/data      one by name; the same command goes on where it was stopped
python benchmarks/datasets.py hopper-demos --from-campaign ../campaign   what is made of agents of the campaign

pendulum-replay        the replay buffer of SAC's first 5,000 steps on Pendulum-v1
mountaincar-demos      ten successful episodes of MountainCarContinuous-v0, by a rule: push the way the car moves
mountaincar-expert     ten episodes of MountainCar-v0, by a rule that reaches the top in about 105 steps
hopper-expert          ten episodes of a PPO agent after two million steps of Hopper-v5 (ten minutes)
hopper-medium          200,000 steps of a SAC agent that was stopped at a third of D4RL's expert return (a quarter of an hour)
hopper-medium-replay   all that three such agents had met until then (three quarters of an hour)
hopper-demos           ten greedy episodes of the campaign's best SAC agent on Hopper-v5; walker2d-demos, halfcheetah-demos likewise

Beside each file lies NAME.json with its checksum and what it holds, which is also recorded in benchmarks/results/datasets/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from learning import facts_of_the_machine
from rl_training.algorithms.base import Acting, Learner
from rl_training.artifacts.collection import add_references, add_returns, describe_dataset, export_replay
from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.data.dataset_files import read_npz, write_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_config import read_config
from rl_training.runtime.experience import collect, collect_from_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

DATA = Path("data")
RESULTS = Path(__file__).parent / "results" / "datasets"
QUICK = ("pendulum-replay", "mountaincar-demos", "mountaincar-expert")


class CannotBeMade(RuntimeError):
    """No repetition of the same command would make this dataset."""


class Level(NamedTuple):
    """Agents of SAC with bare defaults, each stopped by the first evaluation that reaches a return, and what is kept of them.

    Where ``drawn_steps`` is a number, that many steps of the (one) agent with its actions drawn; else everything in the replay
    buffers. An evaluation that stops an agent has ``episodes`` episodes, so that few lucky ones do not.
    """

    env_id: str
    target: float
    seeds: tuple[int, ...]
    drawn_steps: int | None
    random_return: float
    expert_return: float
    references: str
    most_steps: int = 500_000
    eval_interval: int = 2_500
    episodes: int = 20
    options: dict[str, Any] = {}


# D4RL's references for its Hopper, v2: scores between them can be set beside published ones
HOPPER = {"random_return": -20.272305, "expert_return": 3234.3, "references": "D4RL's own, for its Hopper v2"}
THIRD = HOPPER["expert_return"] / 3  # about where D4RL stopped its medium agents
LEVELS = {
    "hopper-medium": Level("Hopper-v5", THIRD, (400,), 200_000, **HOPPER),
    "hopper-medium-replay": Level("Hopper-v5", THIRD, (401, 402, 403), None, **HOPPER),
}
DEMOS = {  # the row of the campaign whose best agent demonstrates
    "hopper-demos": "sac/Hopper-v5_300k",
    "walker2d-demos": "sac/Walker2d-v5_300k",
    "halfcheetah-demos": "sac/HalfCheetah-v5_300k",
}
DEMONSTRATIONS = 10  # episodes


def trained_to(level: Level, seed: int, folder: Path) -> Path:
    """The run of an agent that has reached the level; goes on with what lies in the folder."""
    spec = get_algorithm_spec("sac")
    stopping = {"target_value": level.target, "patience": level.most_steps}
    options = {**level.options, "eval_interval": level.eval_interval, "early_stopping": stopping}
    config = TrainConfig(
        algo="sac", env_id=level.env_id, seed=seed, total_timesteps=level.most_steps, eval_episodes=level.episodes, threads=1,
        progress="off", output_dir=str(folder), algo_kwargs=options,
    )  # fmt: skip
    config = spec.complete(config)
    begun = next(folder.glob("*/config.yaml"), None)
    if begun and read_config(begun) != config:
        raise RuntimeError(f"{begun.parent} was begun with other options; keep these runs elsewhere")
    if begun is None:
        run_dir = spec.train(config).run_dir
    else:
        run_dir = begun.parent
        kind = how_it_ended(run_dir)
        if kind is None or not (kind is StopKind.EARLY or kind.reached_total):
            resume_training(run_dir)
    kind = how_it_ended(run_dir)
    if kind is not None and kind.reached_total:
        raise CannotBeMade(f"seed {seed} did not reach {level.target:g} within {level.most_steps:,} steps")
    if kind is not StopKind.EARLY:
        raise RuntimeError(f"seed {seed} was stopped; the same command goes on with it")
    return Path(run_dir)


def how_it_ended(run_dir: Path) -> StopKind | None:
    return recorded_stop_kind(json.loads((run_dir / "metadata.json").read_text()))


def last_evaluation(run_dir: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in reversed(lines) if "eval_return_mean" in line)


def of_level(level: Level, keep: Path) -> TransitionDataset:
    """What the agents of a level did, or met while they learned, with the level's references."""
    runs = [trained_to(level, seed, keep / str(seed)) for seed in level.seeds]
    if level.drawn_steps is None:
        data = joined([export_replay(run) for run in runs])
    else:
        (run,) = runs
        data = collect_from_checkpoint(run, steps=level.drawn_steps, deterministic=False, seed=level.seeds[0])
    ends = [last_evaluation(run) for run in runs]
    agents = [
        {"seed": seed, "step": end["step"], "eval_return_mean": end["eval_return_mean"]}
        for seed, end in zip(level.seeds, ends)
    ]
    how = {"algo": "sac", "stopped_at": level.target, "agents": agents, "replay": level.drawn_steps is None}
    data.meta["behaviour"] = how if level.drawn_steps is None else {**how, "deterministic": False}
    data.meta |= {name: getattr(level, name) for name in ("random_return", "expert_return", "references")}
    return data


def joined(parts: list[TransitionDataset]) -> TransitionDataset:
    """All rows, part after part; the last row of each ends an episode already."""
    columns = [part.columns() for part in parts]
    rows = {name: torch.cat([own[name] for own in columns]) for name in columns[0]}
    return TransitionDataset(**rows, meta={**parts[0].meta, "seed": [part.meta["seed"] for part in parts]})


def best_agent(campaign: Path, row: str) -> tuple[Path, dict[str, Any]]:
    """The run of a row's best seed, by the row's figure, and its result."""
    from campaign import Job, queue

    jobs = [job for job in queue(campaign / "queue.yaml") if job.row["name"] == row]
    places = [campaign / Job(job.row, job.seed).folder for job in jobs]
    if not places or not all((place / "result.json").exists() for place in places):
        raise RuntimeError(f"not all seeds of {row} are finished in {campaign}")
    figure = jobs[0].row.get("figure", "return_mean")
    results = [(json.loads((place / "result.json").read_text()), place) for place in places]
    result, place = max(results, key=lambda pair: pair[0][figure])
    config = next(place.glob("*/config.yaml"), None)
    if config is None:
        raise CannotBeMade(f"{row} seed {result['seed']} is recorded, but its run does not lie in {place}")
    return config.parent, result


def demonstrations(row: str, campaign: Path | None) -> TransitionDataset:
    """Greedy episodes of a row's best agent, which are the expert that scores relate to."""
    if campaign is None:
        raise SystemExit(f"say with --from-campaign in which folder the agents of {row} are")
    run, result = best_agent(campaign, row)
    data = collect_from_checkpoint(run, episodes=DEMONSTRATIONS, deterministic=True, seed=0)
    facts = {name: result[name] for name in ("seed", "return_mean", "git")}
    data.meta["behaviour"] |= {"row": row, **facts}
    data.meta["references"] = f"ten episodes of a random policy, and these {DEMONSTRATIONS}"
    add_references(data, read_config(run / "config.yaml"), seed=0, expert=float(data.returns().mean()))
    return data


def replay_of(config: TrainConfig, *, expert: float | None = None) -> TransitionDataset:
    """Train, and keep the experience; the best checkpoint is the expert unless another return is named."""
    with tempfile.TemporaryDirectory() as folder:
        result = get_algorithm_spec(config.algo).train(config.replace(output_dir=folder))
        data = export_replay(result.checkpoint_path)
        if expert is None:
            expert = evaluate_checkpoint(result.run_dir / "checkpoints" / "best.ckpt", 20)["eval_return_mean"]
    add_references(data, config, seed=0, expert=expert)
    return data


class WithTheMotion(Learner):
    """Push the way the car moves: the mountain car's textbook rule. A full push costs more than it gains."""

    def act(self, obs: np.ndarray, **_: Any) -> Acting:
        return Acting(np.where(obs[:, 1:] < 0, -0.8, 0.8).astype(np.float32))


class BetweenCurves(Learner):
    """Push right while the speed lies between two curves of the position: close to the fastest way up MountainCar-v0."""

    def act(self, obs: np.ndarray, **_: Any) -> Acting:
        x, v = obs[:, 0], obs[:, 1]
        low = np.minimum(-0.09 * (x + 0.25) ** 2 + 0.03, 0.3 * (x + 0.9) ** 4 - 0.008)
        return Acting(np.where((low <= v) & (v <= -0.07 * (x + 0.38) ** 2 + 0.07), 2, 0))


def by_a_rule(env_id: str, rule: Learner, text: str, at_least: float) -> TransitionDataset:
    config = TrainConfig(algo="bc", env_id=env_id)
    data = collect(config, rule, episodes=10, seed=0)
    assert data.returns().min() > at_least, "every demonstration reaches the top"
    data.meta["behaviour"] = {"algo": f"a rule: {text}"}
    add_references(data, config, seed=0, expert=float(data.returns().mean()))
    return data


def hopper_expert() -> TransitionDataset:
    """PPO with the settings that are usual for Hopper, on eight environments."""
    options = {
        "num_steps": 256, "minibatch_size": 64, "update_epochs": 10, "gamma": 0.99, "normalize_observations": True,
        "normalize_rewards": True, "learning_rate_schedule": "linear",
    }  # fmt: skip
    config = TrainConfig(
        algo="ppo", env_id="Hopper-v5", seed=1, num_envs=8, total_timesteps=2_000_000, eval_episodes=5, threads=1,
        algo_kwargs=options,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = get_algorithm_spec("ppo").train(config.replace(output_dir=folder))
        data = collect_from_checkpoint(result.checkpoint_path, episodes=10, deterministic=True, seed=0)
    add_references(data, config, seed=0, expert=float(data.returns().mean()))
    return data


def make(name: str, keep: Path, campaign: Path | None = None) -> TransitionDataset:
    """The dataset, from what lies in ``keep`` as far as that goes."""
    if name in LEVELS:
        return of_level(LEVELS[name], keep)
    if name in DEMOS:
        return demonstrations(DEMOS[name], campaign)
    if name == "mountaincar-demos":
        return by_a_rule("MountainCarContinuous-v0", WithTheMotion(), "push the way the car moves", 90)
    if name == "mountaincar-expert":
        return by_a_rule("MountainCar-v0", BetweenCurves(), "push right while the speed is between two curves", -200)
    if name == "hopper-expert":
        return hopper_expert()
    whole = read_config("configs/sac/pendulum.yaml", {"seed": 1, "threads": 1})
    with tempfile.TemporaryDirectory() as folder:
        expert = get_algorithm_spec("sac").train(whole.replace(output_dir=folder))
        reached = evaluate_checkpoint(expert.checkpoint_path, 20)["eval_return_mean"]
    return replay_of(whole.replace(total_timesteps=5_000), expert=reached)


def names() -> tuple[str, ...]:
    return (*QUICK, "hopper-expert", *LEVELS, *DEMOS)


def known_facts(folder: Path, name: str) -> dict[str, Any] | None:
    """What is noted of a dataset that lies in the folder; None if it has not been made."""
    noted = folder / f"{name}.json"
    made = noted.exists() and (folder / f"{name}.npz").exists()
    facts: dict[str, Any] | None = json.loads(noted.read_text()) if made else None
    return facts


def facts_of(name: str, data: TransitionDataset) -> dict[str, Any]:
    """What a record should say of a dataset: checksum of its columns, what they hold, where they come from."""
    held, low, high = describe_dataset(data), *(data.meta.get(n) for n in ("random_return", "expert_return"))
    mean, spread = held["return_mean"], None if low is None or high is None else high - low
    shown = ("transitions", "episodes", "unfinished", "return_mean", "return_quantiles", "length_mean")
    return {
        "name": name,
        "sha256": data.fingerprint(),
        **{fact: held[fact] for fact in shown},
        "score_mean": None if mean is None or not spread else 100 * (mean - low) / spread,
        "random_return": low,
        "expert_return": high,
        "references": data.meta.get("references", "ten episodes of a random policy, and of the expert"),
        "env_id": data.meta.get("env_id"),
        "behaviour": data.meta["behaviour"],
        **facts_of_the_machine(),
    }


def note(folder: Path, name: str, data: TransitionDataset) -> dict[str, Any]:
    facts = facts_of(name, data)
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def make_dataset(name: str, folder: Path, *, keep: Path | None = None, campaign: Path | None = None) -> dict[str, Any]:
    """Make ``folder/NAME.npz`` and its note, unless they are there; returns what the note says."""
    if facts := known_facts(folder, name):
        return facts
    path, part = folder / f"{name}.npz", folder / f"{name}.part.npz"
    if path.exists() and name in (*LEVELS, *DEMOS):
        raise SystemExit(
            f"{path} has no {name}.json beside it: an earlier command made it, in another way; move it away"
        )
    if path.exists():  # made before there were notes, in the same way
        return note(folder, name, read_npz(path))
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as runs:
        data = make(name, Path(runs), campaign)
    add_returns(data)
    write_npz(part, data)
    facts = note(folder, name, read_npz(part))
    os.replace(part, path)  # last: a file under this name has its note
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: the quick ones)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the runs there, and go on with those that are"
    )
    parser.add_argument("--from-campaign", type=Path, metavar="FOLDER", help="where the campaign's agents are")
    args = parser.parse_args()
    if unknown := set(args.names) - {*names()}:
        parser.error(f"no dataset is called {', '.join(sorted(unknown))}")
    for name in args.names or QUICK:
        keep = args.keep / name if args.keep else None
        facts = make_dataset(name, DATA, keep=keep, campaign=args.from_campaign)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        score = "" if facts["score_mean"] is None else f", normalised {facts['score_mean']:.1f}"
        print(
            f"{DATA / name}.npz: {facts['transitions']:,} transitions, {facts['episodes']} episodes, "
            f"return {facts['return_mean']:.1f}{score}, sha256 {facts['sha256']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
