"""The parts of a run, each alone, and the kind of end that a run records."""

import json
import math
import os
import re
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training import Callback, TrainConfig
from rl_training.algorithms.base import UpdateResult
from rl_training.base import signals
from rl_training.base.signals import StoppedAtOnce, stop_signals
from rl_training.base.stop_kind import StopKind, recorded_stop_kind
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import RunContext
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.clock import Clock, Due, crossings
from rl_training.runtime.counters import Counters
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.notes import Notes
from rl_training.runtime.reporting import Reporter
from rl_training.runtime.saving import Saver, TrainingFailure
from rl_training.runtime.schedules import Schedules
from rl_training.runtime.stopping import Stopping
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training
from rl_training.sweeps.plan import Job, job_status
from toys import rows_of


def train(config, **arguments):
    return get_algorithm_spec(config.algo).train(config, **arguments)


def facts_of(folder):
    (path,) = folder.glob("*/metadata.json")
    return json.loads(path.read_text())


# ---- counters and random streams


def test_counters_save_what_a_resumed_run_needs():
    counters = Counters(seed=1)
    counters.step, counters.update_count, counters.gradient_steps, counters.epoch = 5, 2, 8, 1
    assert [counters.count("fits"), counters.count("fits")] == [1, 2]
    counters.set_reference_returns({"random_return": 1, "expert_return": None, "other": 3})
    state = counters.state_dict()
    drawn = torch.rand(3)
    fresh = Counters(seed=2)
    fresh.load_state_dict(state)
    assert torch.equal(torch.rand(3), drawn)
    assert fresh.counters == {"fits": 2} and fresh.references == {"random_return": 1.0}
    assert fresh.totals() == {"gradient_steps": 8, "update_count": 2, "epoch": 1} and fresh.step == 5
    assert not fresh.untrained and Counters(0).untrained


def test_random_streams_differ_by_name_and_repeat_by_seed():
    draw = lambda seed, name: Counters(seed).rng(name).generator.integers(2**31)  # noqa: E731
    assert draw(0, "replay") == draw(0, "replay") != draw(0, "exploration")
    assert draw(0, "replay") != draw(1, "replay")


# ---- the clock


def clock_of(total, log=None, save=None, evaluate=None):
    config = TrainConfig(algo="ppo", env_id="x", total_timesteps=total, log_interval=log, checkpoint_interval=save)
    return Clock(config, evaluate, 0)


def test_a_clock_fires_what_was_crossed_since_the_last_call():
    clock = clock_of(100, log=10, save=30, evaluate=25)
    assert clock.next_step == 1  # the progress bar moves a tenth of a log interval at a time
    assert clock.due(9) == Due(evaluate=False, log=False, save=False)
    assert clock.due(31) == Due(evaluate=True, log=True, save=True)
    assert clock.due(32) == Due(evaluate=False, log=False, save=False)


def test_at_the_total_a_clock_only_logs():
    clock = clock_of(100, log=1_000, save=100, evaluate=100)
    assert clock.next_step == 100
    assert clock.due(100) == Due(evaluate=False, log=True, save=False)


def test_an_evaluation_interval_of_zero_never_fires_on_the_way():
    clock = clock_of(100, log=10, save=10, evaluate=0)
    assert not any(clock.due(step).evaluate for step in range(1, 101))


def test_open_intervals_are_a_hundredth_and_a_twentieth_of_the_run():
    clock = clock_of(1_000)
    fired = [clock.due(step) for step in range(1, 1_001)]
    assert [sum(kind) for kind in zip(*fired)] == [19, 100, 19]  # the end itself evaluates and saves


