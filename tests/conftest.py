"""Shared pieces: tiny configs for every algorithm, toy environments, and a comparison that reaches every tensor."""

from __future__ import annotations

import os
import random
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "egl")

import pytest
import torch
from hypothesis import HealthCheck, settings

collect_ignore = ["third_party"]  # needs packages that make test-envs installs; is run where it is named
torch.set_num_threads(1)
# on a busy machine an example may take long for no fault of its own
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
# nohup and shells that start something in the background let it ignore these two: what stops a run is tested all the same
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="draw the order of files, and of tests in them, from SEED"
    )


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("--shuffle")) is not None:
        files = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        order, drawn = list(files.values()), random.Random(seed)
        drawn.shuffle(order)
        for tests in order:  # together: what a file's tests share is made once
            drawn.shuffle(tests)
        items[:] = [item for tests in order for item in tests]


@pytest.fixture(autouse=True)
def _seeded():
    """Random numbers that nobody seeds are the same for a test whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def tiny(tmp_path):
    """``tiny("sac", total_timesteps=..., learning_rate=...)``: a TrainConfig that trains in a second."""
    from toys import tiny_config

    return lambda algo, **changes: tiny_config(algo, tmp_path, **changes)
