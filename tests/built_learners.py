"""Learners as a config builds them, and their whole updates beside those of an oracle."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from oracles.comparing import FLOAT32, FLOAT64, assert_changed, assert_same_metrics, assert_same_parameters
from rl_training import TrainConfig
from rl_training.algorithms.base import Learner
from rl_training.envs.spaces import Spaces
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.spec import Blueprint

OBS, DIM, ROWS = 3, 2, 6
REPORTED = 1e-6  # metrics are float32
GIVEN = {"hidden_sizes": [8, 8], "learning_rate": 0.01}


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    """Networks, noise and optimizers that are made in here are in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class Spaced(gym.Env):
    """An environment of which only the spaces are asked for."""

    def __init__(self, actions: gym.Space | None = None) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
        self.action_space = actions if actions is not None else gym.spaces.Box(-2, 3, (DIM,), np.float32)


def built(algo: str, actions: gym.Space | None = None, *, network: Any = None, **options: Any) -> Learner:
    """The learner that a config with these options gives; perhaps with a network of one's own."""
    spec = get_algorithm_spec(algo)
    cfg = spec.options(TrainConfig(algo=algo, env_id="Pendulum-v1", algo_kwargs={**GIVEN, **options}))
    torch.manual_seed(0)
    return spec.build(cfg, Blueprint(Spaces.of(Spaced(actions)), torch.device("cpu"), network=network))


def transitions(rows: int = ROWS, seed: int = 0) -> dict[str, torch.Tensor]:
    """Transitions of which a third terminates; actions are those of a box."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "obs": normal(rows, OBS), "actions": 0.9 * normal(rows, DIM).tanh(), "rewards": 2 * normal(rows),
        "next_obs": normal(rows, OBS), "dones": (torch.arange(rows) % 3 == 1).to(torch.get_default_dtype()),
    }  # fmt: skip


def fitted(learner: Learner) -> tuple[np.ndarray, np.ndarray]:
    """Gives the learner's normalizer the statistics of some data; returns the data's mean and deviation."""
    rows = np.random.default_rng(0).normal(0.7, 2.5, (50, OBS))
    assert learner.normalizer is not None
    learner.normalizer.fit(rows)
    return rows.mean(0), rows.std(0)


def far(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with a row that lies tens of deviations from all others."""
    away = torch.ones(len(batch["obs"]), 1)
    away[0] = 50.0
    return {**batch, "obs": away * batch["obs"], "next_obs": away * batch["next_obs"]}


def scaled(
    batch: dict[str, torch.Tensor], mean: np.ndarray, std: np.ndarray, clip: float = np.inf
) -> dict[str, torch.Tensor]:
    """The batch with normalised observations: offline as TD3+BC's authors do, online cut at ten deviations."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return ((x - torch.tensor(mean)) / torch.tensor(std + 1e-3)).clamp(-clip, clip)

    return {**batch, "obs": scale(batch["obs"]), "next_obs": scale(batch["next_obs"])}


def assert_no_graph(metrics: Any) -> None:
    """What is reported keeps nothing of the update in memory."""
    for part in getattr(metrics, "maps", [metrics]):
        tensors = getattr(part, "_tensors", ())
        assert not any(tensor.requires_grad for tensor in tensors), list(part)


def assert_learns_as(
    learner: Any,
    oracle: Any,
    *,
    updates: int = 4,
    rows: int = ROWS,
    gradient_steps: int = 1,
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
    seen: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
    networks: tuple[tuple[str, str], ...] = (("model", "weights"), ("target_model", "target")),
    before_update: Callable[[int], None] = lambda number: None,
) -> None:
    """Whole updates of both on the same batches, with the same random numbers: reports and networks agree to rounding.

    ``change`` makes another batch of each; ``seen`` is what the oracle sees of it.
    """
    before = copy.deepcopy(getattr(learner, networks[0][0]).state_dict())
    exact = torch.get_default_dtype() == torch.float64
    for number in range(updates):
        before_update(number)
        batch = change(transitions(rows, seed=number))
        torch.manual_seed(number)
        result = learner.update({name: column.clone() for name, column in batch.items()}, global_step=number)
        ours = result.metrics
        assert_no_graph(ours)
        torch.manual_seed(number)
        theirs = {name: torch.as_tensor(value).detach() for name, value in oracle.update(seen(batch)).items()}
        assert set(ours) == set(theirs) and result.num_gradient_steps == gradient_steps
        assert_same_metrics(ours, theirs, tolerance=REPORTED if exact else 10 * FLOAT32)
    for name, own in networks:
        tolerance = FLOAT64 if exact else FLOAT32
        assert_same_parameters(getattr(learner, name), getattr(oracle, own), tolerance=tolerance, name=name)
    assert_changed(before, getattr(learner, networks[0][0]))