@given(st.integers(1, 30), st.integers(0, 30), st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_before_the_next_step_nothing_is_ever_due(log, evaluate, moves):
    clock, step = clock_of(10_000, log=log, save=7, evaluate=evaluate), 0
    for move in moves:
        following, before, step = clock.next_step, step, step + move
        due = clock.due(step)
        assert due.log == bool(crossings(before, step, log)) and due.save == bool(crossings(before, step, 7))
        assert not any(due) or following <= step


# ---- schedules


class Learning:
    """A learner's side of schedules: an optimizer of torch's, and a control that counts how often it is set."""

    CONTROLS = ("clip_coef",)

    def __init__(self):
        self.optimizer, self.sets = torch.optim.SGD([torch.zeros(1)], lr=0.5), []

    def optimizers(self):
        return [self.optimizer]

    def set_control(self, name, value):
        self.sets.append((name, value))


def scheduled(**changes):
    options = {"learning_rate_schedule": None, "warmup_steps": 0, "clip_coef": 0.2, "clip_coef_schedule": None}
    return SimpleNamespace(**{**options, **changes}, schedule_steps=lambda name, total: total)


def test_schedules_report_the_values_in_force():
    agent = Learning()
    schedules = Schedules(agent, scheduled(learning_rate_schedule="linear", clip_coef_schedule="linear"), 11)
    assert schedules.values == {"lr_scale": 1.0, "learning_rate": 0.5}
    schedules.apply(agent, 5)
    assert schedules.values == pytest.approx({"lr_scale": 0.5, "learning_rate": 0.25, "clip_coef": 0.1})
    assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(0.25)


def test_a_value_that_stays_is_set_once():
    agent = Learning()
    schedules = Schedules(agent, scheduled(clip_coef_schedule={"type": "constant", "start": 0.3}), 10)
    for step in range(5):
        schedules.apply(agent, step)
    assert agent.sets == [("clip_coef", 0.3)]


def test_without_schedules_nothing_is_set():
    agent = Learning()
    schedules = Schedules(agent, scheduled(), 10)
    schedules.apply(agent, 9)
    assert agent.sets == [] and schedules.values == {"lr_scale": 1.0, "learning_rate": 0.5}


# ---- stopping


def test_the_first_request_to_stop_gives_reason_and_kind():
    trainer = TrainerState()
    trainer.request_stop("enough")
    trainer.request_stop("max_updates=1 reached", StopKind.BUDGET)
    assert (trainer.should_stop, trainer.stop_reason, trainer.stop_kind) == (True, "enough", StopKind.REQUESTED)


def test_budgets_stop_at_their_number_and_not_before():
    counters = Counters(0)
    for limits, name in (({"max_updates": 2}, "update_count"), ({"max_epochs": 2}, "epoch")):
        trainer = TrainerState()
        stopping = Stopping(trainer, **limits)
        setattr(counters, name, 1)
        assert not stopping.check_budgets(counters) and not trainer.should_stop
        setattr(counters, name, 2)
        assert stopping.check_budgets(counters) and trainer.stop_kind is StopKind.BUDGET
        assert trainer.stop_reason == f"{next(iter(limits))}=2 reached"
        setattr(counters, name, 0)


def test_a_run_at_its_total_is_finished_whatever_was_requested():
    trainer, counters = TrainerState(), Counters(0)
    stopping, counters.step = Stopping(trainer), 10
    assert stopping.kind(counters, 10) is StopKind.UNTRAINED
    counters.gradient_steps = 1
    stopping.on_signal(signal.SIGTERM)
    assert stopping.kind(counters, 10) is StopKind.FINISHED
    assert stopping.kind(counters, 11) is StopKind.SIGNAL and trainer.stop_reason == "received SIGTERM"
    assert stopping.kind(counters, 10, complete=False) is StopKind.SIGNAL


def test_setting_should_stop_alone_counts_as_a_request():
    trainer = TrainerState(should_stop=True)
    assert Stopping(trainer).kind(Counters(0), 10) is StopKind.REQUESTED


def test_a_second_signal_interrupts_and_handlers_are_put_back(monkeypatch):
    heard, before = [], {number: signal.getsignal(number) for number in signals.SIGNALS}
    with pytest.raises(StoppedAtOnce), stop_signals(heard.append):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # at once: a terminal that closes sends several
        assert heard == [signal.SIGHUP]
        monkeypatch.setattr(signals, "ECHO", 0.0)
        os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in signals.SIGNALS} == before


