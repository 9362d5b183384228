"""Sparse rewards that are learned from in hindsight, and not without it."""

import pytest

from goal_toys import EndingBitFlips, Point
from rl_training import DQN, SAC

BITS = {"total_timesteps": 2_000, "hidden_sizes": [128], "learning_rate": 2e-3, "gamma": 0.9, "batch_size": 64}
BITS |= {"train_frequency": 1, "exploration_fraction": 0.3, "target_update_interval": 50}
REACH = {"total_timesteps": 1_000, "hidden_sizes": [48, 48], "learning_rate": 3e-3, "gamma": 0.9, "batch_size": 64}
REACH |= {"tau": 0.02, "learning_starts": 200, "initial_random_steps": 200}
TASKS = {"eight bits": (DQN, EndingBitFlips, BITS), "a point": (SAC, Point, REACH)}


def success(task, folder, **options):
    kind, env, common = TASKS[task]
    shared = {"seed": 1, "threads": 1, "compile": False, "eval_interval": 0, "eval_episodes": 50, "loggers": ()}
    agent = kind(env, output_dir=folder, progress="off", **shared, **common, **options)
    return agent.learn().metrics


@pytest.mark.filterwarnings("ignore:.*no time limit")
@pytest.mark.parametrize("task", TASKS)
def test_goals_are_reached_with_hindsight_and_not_without_it(task, tmp_path):
    """By chance, eight bits become the goal in one episode of thirty. The best agent flips the four bits that differ, on
    average, and pays 1 for each but the last."""
    learned = success(task, tmp_path, hindsight="future")
    assert learned["eval_success_rate"] >= 0.96
    if task == "eight bits":
        assert learned["eval_return_mean"] > -3.3
    assert success(task, tmp_path)["eval_success_rate"] <= 0.3
