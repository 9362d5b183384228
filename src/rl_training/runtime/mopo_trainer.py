"""MOPO: fit the model on the dataset, then learn offline from the data and from rollouts of the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import ClassVar

from rl_training.algorithms.base import Learner
from rl_training.algorithms.mopo import MOPO, Penalty
from rl_training.base.options import opt
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prior_data import build_dataset
from rl_training.runtime.loops.model_based import Imagination, RolloutOptions, learn_terminations, make_fit, run_fit
from rl_training.runtime.loops.offline import OfflineLoop, OfflineOptions, _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "MOPOLoop", "MOPOOptions", "_build_offline_dataset", "_infer_env_spaces", "build", "train_mopo"]


class MOPOOptions(RolloutOptions, OfflineOptions):
    """MOPO's options."""

    TITLE = "mopo"
    FORM: ClassVar[tuple[str, ...]] = (*OfflineOptions.FORM, *RolloutOptions.NETWORKS)
    rollout_batch_size: int = opt(10_000, "rollouts begun at each refresh", ge=1)
    rollout_horizon: int = opt(5, "steps of a rollout", ge=1)
    rollouts_retained: int = opt(5, "refreshes whose rollouts are kept", ge=1)
    rollout_refresh_interval: int = opt(1_000, "policy updates between rollouts", ge=1)
    penalty_coef: float = opt(1.0, "how much an imagined reward is lowered by the model's uncertainty", ge=0)
    penalty: Penalty = opt(
        "max_std", "the measure of uncertainty: max_std (the paper's), max_deviation or ensemble_std"
    )


def with_final_observations(data: TransitionDataset) -> TransitionDataset:
    """The transitions whose successor the data holds; a model cannot learn from the others."""
    if data.meta.get("final_observations", True) or not bool((data.dones > 0).any()):
        return data
    kept = data.take((data.dones == 0).nonzero().flatten())
    warnings.warn(
        f"the data has no observations after a termination: {len(data) - len(kept):,} transitions are left out",
        stacklevel=2,
    )
    return kept


class MOPOLoop(OfflineLoop):
    """The offline loop after one fit of the model, with batches of real and imagined transitions."""

    def __init__(self, run: Run, agent: Learner, cfg: MOPOOptions) -> None:
        data = with_final_observations(build_dataset(cfg, run.factory, run.spaces))
        super().__init__(run, agent, cfg, data=data, device="cpu")
        self.fit = make_fit(run, self.agent.dynamics, cfg)
        self.imagination = Imagination(run, self.agent, cfg, longest=cfg.rollout_horizon)
        self._mixed = self.imagination.mixed(self.data)
        self._source = self._mixed

    def prepare(self) -> Iterator[None]:
        if self.fit.fits == 0:
            data = self.data.columns()
            yield from run_fit(self._run, self.fit, data)
            learn_terminations(self._run, self.agent.terminations, data)
        if self._run.step % self._cfg.rollout_refresh_interval == 0:
            self.imagination.refresh(self.data, self._cfg.rollout_horizon)

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), **self.imagination.metrics(self.fit, self._mixed)}


def build(cfg: MOPOOptions, plan: Blueprint) -> MOPO:
    """The learner, with networks of the task's sizes."""
    return MOPO(**cfg.learner(plan), penalty_coef=cfg.penalty_coef, penalty=cfg.penalty)


SPECS = {"mopo": AlgorithmSpec(name="mopo", config=MOPOOptions, build=build, loop=MOPOLoop, actions=("box",))}
train_mopo = SPECS["mopo"].train
