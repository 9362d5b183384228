"""A pipe or a terminal that is closed (``train | head``, a dead ``tee``) silences a run and stops nothing; and what exit
codes say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rl_training import Callback
from rl_training.base.signals import StoppedAtOnce
from rl_training.base.streams import Forgiving, say
from rl_training.cli import main
from rl_training.experiment.runs import newest_checkpoint
from rl_training.sweeps.plan import Job
from rl_training.sweeps.sweep import JobTable
from rl_training.tracking.progress import Progress
from toys import SMOKE, StopAt

TINY = [word for name, value in SMOKE["ppo"][1].items() for word in ("--set", f"algo_kwargs.{name}={value}")]
TRAIN = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--eval-episodes", "1", *TINY, "--run-suffix", "x"]


class Closed:
    """A stream whose reader is gone."""

    def __init__(self, error=BrokenPipeError):
        self._error, self.tried = error, 0

    def write(self, text):
        self.tried += 1
        raise self._error

    flush = write

    def isatty(self):
        return False


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError("closed file"), OSError(28, "No space left on device")])
def test_progress_falls_silent(error):
    stream = Closed(error)
    progress = Progress("lines", title="x", total=10, start=0, stream=stream)
    progress.say("hello")
    progress.log(5)
    progress.close(10)
    assert stream.tried >= 3


def test_a_bar_whose_terminal_is_gone_is_no_longer_drawn(monkeypatch):
    from rich.live import Live

    monkeypatch.setattr(Live, "start", lambda live: None)
    progress = Progress("bar", title="x", total=10, start=0, stream=Closed(OSError(5, "Input/output error")))
    progress.say("hello")
    progress.log(5)
    progress.close(10)
    assert progress._live is None


def test_a_sweep_whose_reader_is_gone_goes_on(tmp_path):
    job = Job("x", {"total_timesteps": 10, "seed": 0}, tmp_path)
    JobTable([job], Closed()).say("started")


def test_what_an_environment_prints_goes_nowhere_where_nobody_reads():
    stream = Forgiving(Closed())
    assert print("hello", file=stream) is None and not stream.isatty()
    assert say("hello", Closed()) is False


def test_a_run_whose_output_is_closed_trains_to_its_end(tmp_path):
    """Both streams of a process go into a pipe of which one line is read."""
    code = "import sys; from rl_training.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [*TRAIN, "--total-timesteps", "128", "--output-dir", str(tmp_path), "--set", "progress=lines"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline().startswith(b"ppo CartPole-v1: run directory")
    process.stdout.close()
    assert process.wait(120) == 0
    (run,) = tmp_path.iterdir()
    assert newest_checkpoint(run)[1].trainer_state["step"] == 128


class Send(Callback):
    def on_update_end(self, trainer, result):
        os.kill(os.getpid(), signal.SIGHUP)


class Break(Callback):
    def on_update_end(self, trainer, result):
        raise RuntimeError("broken")


ENDS = {
    "finished": (0, [], []),
    "a budget": (0, ["--set", "algo_kwargs.max_updates=1"], []),
    "early stopping": (
        0,
        ["--set", "algo_kwargs.eval_interval=32", "--set", "algo_kwargs.early_stopping={patience: 1, target_value: 0}"],
        [],
    ),
    "a signal": (3, [], [Send()]),
    "a request": (3, [], [StopAt(32)]),
    "a mistake": (2, ["--set", "algo_kwargs.num_stepps=1"], []),
    "a failure": (1, [], [Break()]),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_exit_code_says_how_a_run_ended(end, tmp_path, monkeypatch, capsys):
    from rl_training.runtime.controls import build_control_callbacks

    code, words, callbacks = ENDS[end]
    monkeypatch.setattr(
        "rl_training.runtime.spec.build_control_callbacks",
        lambda config: [*build_control_callbacks(config), *callbacks],
    )
    words = [*TRAIN, "--total-timesteps", "96", "--output-dir", str(tmp_path), "--set", "progress=off", *words]
    assert main(words) == code
    printed = capsys.readouterr()
    assert ("go on with  rl-training resume" in printed.out) == (code == 3 or end in ("a budget", "early stopping"))


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_was_stopped_at_once_says_whether_it_can_go_on(saved, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        stopped = StoppedAtOnce()
        stopped.run_dir = tmp_path if saved else None
        raise stopped

    monkeypatch.setattr("rl_training.runtime.workflows.find_checkpoint", stop)
    assert main(["resume", str(tmp_path)]) == (3 if saved else 130)
    text = f"stopped at once; its last checkpoint stays: rl-training resume {tmp_path}"
    assert capsys.readouterr().err == (f"{text}\n" if saved else "interrupted before anything was saved\n")


@pytest.mark.parametrize("command", [[], ["train"], ["resume"], ["sweep"], ["tune"]])
def test_help_says_what_exit_codes_mean(command, capsys):
    assert main([*command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "3 stopped by a signal or a request, and can be resumed" in text
