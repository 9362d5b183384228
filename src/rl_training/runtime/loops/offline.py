"""Offline loop: learn from a fixed dataset, one update per step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.base.options import Sizes, opt
from rl_training.data.dataset_options import DatasetOptions
from rl_training.data.offline_dataset import (
    TransitionDataset,
)
from rl_training.data.prior_data import PriorData, build_dataset
from rl_training.data.sources import Source
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import Blueprint, Network


def _infer_env_spaces(config: TrainConfig) -> Spaces:
    """The spaces of the config's environment, as agents see them."""
    env = EnvFactory(config.env_id, config.env_kwargs).make(training=False)
    try:
        return Spaces.of(env)
    finally:
        env.close()


def _build_offline_dataset(config: TrainConfig) -> TransitionDataset:
    """The config's data: read or collected, mixed, checked, actions in [-1, 1], rewards transformed."""
    from rl_training.experiment.registry import get_algorithm_spec

    options = get_algorithm_spec(config.algo).options(config)
    factory = EnvFactory(config.env_id, config.env_kwargs)
    return build_dataset(options, factory, _infer_env_spaces(config))  # type: ignore[arg-type]


class OfflineOptions(DatasetOptions, AlgorithmOptions):
    batch_size: int = opt(256, "transitions per update", ge=1)


class OfflineCriticOptions(OfflineOptions):
    """What offline learners of values have in common."""

    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for every network", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    tau: float = opt(0.005, "how far target networks move, each time they do", gt=0, le=1)
    normalize_observations: bool = opt(False, "scale observations by the data's mean and deviation")

    def shared(self, plan: Blueprint) -> dict[str, Any]:
        """The learner's arguments that follow from these."""
        normalizer = plan.normalizer(self.normalize_observations, clip=float("inf"))
        rates = {"learning_rate": self.learning_rate, "gamma": self.gamma, "tau": self.tau}
        return {**rates, "normalizer": normalizer}

    def model(self, plan: Blueprint, network: Network) -> Any:
        return plan.make(network, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=self.hidden_sizes)


class OfflineLoop(Loop):
    """Learn from a fixed dataset; a step is an update."""

    def __init__(self, run: Run, agent: Learner, cfg: OfflineOptions) -> None:
        super().__init__(run, agent, cfg)
        data = self.select(build_dataset(cfg, run.factory, run.spaces))
        self.data = PriorData(data, run.spaces, run.device, run.rng("dataset sampling"))
        self._source: Source = self.data
        run.refer(data.meta)
        normalizer = getattr(agent, "normalizer", None)
        if normalizer is not None:
            normalizer.fit(data.obs.numpy())

    def select(self, data: TransitionDataset) -> TransitionDataset:
        """Hook: which of the data to learn from."""
        return data

    def expected_updates(self, total_timesteps: int) -> int:
        return total_timesteps

    def __iter__(self) -> Iterator[None]:
        run, rows = self._run, self._cfg.batch_size
        while True:
            run.apply_schedules(self.agent)
            self.prepare()
            run.update(self.agent, self._source.sample(rows))
            run.step += 1
            if crossings((run.step - 1) * rows, run.step * rows, len(self.data)):
                run.end_epoch()
            yield

    def prepare(self) -> None:
        """Hook: before each update."""

    def metrics(self) -> dict[str, float]:
        return {"dataset_size": float(len(self.data))}