def test_a_hangup_that_is_ignored_stays_ignored():
    """As it is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda number: pytest.fail(f"heard {number}")):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_deadline_does_not_end_a_save_and_counts_again_after_it():
    heard = []
    with pytest.raises(StoppedAtOnce), stop_signals(heard.append, grace=0.05) as stops:  # noqa: PT012
        with stops.saving():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        assert heard == [signal.SIGTERM]
        time.sleep(30)  # until the deadline


# ---- saving


def evaluated(best):
    return SimpleNamespace(best=best, metrics={})


class TinyLoop(Loop):
    """A loop whose agent is one tensor."""

    def __init__(self, weight):
        self.agent = SimpleNamespace(state_dict=lambda: {"weight": weight})


def test_a_bad_state_is_never_saved_over_a_good_one(tmp_path):
    saver, counters = Saver(RunContext("x", tmp_path), TrainConfig(algo="ppo", env_id="x")), Counters(0)
    good = saver.save(TinyLoop(torch.ones(1)), counters, evaluated(2.5))
    assert load_checkpoint(good).metadata["best_eval"] == 2.5
    counters.step = 1
    with pytest.raises(TrainingFailure, match=rf"weight is not finite at step 1; the last good checkpoint is {good}"):
        saver.save(TinyLoop(torch.tensor([float("nan")])), counters, evaluated(None))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [good.name]


def test_a_step_is_saved_once_and_only_the_newest_are_kept(tmp_path):
    config = TrainConfig(algo="ppo", env_id="x", keep_checkpoints=2)
    saver, counters = Saver(RunContext("x", tmp_path), config), Counters(0)
    first = saver.save(TinyLoop(torch.zeros(1)), counters, evaluated(None))
    saver.save(TinyLoop(torch.ones(1)), counters, evaluated(None))
    assert load_checkpoint(first).algorithm_state["weight"].item() == 0
    for counters.step in (1, 2, 3):
        saver.save(TinyLoop(torch.zeros(1)), counters, evaluated(None))
    assert sorted(path.name for path in first.parent.iterdir()) == ["step_0000000002.ckpt", "step_0000000003.ckpt"]


def test_the_best_agent_is_saved_alone(tmp_path):
    saver = Saver(RunContext("x", tmp_path), TrainConfig(algo="ppo", env_id="x"))
    saver.save_best(TinyLoop(torch.ones(1)).agent, Counters(0), evaluated(1.0))
    assert load_checkpoint(tmp_path / "checkpoints" / "best.ckpt").buffer_state is None


def test_a_checkpoint_without_notes_has_nothing_left_to_do():
    assert Notes.of({}, 40) == Notes(attended=40)
    noted = Notes(32, 30, {"loss": 1.5}, {"rows": 3}, {"epsilon": 0.1})
    assert Notes.of(noted.saved(), 40) == noted


@pytest.mark.parametrize(
    "wrong",
    [
        {"attended": 41},
        {"attended": True},
        {"evaluated": "5"},
        {"update_metrics": [1.0]},
        {"loop_metrics": {"rows": "many"}},
        {"schedules": None},
    ],
)
def test_notes_that_make_no_sense_are_refused_in_one_line(wrong):
    with pytest.raises(CheckpointError, match=f"note '{next(iter(wrong))}'"):
        Notes.of({"notes": {**Notes(32).saved()["notes"], **wrong}}, 40)
    with pytest.raises(CheckpointError, match="no mapping"):
        Notes.of({"notes": 5}, 40)


# ---- metrics and callbacks


def test_later_metrics_replace_earlier_ones_of_the_same_name():
    reporter = Reporter(TrainConfig(algo="ppo", env_id="x"))
    assert reporter.metrics() == {}
    reporter.update = UpdateResult({"loss": 1.0, "kl": 0.1}, 1)
    reporter.note(kl=0.2, beta=0.5)
    assert reporter.metrics({"lr_scale": 1.0}, {"beta": 0.6}) == {"loss": 1.0, "kl": 0.2, "beta": 0.6, "lr_scale": 1.0}


def test_only_overridden_hooks_are_called_and_only_states_that_exist_are_saved():
    class Ends(Callback):
        seen = 0

        def on_train_end(self, trainer, result):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    callbacks = CallbackList([Callback(), ends := Ends()])
    assert callbacks.hooks("on_update_end") == []
    callbacks.call("on_train_end", TrainerState(), None)
    assert callbacks.state_dict() == {"1:Ends": {"seen": 1}}
    callbacks.load_state_dict({"1:Ends": {"seen": 4}, "9:Gone": {}})
    assert ends.seen == 4


def test_only_off_policy_loops_yield_in_the_middle_of_a_step():
    assert TinyLoop(torch.zeros(1)).mid_step is False
    loop = OffPolicyLoop.__new__(OffPolicyLoop)
    for loop.stepped in (True, False):
        assert loop.mid_step is loop.stepped


# ---- how a run ended


class At(Callback):
    """Does something once at an environment step."""

    def __init__(self, step, action):
        self._step, self._action = step, action

    def on_collect_end(self, trainer, result):
        if trainer.global_step == self._step:
            self._action(trainer)


def fail(trainer):
    raise OSError("the disk is gone")


ENDS = {  # kind: options, what happens at step 40, the status line
    StopKind.FINISHED: ({}, None, "finished"),
    StopKind.UNTRAINED: ({"learning_starts": 200}, None, "finished without an update"),
    StopKind.EARLY: (
        {"eval_interval": 30, "early_stopping": {"patience": 9, "target_value": 0.0}},
        None,
        r"stopped: eval_return_mean \d+ reached its target 0",
    ),
    StopKind.BUDGET: ({"max_updates": 4}, None, "stopped: max_updates=4 reached"),
    StopKind.REQUESTED: ({}, lambda trainer: trainer.request_stop("enough"), "stopped: enough"),
    StopKind.SIGNAL: ({}, lambda _: os.kill(os.getpid(), signal.SIGTERM), "stopped: received SIGTERM"),
    StopKind.FAILED: ({}, fail, "failed"),
}


@pytest.mark.filterwarnings("ignore:the first update comes")
@pytest.mark.parametrize("kind", StopKind)
def test_a_run_records_the_kind_of_its_end(kind, tiny, tmp_path):
    options, action, status = ENDS[kind]
    callbacks = [] if action is None else [At(40, action)]
    if kind is StopKind.FAILED:
        with pytest.raises(OSError, match="the disk is gone"):
            train(tiny("dqn", **options), callbacks=callbacks)
    else:
        train(tiny("dqn", **options), callbacks=callbacks)
    facts = facts_of(tmp_path)
    assert facts["stop_kind"] == kind and recorded_stop_kind(facts) is kind
    assert re.fullmatch(status, facts["status"])
    assert facts["stop_reason"] == (facts["status"].removeprefix("stopped: ") if "stopped" in status else None)


def test_the_budget_of_epochs_is_a_budget_too(tiny, tmp_path):
    result = train(tiny("ppo", max_epochs=2))
    facts = facts_of(tmp_path)
    assert facts["stop_kind"] == "budget" and facts["status"] == "stopped: max_epochs=2 reached"
    assert result.metrics["epoch"] == 2


def test_a_resumed_run_replaces_the_kind_of_its_first_end(tiny, tmp_path):
    result = train(tiny("dqn"), callbacks=[At(40, lambda trainer: trainer.request_stop("enough"))])

    class Look(Callback):
        def on_train_start(self, trainer):
            self.facts = facts_of(tmp_path)

    look = Look()
    resume_training(result.run_dir, callbacks=[look])
    assert look.facts["status"] == "running" and recorded_stop_kind(look.facts) is None
    assert facts_of(tmp_path)["stop_kind"] == "finished"


OLD = {  # status lines of run directories without a stop_kind
    "finished": StopKind.FINISHED,
    "finished without an update": StopKind.UNTRAINED,
    "failed": StopKind.FAILED,
    "stopped: received SIGINT": StopKind.SIGNAL,
    "stopped: max_updates=10 reached": StopKind.BUDGET,
    "stopped: the budget of updates or epochs is spent": StopKind.BUDGET,
    "stopped: eval_return_mean 500 reached its target 475": StopKind.EARLY,
    "stopped: eval_return_mean has not improved for 3 evaluations (best 9)": StopKind.EARLY,
    "stopped: I have received enough": StopKind.REQUESTED,
    "running": None,
    "": None,
}


@pytest.mark.parametrize("status", OLD)
def test_run_directories_without_a_kind_are_read_by_their_status(status):
    assert recorded_stop_kind({"status": status}) is OLD[status]


def test_the_field_decides_and_not_the_sentence():
    facts = {"status": "stopped: received SIGTERM", "stop_kind": "requested"}
    assert recorded_stop_kind(facts) is StopKind.REQUESTED


@pytest.mark.parametrize("kind", [*StopKind, None])
def test_a_sweep_resumes_what_was_interrupted_or_failed_and_keeps_the_rest(kind, tmp_path):
    job = Job("x", {"total_timesteps": 10, "seed": 0}, tmp_path)
    assert job_status(job).state == "waiting"
    job.run_dir.mkdir()
    (job.run_dir / "metadata.json").write_text(json.dumps({"status": "whatever", "stop_kind": kind}))
    again = kind in (StopKind.SIGNAL, StopKind.FAILED, None)
    assert job_status(job).state == ("interrupted" if again else "finished")
    assert job_status(job).error == ("without an update" if kind is StopKind.UNTRAINED else "")


def test_a_signal_before_the_first_evaluation_ends_the_run_without_one(tiny, monkeypatch, capsys):
    """An evaluation may take minutes (every step of PETS is a plan), and whoever sends a signal waits for the end."""
    from rl_training.cli import main

    class Kill(Callback):
        def on_update_end(self, trainer, result):
            os.kill(os.getpid(), signal.SIGTERM)

    def never(*_, **__):
        raise AssertionError("evaluated")

    monkeypatch.setattr("rl_training.runtime.evaluator.evaluate", never)
    result = train(tiny("ppo", eval_interval=0), callbacks=[Kill()])
    assert result.metrics["eval_episodes"] == 0 and math.isnan(result.metrics["eval_return_mean"])
    monkeypatch.setattr("rl_training.runtime.spec.build_control_callbacks", lambda config: [Kill()])
    assert main(["resume", str(result.run_dir)]) == 3
    assert re.match(r"stopped at step \d+: not evaluated\n", capsys.readouterr().out)
    assert main(["resume", str(result.run_dir), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["metrics"]["eval_return_mean"] is None


def test_a_signal_in_a_resumed_run_leaves_the_evaluation_that_there_was(tiny):
    class Signal(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 64:
                os.kill(os.getpid(), signal.SIGTERM)

    first = train(tiny("ppo", eval_interval=32, total_timesteps=160, update_epochs=1), callbacks=[Signal()])
    evaluated = [row for row in rows_of(first.run_dir) if "eval_return_mean" in row]
    assert [row["step"] for row in evaluated] == [32] and first.metrics["global_step"] == 64
    assert first.metrics["eval_return_mean"] == evaluated[0]["eval_return_mean"]
    again = resume_training(first.run_dir, callbacks=[Signal()])
    assert [row["step"] for row in rows_of(first.run_dir) if "eval_return_mean" in row] == [32, 64]
    assert again.metrics["global_step"] == 96


def test_a_signal_at_the_last_step_leaves_the_last_evaluation_to_the_resumed_run(tiny):
    class Signal(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 64:
                os.kill(os.getpid(), signal.SIGTERM)

    config = tiny("ppo", total_timesteps=64)
    result = train(config, callbacks=[Signal()])
    recorded = lambda: json.loads((result.run_dir / "metadata.json").read_text())  # noqa: E731
    assert (recorded()["stop_kind"], recorded()["stop_reason"]) == ("signal", "received SIGTERM")
    last = resume_training(result.run_dir)
    assert (recorded()["stop_kind"], recorded()["stop_reason"]) == ("finished", None)
    assert last.metrics["eval_episodes"] == 1


def test_a_callback_that_stops_a_run_at_its_last_step_does_not_keep_it_from_finishing(tiny):
    config = tiny("dqn", total_timesteps=64)
    result = train(config, callbacks=[At(64, lambda trainer: trainer.request_stop("enough"))])
    facts = json.loads((result.run_dir / "metadata.json").read_text())
    assert (facts["stop_kind"], facts["stop_reason"]) == ("finished", None) and result.metrics["eval_episodes"] == 1


def test_a_kind_that_is_not_known_is_no_kind():
    assert recorded_stop_kind({"stop_kind": "paused"}) is None


def test_a_callback_that_sets_the_reason_itself_is_who_stopped_the_run():
    trainer = TrainerState(should_stop=True, stop_reason="mine")
    trainer.request_stop("received SIGTERM", StopKind.SIGNAL)
    assert (trainer.stop_reason, trainer.stop_kind) == ("mine", StopKind.REQUESTED)
