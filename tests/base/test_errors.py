"""Errors are said in one line that names what went wrong."""

import numpy as np
import pytest
import torch

from rl_training.base.errors import enough_memory
from rl_training.data import RecurrentReplayBuffer, ReplayBuffer, RolloutBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec

TOO_MANY = 10**14


@pytest.mark.parametrize(
    "allocation",
    [
        lambda: np.ones((TOO_MANY, 10)),  # a MemoryError
        lambda: np.ones((2**62, 10)),  # a ValueError: more than an address can name
        lambda: torch.ones(TOO_MANY, 10),  # a RuntimeError of torch's allocator
    ],
    ids=["numpy", "numpy, beyond addresses", "torch"],
)
def test_an_allocation_that_fails_names_what_was_being_made(allocation):
    with pytest.raises(ValueError, match=r"a large thing: there is not enough memory"), enough_memory("a large thing"):
        allocation()


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match=r"^broken$"), enough_memory("a large thing"):
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a replay buffer of", lambda: ReplayBuffer(TOO_MANY, (40,), (4,))),
        ("a replay buffer of", lambda: RecurrentReplayBuffer(TOO_MANY, 1, (40,), 5)),
        ("a rollout of", lambda: RolloutBuffer(TOO_MANY, 8, (40,))),
    ],
)
def test_buffers_that_fit_into_no_memory_are_refused_in_one_line(name, make):
    with pytest.raises(ValueError, match=rf"^{name} .*not enough memory"):
        make()


def test_networks_that_fit_into_no_memory_are_refused_in_one_line(tmp_path):
    options = {"hidden_sizes": [2**31 - 1, 2**31 - 1]}
    config = TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=10, output_dir=tmp_path, algo_kwargs=options)
    with pytest.raises(ValueError, match="networks of these options: there is not enough memory"):
        get_algorithm_spec("sac").train(config)
