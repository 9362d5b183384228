"""MBPO: the off-policy loop, with a model fitted on real data and a buffer of what is imagined with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Strict

from rl_training.algorithms.base import Learner
from rl_training.algorithms.mbpo import MBPO, rollout_length
from rl_training.experiment.config import opt
from rl_training.runtime.loops import OffPolicyLoop, ReplayOptions
from rl_training.runtime.model_based import (
    Ends,
    Imagination,
    RolloutOptions,
    fit_of,
    fitted,
)
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

Ramp = Annotated[tuple[int, int, int, int], Strict(False)]


class MBPOOptions(RolloutOptions, ReplayOptions):
    TITLE = "mbpo"
    batch_size: int = opt(256, "transitions per policy update", ge=1)
    learning_starts: int = opt(5_000, "environment steps before the first fit and update", ge=0)
    initial_random_steps: int = opt(5_000, "environment steps with uniformly random actions", ge=0)
    gradient_updates_per_step: int = opt(20, "policy updates each time", ge=1)
    model_train_frequency: int = opt(250, "environment steps between fits, and between rollouts", ge=1)
    rollout_schedule: Ramp | None = opt(
        None, "[first step, last step, length before, length after]: rollouts that grow; null: rollout_horizon"
    )


class MBPOLoop(OffPolicyLoop):
    def __init__(self, run: Run, agent: Learner, cfg: MBPOOptions) -> None:
        super().__init__(run, agent, cfg)
        self.fit = fit_of(run, self.agent.dynamics, cfg)
        self.ends = Ends(run, self.agent)
        self.imagination = Imagination(run, self.agent, cfg, longest=max(self._horizon(0), self._horizon(10**12)))
        self._mixed = self.imagination.mixed(self.replay)
        self._source = self._mixed

    def _horizon(self, step: int) -> int:
        schedule = self._cfg.rollout_schedule
        return self._cfg.rollout_horizon if schedule is None else rollout_length(schedule, step)

    def prepare(self) -> Iterator[None]:
        run, n = self._run, self._run.config.num_envs
        due = self.fit.fits == 0 or crossings(run.step - n, run.step, self._cfg.model_train_frequency)
        if self.fit.active or due:
            data = self.replay.columns()
            yield from fitted(run, self.fit, data)
            self.ends.learn(data)
            self.imagination.refresh(self.replay, self._horizon(run.step))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), **self.imagination.metrics(self.fit, self._mixed)}


def build(cfg: MBPOOptions, plan: Blueprint) -> MBPO:
    return MBPO(**cfg.learner(plan))


SPECS = {"mbpo": AlgorithmSpec(name="mbpo", config=MBPOOptions, build=build, loop=MBPOLoop, actions=("box",))}
train_mbpo = SPECS["mbpo"].train
