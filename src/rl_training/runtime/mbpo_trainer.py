"""MBPO: the off-policy loop, with a model fitted on real data and a buffer of its rollouts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Strict

from rl_training.algorithms.base import Learner
from rl_training.algorithms.mbpo import MBPO, rollout_length
from rl_training.base.options import opt
from rl_training.runtime.loops.model_based import Imagination, RolloutOptions, learn_terminations, make_fit, run_fit
from rl_training.runtime.loops.off_policy import OffPolicyLoop, ReplayOptions, make_replay
from rl_training.runtime.options import Task
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "TARGET_ENTROPIES", "MBPOLoop", "MBPOOptions", "build", "train_mbpo", "warm_up_steps"]

Ramp = Annotated[tuple[int, int, int, int], Strict(False)]

TARGET_ENTROPIES = {  # the paper's, by the environment's name without its version
    "Hopper": -1.0,
    "Walker2d": -3.0,
    "HalfCheetah": -3.0,
    "Ant": -4.0,
    "Humanoid": -2.0,
    "InvertedPendulum": -0.05,
    "InvertedDoublePendulum": -0.5,
}


def warm_up_steps(total_timesteps: int) -> int:
    """Random steps before the first fit: a tenth of the run, from 500 (the paper's for pendulums) to 5,000 (its
    others), at most half of it."""
    return min(max(500, total_timesteps // 10), 5_000, total_timesteps // 2)


class MBPOOptions(RolloutOptions, ReplayOptions):
    """MBPO's options."""

    TITLE = "mbpo"
    FORM: ClassVar[tuple[str, ...]] = (*ReplayOptions.FORM, *RolloutOptions.NETWORKS)
    BY_TASK: ClassVar[tuple[str, ...]] = ("learning_starts", "initial_random_steps", "target_entropy")
    batch_size: int = opt(256, "transitions per policy update", ge=1)
    learning_starts: int = opt(
        5_000, "environment steps before the first fit and update; by task: a tenth of the run, from 500 to 5,000", ge=0
    )
    initial_random_steps: int = opt(
        5_000, "environment steps with uniformly random actions; by task: as learning_starts", ge=0
    )
    gradient_updates_per_step: int = opt(20, "policy updates each time", ge=1)
    model_train_frequency: int = opt(250, "environment steps between fits", ge=1)
    rollout_refresh_interval: int | None = opt(
        None, "environment steps between rollouts; null: model_train_frequency, after each fit", ge=1
    )
    rollout_schedule: Ramp | None = opt(
        None, "[first step, last step, length before, length after]: rollouts that grow; null: rollout_horizon"
    )
    target_entropy: float | None = opt(
        None,
        "entropy a tuned temperature aims for; null: minus the action dimension; by task: the paper's, if it has one",
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        chosen: dict[str, Any] = cls.warm_up(task, warm_up_steps(task.total_timesteps))
        entropy = TARGET_ENTROPIES.get(re.sub(r"-v\d+$", "", task.env_id))
        return chosen if entropy is None else {**chosen, "target_entropy": entropy}


class MBPOLoop(OffPolicyLoop):
    """The off-policy loop with a model: fits and refreshes of its rollouts come before the updates of a step."""

    def __init__(self, run: Run, agent: Learner, cfg: MBPOOptions) -> None:
        super().__init__(run, agent, cfg, replay=make_replay(run, cfg, device="cpu"))
        self.fit = make_fit(run, self.agent.dynamics, cfg)
        self.imagination = Imagination(run, self.agent, cfg, longest=max(self._horizon(0), self._horizon(10**12)))
        self._mixed = self.imagination.mixed(self.replay)
        self._source = self._mixed

    def _horizon(self, step: int) -> int:
        """Steps of a rollout that begins at environment step ``step``."""
        schedule = self._cfg.rollout_schedule
        return self._cfg.rollout_horizon if schedule is None else rollout_length(schedule, step)

    def prepare(self) -> Iterator[None]:
        run, cfg, before = self._run, self._cfg, self._run.step - self._run.config.num_envs
        first = self.fit.fits == 0 or not self.imagination.counts
        if self.fit.active or first or crossings(before, run.step, cfg.model_train_frequency):
            data = self.replay.columns()
            yield from run_fit(run, self.fit, data)
            learn_terminations(run, self.agent.terminations, data)
        if first or crossings(before, run.step, cfg.rollout_refresh_interval or cfg.model_train_frequency):
            self.imagination.refresh(self.replay, self._horizon(run.step))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), **self.imagination.metrics(self.fit, self._mixed)}


def build(cfg: MBPOOptions, plan: Blueprint) -> MBPO:
    """The learner, with networks of the task's sizes."""
    return MBPO(**cfg.learner(plan))


SPECS = {"mbpo": AlgorithmSpec(name="mbpo", config=MBPOOptions, build=build, loop=MBPOLoop, actions=("box",))}
train_mbpo = SPECS["mbpo"].train
