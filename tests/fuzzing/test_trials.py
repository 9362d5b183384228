"""A trial counts whatever comes of a call: success, one line, a traceback, a hang, a crash, or code that a file named."""

import importlib
import os
import signal
import sys
import time

import pytest

from fuzzing.trials import CANARY, Outcome, command, trial, trials
from rl_training import cli


def raises(case):
    raise KeyError("lost")


def crashes(case):
    os.kill(os.getpid(), signal.SIGSEGV)


def exhausts(case):
    return Outcome("accepted", str(len(bytearray(16 << 30))))


def imports(case):
    importlib.import_module(CANARY)
    return Outcome("accepted")


@pytest.mark.parametrize(("attempt", "kind"), [(raises, "traceback"), (crashes, "died"), (imports, "executed")])
def test_what_may_not_happen_is_counted(attempt, kind):
    outcome = trial(attempt, 0)
    assert outcome.kind == kind and outcome.bad


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is bounded on Linux")
def test_a_trial_cannot_take_all_memory():
    assert "MemoryError" in trial(exhausts, 0).text


def test_a_hang_ends_one_trial_and_the_others_go_on():
    def attempt(case):
        if case == 1:
            time.sleep(600)
        return Outcome("accepted", str(case))

    outcomes = [outcome.kind for _, outcome in trials(attempt, range(4), seconds=1.0)]
    assert outcomes == ["accepted", "hang", "accepted", "accepted"]


def test_trials_leave_this_process_as_it_was():
    path, folder = list(sys.path), os.getcwd()
    assert trial(lambda case: Outcome("accepted", os.getcwd()), 0).kind == "accepted"
    assert (sys.path, os.getcwd()) == (path, folder) and CANARY not in sys.modules


def test_a_command_is_accepted_refused_or_failed_by_its_exit_code_and_its_line():
    assert command("list").kind == "accepted"
    refused = command("show", "no_such_algorithm")
    assert refused.kind == "refused" and "no_such_algorithm" in refused.text and refused.planned
    assert command("train", "--no-such-option").kind == "refused"


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError("x"), "traceback"), (RuntimeError("x"), "failed"), (ValueError("x"), "refused")]
)
def test_an_error_that_no_line_of_the_package_raised_is_said_to_be_a_librarys(monkeypatch, error, kind):
    def parsed(argv):
        raise error

    monkeypatch.setattr(cli, "_parsed", parsed)
    outcome = command("list")
    assert outcome.kind == kind and (kind == "traceback" or not outcome.planned)
