"""What DQN's trainer adds: exploration that fades, and updates per environment step."""

import json

import pytest

from rl_training.experiment.registry import get_algorithm_spec


def test_exploration_fades_over_its_part_of_the_run(tiny):
    options = {"epsilon_schedule": {"type": "linear", "start": 1.0, "end": 0.2}, "exploration_fraction": 0.5}
    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=101, log_interval=1, **options))
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    epsilon = {line["step"]: line["epsilon"] for line in lines if "epsilon" in line}
    assert epsilon[1] == pytest.approx(1.0)  # logged after the step it was used for
    assert epsilon[26] == pytest.approx(1 - 0.8 * 25 / 49)
    assert epsilon[51] == epsilon[101] == pytest.approx(0.2)


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_the_number_of_environments_does_not_change_the_update_ratio(tiny, num_envs):
    changes = {"learning_starts": 20, "batch_size": 16, "train_frequency": 2, "gradient_updates_per_step": 3}
    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=100, num_envs=num_envs, **changes))
    assert result.metrics["gradient_steps"] == pytest.approx((100 - 20) / 2 * 3, abs=3 * num_envs)


def test_early_stopping_by_target(tiny):
    early = {"patience": 100, "target_value": 1.0}
    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=400, eval_interval=50, early_stopping=early))
    assert result.metrics["global_step"] == 50
    assert "reached its target" in json.loads((result.run_dir / "metadata.json").read_text())["status"]
