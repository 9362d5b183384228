"""Offline loop: learn from a fixed dataset, one update per step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rl_training.algorithms.base import Learner
from rl_training.base.options import opt
from rl_training.data.dataset_options import DatasetOptions
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prior_data import PriorData, build_dataset
from rl_training.data.sources import Source
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.loops.base import Loop
from rl_training.runtime.options import AlgorithmOptions
from rl_training.runtime.run import Run, crossings

__all__ = ["OfflineLoop", "OfflineOptions"]


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
    """The data, and how much of it an update takes."""

    batch_size: int = opt(256, "transitions per update", ge=1)


class OfflineLoop(Loop):
    """Learn from a fixed dataset, the config's unless another is given; a step is an update."""

    def __init__(
        self,
        run: Run,
        agent: Learner,
        cfg: OfflineOptions,
        *,
        data: TransitionDataset | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        """``device``: where the data's batches go; None: to the run's."""
        super().__init__(run, agent, cfg)
        data = build_dataset(cfg, run.factory, run.spaces) if data is None else data
        self.data = PriorData(data, run.spaces, device or run.device, run.rng("dataset sampling"))
        self._source: Source = self.data
        run.set_reference_returns(data.meta)
        given = run.origin is not None and "normalizer.mean" in run.origin.taken  # what networks were trained with
        if agent.normalizer is not None and not given:
            agent.normalizer.fit(data.obs.numpy())

    def expected_updates(self, total_timesteps: int) -> int:
        return total_timesteps

    def __iter__(self) -> Iterator[None]:
        run, rows = self._run, self._cfg.batch_size
        while True:
            yield from self.prepare()
            run.apply_schedules(self.agent)
            run.update(self.agent, self._source.sample(rows))
            run.step += 1
            if crossings((run.step - 1) * rows, run.step * rows, len(self.data)):
                run.end_epoch()
            yield

    def prepare(self) -> Iterator[None]:
        """Hook: work before the update of a step; at each ``yield`` a run may stop, and resume there."""
        return iter(())

    def metrics(self) -> dict[str, float]:
        return {"dataset_size": float(len(self.data))}
