"""Whatever a file, a config, a folder or an environment holds: success, or one clear line. Never a traceback, a hang, or code that is run.

hypothesis draws the seeds of the mutations. A few of each here, the same every time; `make fuzz` draws new ones for as long as it is told.
"""

import os

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fuzzing.attempts import FILES_MAY, RUNS_MAY, SEEDS, Attempts
from fuzzing.trials import trial

FUZZ = "FUZZ_EXAMPLES" in os.environ  # set by make fuzz
seeds = st.integers(0, SEEDS - 1)


def budget(examples):
    """Settings for so many examples in the tests. Seeds do not shrink: a smaller one is another mutation."""
    if FUZZ:
        return settings(max_examples=int(os.environ["FUZZ_EXAMPLES"]), phases=[Phase.reuse, Phase.generate])
    return settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """Attempts, with the runs whose files they mutate."""
    return Attempts(tmp_path_factory.mktemp("fuzzing"))


def check(attempt, seed, allowed):
    outcome = trial(attempt, seed, seconds=240.0)  # only a hang takes that long, on a busy machine too
    assert outcome.kind in allowed, f"python -m fuzzing {attempt.__name__} {seed}: {outcome.kind}: {outcome.text}"


@budget(12)
@given(seed=seeds)
def test_a_mutated_checkpoint_is_read_or_refused(attempts, seed):
    attempts.prepare()
    check(attempts.checkpoint, seed, FILES_MAY)


@budget(20)
@given(seed=seeds)
def test_a_mutated_dataset_is_read_or_refused(attempts, seed):
    check(attempts.dataset, seed, FILES_MAY)


@budget(25)
@given(seed=seeds)
def test_a_mutated_config_is_read_or_refused(attempts, seed):
    check(attempts.config, seed, FILES_MAY)


@budget(4)
@given(seed=seeds)
def test_a_mutated_config_trains_or_is_refused_or_fails_in_one_line(attempts, seed):
    check(attempts.trained_config, seed, RUNS_MAY)


@budget(12)
@given(seed=seeds)
def test_a_hostile_run_folder_harms_neither_the_other_runs_nor_anything_outside(attempts, seed):
    attempts.good_run("dqn")
    check(attempts.run_folder, seed, FILES_MAY)


@budget(6)
@given(seed=seeds)
def test_a_sweep_with_spoiled_files_goes_on_or_says_why_not(attempts, seed):
    attempts.good_sweep()
    check(attempts.sweep_folder, seed, RUNS_MAY)


@budget(6)
@given(seed=seeds)
def test_an_environment_that_misbehaves_is_named_in_one_line(attempts, seed):
    check(attempts.environment, seed, RUNS_MAY)
