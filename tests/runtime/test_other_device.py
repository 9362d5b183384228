"""Every learner on a device that is not a CPU: the same results, and at most one transfer each way.

No accelerator is needed: ``pretend_device`` makes torch take host memory for one, in a process of its own for each
group of cases (``other_device``). What only real hardware can show is listed in docs/gpu.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from other_device import GROUPS

TESTS = Path(__file__).parents[1]
CASES = [(group, name) for group, cases in GROUPS.items() for name in cases]
NOTHING, ONE_TO, ONE_BACK, ONE_EACH = ({"to": to, "back": back} for to, back in ((0, 0), (1, 0), (0, 1), (1, 1)))

# what crosses at most: for an action, for an update with its batch, for an epoch of a model's fit with its updates, and
# for a step of all imagined rollouts
USUAL = {"act": ONE_EACH, "update": ONE_TO, "epoch": NOTHING, "rollout": NOTHING}
FITTED = {**USUAL, "epoch": ONE_EACH, "rollout": ONE_EACH}
PRIORITIZED = {**USUAL, "update": ONE_EACH}  # the errors come back, as priorities
PLANNED = {**USUAL, "update": NOTHING, "epoch": ONE_EACH}
TABLE = {
    **dict.fromkeys(("dqn, everything", "dqn, pictures", "qr_dqn", "iqn", "fqf"), PRIORITIZED),
    **dict.fromkeys(("mbpo", "mopo", "mopo, known terminations"), FITTED),
    **dict.fromkeys(("pets", "pets, icem"), PLANNED),
    # a function of arrays decides on the host where each of the three steps of a plan terminates
    "pets, known terminations": {**PLANNED, "act": {"to": 4, "back": 4}},
    # the classifier's inputs go to the device once more, and its decisions come back
    "mbpo, learned terminations": {**FITTED, "rollout": {"to": 1, "back": 2}},
}


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records of a group's cases, by name; the process runs once."""

    @cache
    def of(group):
        done = start(str(TESTS / "other_device.py"), group, str(tmp_path_factory.mktemp("runs")))
        found = {record["case"]: record for record in map(json.loads, done.stdout.splitlines())}
        return found, done.stderr

    return of


def record_of(records, group, name):
    found, errors = records(group)
    assert name in found, f"{name} failed on the device:\n{errors[-3000:]}"
    return found[name]


@pytest.mark.parametrize(("group", "name"), CASES)
def test_results_are_those_of_the_cpu_to_rounding(records, group, name):
    """Metrics, weights, optimizers, statistics and actions: of a run, resumed, loaded on the device and on the CPU."""
    record = record_of(records, group, name)
    assert record["off"] < 0.1, f"{record['furthest']} is {record['off']} times as far off as it may be"


@pytest.mark.parametrize(("group", "name"), CASES)
def test_at_most_one_transfer_each_way(records, group, name):
    record = record_of(records, group, name)
    assert {what: record[what] for what in USUAL} == TABLE.get(name, USUAL)


@pytest.mark.parametrize(("group", "name"), CASES)
def test_data_crosses_in_one_place_only(records, group, name):
    """``base/devices.py``, but for the making of a learner and the loading of its state."""
    assert record_of(records, group, name)["outside"] == []


def test_every_algorithm_has_a_case():
    from rl_training.experiment.registry import ALGORITHMS

    assert {case.algo for cases in GROUPS.values() for case in cases.values()} == set(ALGORITHMS)


def test_the_pretend_device_and_what_crosses_to_it():
    done = start("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(TESTS / "pretend_checks.py"))
    assert done.returncode == 0, done.stdout[-4000:]
