"""The commands behind the figures of hardening, with a few cases of each kind: they count, they say what they counted, and they end."""

import sys
import time
from pathlib import Path

import pytest

from fuzzing import lives

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """``hardening`` and ``soak``, as modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hardening
    import soak

    yield hardening, soak
    for name in ("hardening", "soak", "learning"):
        sys.modules.pop(name, None)


def test_a_section_says_how_many_cases_it_tried_and_what_came_of_them(benchmarks, capsys):
    hardening, _ = benchmarks
    assert hardening.main(["--only", "datasets", "--scale", "0.003", "--no-record"]) in (0, 1)
    assert "cases 6" in capsys.readouterr().out


def test_outcomes_that_may_not_be_are_classed_with_their_seeds(benchmarks):
    from fuzzing.trials import Outcome

    def attempt(seed):
        return Outcome("accepted") if seed else Outcome("traceback", "records.py:276: TypeError: no number [report]")

    figures = benchmarks[0].judged("some", attempt, range(3), ("accepted",))
    assert figures["outcomes"] == {"accepted": 2, "traceback": 1} and not figures["passed"]
    (found,) = figures["classes"].values()
    assert found["count"] == 1 and found["examples"][0].startswith("seed 0: records.py:276")


def test_a_killed_run_is_told_of_and_ends_like_the_one_that_was_not(tmp_path):
    straight = lives.Straight.train("dqn", tmp_path / "straight", total_timesteps=200)
    lives.config_for("dqn", tmp_path / "killed", total_timesteps=200)
    story = lives.tell("dqn", tmp_path / "killed", straight, seed=1, kills=2)
    assert story.lives >= 1 and sum(story.kills.values()) <= 2
    assert (story.hangs, story.bytes_lost, story.unequal_tensors) == (0, 0, 0), story.notes


def test_a_run_that_differs_is_noticed(tmp_path):
    straight = lives.Straight.train("dqn", tmp_path / "straight", total_timesteps=100)
    lives.config_for("dqn", tmp_path / "other", total_timesteps=100, seed=9)
    story = lives.tell("dqn", tmp_path / "other", straight, seed=1, kills=0)
    assert (story.unequal_tensors, story.unequal_rows) == (1, 1)


def test_a_soak_counts_what_the_process_holds_and_gives_the_clock_back(benchmarks, capsys):
    clock = time.time
    assert benchmarks[1].main(["--days", "1", "--slices", "3", "--no-record"]) in (0, 1)
    assert time.time is clock
    said = capsys.readouterr().out
    assert "rss_mb" in said and "descriptors" in said and "'resumes': 3" in said
