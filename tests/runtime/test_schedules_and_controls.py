"""Schedules and early stopping, against values worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training import DQN, PPO, Callback
from rl_training.base.options import ConfigError
from rl_training.base.stop_kind import StopKind
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.controls import EarlyStoppingCallback, EarlyStoppingConfig, build_control_callbacks
from rl_training.runtime.run import crossings
from rl_training.runtime.schedules import (
    Schedules,
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


def test_a_schedule_runs_from_the_end_of_its_warm_up_to_the_last_step():
    payload = {"type": "linear", "start": 2.0, "end": 0.0}
    values = [resolve_schedule_value(payload, step=s, total_steps=7, warmup_steps=2) for s in range(8)]
    assert values == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0])
    assert resolve_schedule_value(payload, step=3, total_steps=4, warmup_steps=3) == 2.0  # no step is left to descend


def test_a_constant_stays_what_it_starts_from():
    assert ScheduleSpec() == ScheduleSpec("constant", start=1.0, end=0.0)
    assert [ScheduleSpec("constant", 3.0, 1.0).value(progress) for progress in (0.0, 0.5, 1.0)] == [3.0, 3.0, 3.0]


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
    for value in (True, "1", math.nan, math.inf):
        with pytest.raises(ValueError, match="start of a schedule must be a number"):
            resolve_schedule_spec({"type": "linear", "start": value})


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
    assert apply_learning_rate_scale([], 0.5) == 0.0


class Scheduled:
    """A learner as far as schedules know one: an optimizer of rate 0.5 that counts, and two coefficients."""

    CONTROLS = ("clip", "share")

    def __init__(self):
        self.scales, self.controls = [], []

    def optimizers(self):
        return [self]

    def scale_lr(self, scale):
        self.scales.append(scale)
        return 0.5 * scale

    def set_control(self, name, value):
        self.controls.append((name, value))


def scheduled(steps, *, total=5, **options):
    """The learner after these steps, and the schedules' values."""
    defaults = {"learning_rate_schedule": None, "warmup_steps": 0, "schedule_steps": lambda name, total: total}
    agent = Scheduled()
    schedules = Schedules(agent, SimpleNamespace(**{**defaults, **options}), total)
    assert agent.scales == [1.0] and schedules.values == {"lr_scale": 1.0, "learning_rate": 0.5}
    for step in steps:
        schedules.apply(agent, step)
    return agent, schedules.values


def test_without_a_schedule_nothing_is_set_again():
    agent, values = scheduled(range(5))
    assert agent.scales == [1.0] and agent.controls == [] and values == {"lr_scale": 1.0, "learning_rate": 0.5}
    assert scheduled(range(5), learning_rate_schedule="constant")[0].scales == [1.0]


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({"learning_rate_schedule": "linear"}, [0.75, 0.5, 0.25, 0.0]),
        ({"learning_rate_schedule": {"type": "constant", "start": 0.5}}, [0.5]),
        ({"learning_rate_schedule": {"type": "constant", "start": 0.0}}, [0.0]),
        ({"warmup_steps": 2}, [0.5, 1.0]),
        ({"learning_rate_schedule": "linear", "warmup_steps": 2}, [0.5, 1.0, 0.5, 0.0]),
    ],
)
def test_a_learning_rate_is_set_when_its_scale_changes(options, scales):
    agent, values = scheduled([0, 1, 2, 2, 3, 4], **options)
    assert agent.scales == [1.0, *scales]
    assert values == {"lr_scale": scales[-1], "learning_rate": 0.5 * scales[-1]} and agent.controls == []


def test_a_coefficient_is_scheduled_over_its_own_steps_and_without_the_rates_warm_up():
    options = {"clip": 0.4, "clip_schedule": "linear", "share_schedule": {"type": "linear", "end": 3.0}}
    over = lambda name, total: 3 if name == "clip" else total  # noqa: E731
    agent, values = scheduled(range(5), warmup_steps=2, schedule_steps=over, **options)
    assert [value for name, value in agent.controls if name == "clip"] == pytest.approx([0.4, 0.2, 0.0])
    assert [value for name, value in agent.controls if name == "share"] == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert agent.scales == [1.0, 0.5, 1.0] and values["clip"] == 0.0 and values["share"] == 3.0


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


def test_a_target_that_is_reached_at_the_first_step_ends_there():
    assert watch([5], patience=9, target_value=5) == 0


def test_evaluations_of_the_initial_agent_do_not_count():
    callback, state = EarlyStoppingCallback(EarlyStoppingConfig(patience=1, target_value=5)), TrainerState()
    state.warming_up = True
    for _ in range(3):
        callback.on_eval_end(state, {"eval_return_mean": 9})
    assert not state.should_stop and callback.state_dict() == {"best": None, "waited": 0}


def test_the_kind_of_the_stop_and_its_reason_are_told():
    callback, state = EarlyStoppingCallback(EarlyStoppingConfig(patience=1)), TrainerState()
    for value in (2.5, 2):
        callback.on_eval_end(state, {"eval_return_mean": value})
    assert state.stop_kind is StopKind.EARLY
    assert state.stop_reason == "eval_return_mean has not improved for 1 evaluations (best 2.5)"


def test_anything_with_request_stop_may_be_stopped():
    reasons = []
    trainer = SimpleNamespace(global_step=3, request_stop=reasons.append)
    EarlyStoppingCallback(EarlyStoppingConfig(patience=1, target_value=1)).on_eval_end(trainer, {"eval_return_mean": 2})
    assert reasons == ["eval_return_mean 2 reached its target 1"]


def test_patience_is_saved():
    callback = EarlyStoppingCallback(EarlyStoppingConfig(patience=9))
    for value in (2, 1, 1):
        callback.on_eval_end(TrainerState(), {"eval_return_mean": value})
    again = EarlyStoppingCallback(callback.config)
    again.load_state_dict(callback.state_dict())
    assert (again.best, again.waited) == (callback.best, callback.waited) == (2, 2)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match="'eval_reward' is not among"):
        EarlyStoppingCallback(EarlyStoppingConfig(metric="eval_reward", patience=1)).on_eval_end(
            SimpleNamespace(), {"eval_return_mean": 1}
        )


def test_controls_are_built_from_the_config():
    config = TrainConfig(algo="ppo", env_id="x", algo_kwargs={"early_stopping": {"patience": 4}})
    (callback,) = build_control_callbacks(config)
    assert callback.config.patience == 4
    made = EarlyStoppingConfig(patience=2)
    given = TrainConfig(algo="ppo", env_id="x", algo_kwargs={"early_stopping": made})
    assert build_control_callbacks(given)[0].config is made
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
