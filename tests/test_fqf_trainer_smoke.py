"""What FQF's trainer adds: fractions that are learned, watched and saved."""

import json

import pytest
import torch

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec


def test_fractions_are_logged_and_move(tiny):
    config = tiny("fqf", total_timesteps=200, fraction_learning_rate=1e-2, log_interval=50)
    result = get_algorithm_spec("fqf").train(config)
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    seen = [line for line in lines if "fraction_entropy" in line]
    assert seen and all(0 < line["fraction_min"] < 0.25 for line in seen)
    state = load_checkpoint(result.checkpoint_path).algorithm_state
    assert not torch.equal(state["q_network"]["fraction_head.bias"], torch.zeros(4))


def test_the_papers_rate_leaves_them_where_they_are(tiny):
    config = tiny("fqf", total_timesteps=200, fraction_learning_rate=2.5e-9, fraction_scaling="none")
    state = load_checkpoint(get_algorithm_spec("fqf").train(config).checkpoint_path).algorithm_state
    assert state["q_network"]["fraction_head.bias"].abs().max() < 1e-5


def test_a_learning_rate_schedule_reaches_both_optimizers(tiny):
    config = tiny("fqf", learning_rate_schedule="linear")
    result = get_algorithm_spec("fqf").train(config)
    assert result.metrics["lr_scale"] == pytest.approx(0, abs=0.02)
