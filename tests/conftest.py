"""Shared pieces: tiny configs for every algorithm, toy environments, and a comparison that reaches every tensor."""

from __future__ import annotations

import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "egl")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# on a busy machine an example may take long for no fault of its own
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in an order drawn from SEED")


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


@pytest.fixture(autouse=True)
def _seeded():
    """Random numbers that nobody seeds are the same for a test whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def tiny(tmp_path):
    """``tiny("sac", total_timesteps=..., learning_rate=...)``: a TrainConfig that trains in a second."""
    from toys import tiny_config

    return lambda algo, **changes: tiny_config(algo, tmp_path, **changes)
