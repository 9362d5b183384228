"""Makes the datasets that the offline checks learn from, in data/, the same for the same seeds.

python benchmarks/datasets.py                              those that take minutes
python benchmarks/datasets.py hopper-medium-replay         one by name

pendulum-replay        the replay buffer of SAC's first 5,000 steps on Pendulum-v1
mountaincar-demos      ten successful episodes of MountainCarContinuous-v0, by a rule: push the way the car moves
mountaincar-expert     ten episodes of MountainCar-v0, by a rule that reaches the top in about 105 steps
hopper-expert          ten episodes of a PPO agent after two million steps of Hopper-v5 (ten minutes)
hopper-medium-replay   the replay buffer of SAC's first 100,000 steps on Hopper-v5 (half an hour)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Acting, Learner
from rl_training.artifacts.collection import add_references, add_returns, describe_dataset, export_replay
from rl_training.data.dataset_files import write_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_config import read_config
from rl_training.runtime.experience import collect, collect_from_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint

DATA = Path("data")
QUICK, SLOW = ("pendulum-replay", "mountaincar-demos", "mountaincar-expert"), ("hopper-medium-replay", "hopper-expert")


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


def make(name: str) -> TransitionDataset:
    if name == "mountaincar-demos":
        return by_a_rule("MountainCarContinuous-v0", WithTheMotion(), "push the way the car moves", 90)
    if name == "mountaincar-expert":
        return by_a_rule("MountainCar-v0", BetweenCurves(), "push right while the speed is between two curves", -200)
    if name == "hopper-expert":
        return hopper_expert()
    if name == "pendulum-replay":
        whole = read_config("configs/sac/pendulum.yaml", {"seed": 1, "threads": 1})
        with tempfile.TemporaryDirectory() as folder:
            expert = get_algorithm_spec("sac").train(whole.replace(output_dir=folder))
            reached = evaluate_checkpoint(expert.checkpoint_path, 20)["eval_return_mean"]
        return replay_of(whole.replace(total_timesteps=5_000), expert=reached)
    options = {"initial_random_steps": 5_000, "learning_starts": 5_000}
    config = TrainConfig(
        algo="sac", env_id="Hopper-v5", seed=1, total_timesteps=100_000, eval_episodes=5, threads=1, algo_kwargs=options
    )
    return replay_of(config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: the quick ones)")
    names = parser.parse_args().names or QUICK
    if unknown := set(names) - {*QUICK, *SLOW}:
        parser.error(f"no dataset is called {', '.join(sorted(unknown))}")
    for name in names:
        path = DATA / f"{name}.npz"
        if path.exists():
            print(f"{path} is there already")
            continue
        data = make(name)
        add_returns(data)
        write_npz(path, data)
        facts = describe_dataset(data)
        print(
            f"{path}: {facts['transitions']:,} transitions, {facts['episodes']} episodes, return {facts['return_mean']:.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
