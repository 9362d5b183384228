"""Schedules and early stopping, against values worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training import DQN, PPO, Callback
from rl_training.base.options import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig, build_control_callbacks
from rl_training.runtime.run import crossings
from rl_training.runtime.schedules import (
    ScheduleSpec,
    apply_learning_rate_scale,
    resolve_schedule_spec,
    resolve_schedule_value,
)
from rl_training.runtime.trainer import TrainerState


def test_linear_ends_at_the_last_step():
    assert resolve_schedule_value("linear", step=3, total_steps=4) == 0.0
    assert resolve_schedule_value("linear", step=0, total_steps=4) == 1.0


def test_warm_up_rises_from_the_first_step():
    assert [resolve_schedule_value("constant", step=s, total_steps=10, warmup_steps=4) for s in range(5)] == [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
    ]


def test_cosine_is_half_way_in_the_middle():
    payload = {"type": "cosine", "start": 3.0, "end": 1.0}
    assert resolve_schedule_value(payload, step=50, total_steps=101) == pytest.approx(2.0)
    assert resolve_schedule_value(payload, step=25, total_steps=101) == pytest.approx(
        1 + 2 * 0.5 * (1 + math.cos(math.pi / 4))
    )


def test_none_is_constant_and_names_are_checked():
    assert resolve_schedule_spec(None) == ScheduleSpec("constant", 1.0, 0.0)
    with pytest.raises(ValueError, match="schedule type must be one of"):
        resolve_schedule_spec("linaer")
    with pytest.raises(ValueError, match="unknown part of a schedule: 'stop'"):
        resolve_schedule_spec({"type": "linear", "stop": 1})


@given(st.integers(1, 10_000), st.integers(0, 20_000), st.sampled_from(["linear", "cosine", "constant"]))
def test_schedules_stay_between_their_ends(total, step, kind):
    value = resolve_schedule_value({"type": kind, "start": 2.0, "end": -1.0}, step=step, total_steps=total)
    assert -1.0 - 1e-9 <= value <= 2.0 + 1e-9


def test_learning_rates_scale_from_their_initial_value_for_torchs_optimizers_too():
    from rl_training.optim.flat import FlatAdam

    layer, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    theirs, ours = torch.optim.SGD(layer.parameters(), lr=0.5), FlatAdam(other.parameters(), lr=0.1)
    for scale in (0.5, 0.1):
        assert apply_learning_rate_scale([theirs, ours], scale) == pytest.approx(0.5 * scale)
        assert theirs.param_groups[0]["lr"] == pytest.approx(0.5 * scale)
        assert ours.lr.item() == pytest.approx(0.1 * scale)


@given(st.integers(1, 50), st.lists(st.integers(1, 30), max_size=30))
def test_crossings_add_up_however_the_steps_are_cut(interval, moves):
    step, count = 0, 0
    for move in moves:
        count += crossings(step, step + move, interval)
        step += move
    assert count == step // interval


def watch(values, **config):
    callback, state = EarlyStoppingCallback(EarlyStoppingConfig(**config)), TrainerState()
    for i, value in enumerate(values):
        state.global_step = i
        callback.on_eval_end(state, {"eval_return_mean": value})
        if state.should_stop:
            return i
    return None


def test_patience_counts_evaluations_without_improvement():
    assert watch([1, 2, 3, 3, 3], patience=2) == 4
    assert watch([1, 2, 1, 3, 1], patience=2) is None
    assert watch([1, 1.5, 1.9], patience=2, min_delta=1.0) == 2
    assert watch([3, 2, 1], patience=1, mode="min") is None


def test_the_target_ends_at_once_but_not_before_min_steps():
    assert watch([1, 5, 9], patience=9, target_value=5) == 1
    assert watch([9, 9, 9], patience=9, target_value=5, min_steps=2) == 2


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="'eval_reward' is not among"):
        EarlyStoppingCallback(EarlyStoppingConfig(metric="eval_reward", patience=1)).on_eval_end(
            SimpleNamespace(), {"eval_return_mean": 1}
        )


def test_controls_are_built_from_the_config():
    config = TrainConfig(algo="ppo", env_id="x", algo_kwargs={"early_stopping": {"patience": 4}})
    (callback,) = build_control_callbacks(config)
    assert callback.config.patience == 4
    assert build_control_callbacks(TrainConfig(algo="ppo", env_id="x")) == []


def test_a_typo_in_early_stopping_is_named_where_it_stands():
    from rl_training.experiment.registry import get_algorithm_spec

    config = TrainConfig(algo="ppo", env_id="x", algo_kwargs={"early_stopping": {"patiense": 4, "patience": 1}})
    with pytest.raises(
        ConfigError,
        match=r"algo_kwargs\.early_stopping.patiense: unknown option of early_stopping; did you mean 'patience'",
    ):
        get_algorithm_spec("ppo").options(config)


def test_a_schedule_without_a_start_begins_at_the_option(tiny):
    seen = []

    class Watch(Callback):
        def on_update_end(self, trainer, result):
            seen.append(float(trainer.algorithm._clip_coef))

    PPO(tiny("ppo", clip_coef=0.3, clip_coef_schedule="linear")).learn(callbacks=[Watch()])
    assert seen[0] == pytest.approx(0.3) and seen[-1] < 0.3


@pytest.mark.parametrize(
    "schedule", [None, "constant", {"type": "linear", "end": 0.1}, {"type": "linear", "start": 2.0, "end": 0.0}]
)
def test_exploration_needs_a_share_to_start_from(tiny, schedule):
    with pytest.raises(ConfigError, match=r"algo_kwargs\.epsilon_schedule: (needs the share|shares of random actions)"):
        DQN(tiny("dqn", epsilon_schedule=schedule))
