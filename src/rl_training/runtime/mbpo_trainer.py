"""MBPO: the off-policy loop, with a model fitted on real data and a buffer of what is imagined with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

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
    """Random steps before the first fit: a tenth of the run, from 500 (the paper's for pendulums) to 5,000 (its others), at most
    half of it."""
    return min(max(500, total_timesteps // 10), 5_000, total_timesteps // 2)


class MBPOOptions(RolloutOptions, ReplayOptions):
    TITLE = "mbpo"
    batch_size: int = opt(256, "transitions per policy update", ge=1)
    learning_starts: int | None = opt(  # type: ignore[assignment]
        None, "environment steps before the first fit and update; null: a tenth of the run, from 500 to 5,000", ge=0
    )
    initial_random_steps: int | None = opt(  # type: ignore[assignment]
        None, "environment steps with uniformly random actions; null: as learning_starts", ge=0
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
        "entropy a tuned temperature aims for; null: the paper's for its environments, else minus the action dimension",
    )

    def for_run(self, total_timesteps: int) -> MBPOOptions:
        """With the numbers of steps that depend on the run's length."""
        starts = warm_up_steps(total_timesteps) if self.learning_starts is None else self.learning_starts
        random = starts if self.initial_random_steps is None else self.initial_random_steps
        refresh = self.rollout_refresh_interval or self.model_train_frequency
        return self.replace(learning_starts=starts, initial_random_steps=random, rollout_refresh_interval=refresh)

    def for_environment(self, env_id: str) -> MBPOOptions:
        """With the paper's target entropy, if it has one for this environment and none is given."""
        name = re.sub(r"-v\d+$", "", env_id)
        return self if self.target_entropy is not None else self.replace(target_entropy=TARGET_ENTROPIES.get(name))


class MBPOLoop(OffPolicyLoop):
    STATE = ("stepped", "learning_starts", "initial_random_steps")  # type: ignore[assignment]

    def __init__(self, run: Run, agent: Learner, cfg: MBPOOptions) -> None:
        self._given = cfg
        cfg = cfg.for_run(run.config.total_timesteps)
        super().__init__(run, agent, cfg)
        self.learning_starts, self.initial_random_steps = cfg.learning_starts, cfg.initial_random_steps
        self.fit = fit_of(run, self.agent.dynamics, cfg)
        self.ends = Ends(run, self.agent)
        self.imagination = Imagination(run, self.agent, cfg, longest=max(self._horizon(0), self._horizon(10**12)))
        self._mixed = self.imagination.mixed(self.replay)
        self._source = self._mixed

    def _horizon(self, step: int) -> int:
        schedule = self._cfg.rollout_schedule
        return self._cfg.rollout_horizon if schedule is None else rollout_length(schedule, step)

    def __iter__(self) -> Iterator[None]:
        if self._run.step == 0:
            self._say_choices()
        yield from super().__iter__()

    def _say_choices(self) -> None:
        """What was chosen for this run and environment where nothing was given."""
        given, chosen = self._given, []
        if given.learning_starts is None:
            chosen.append(f"learning_starts={self.learning_starts}")
        if given.initial_random_steps is None:
            chosen.append(f"initial_random_steps={self.initial_random_steps}")
        entropy = given.for_environment(self._run.config.env_id).target_entropy
        if given.target_entropy is None and given.alpha == "auto" and entropy is not None:
            chosen.append(f"target_entropy={entropy:g} (the paper's)")
        if chosen:
            self._run.say(f"mbpo chose for {self._run.config.total_timesteps:,} steps: {', '.join(chosen)}")

    def prepare(self) -> Iterator[None]:
        run, cfg, before = self._run, self._cfg, self._run.step - self._run.config.num_envs
        first = self.fit.fits == 0 or not self.imagination.counts
        if self.fit.active or first or crossings(before, run.step, cfg.model_train_frequency):
            data = self.replay.columns()
            yield from fitted(run, self.fit, data)
            self.ends.learn(data)
        if first or crossings(before, run.step, cfg.rollout_refresh_interval):
            self.imagination.refresh(self.replay, self._horizon(run.step))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), **self.imagination.metrics(self.fit, self._mixed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The warm-up stays as it was chosen, also if the run is made longer."""
        chosen = {name: getattr(self, name) for name in ("learning_starts", "initial_random_steps")}
        super().load_state_dict({**chosen, **state})  # checkpoints of 0.1.0 from before do not have them
        kept = {"learning_starts": self.learning_starts, "initial_random_steps": self.initial_random_steps}
        self._cfg = self._cfg.replace(**kept)
        self._starts = max(self.learning_starts, self._cfg.batch_size)


def build(cfg: MBPOOptions, plan: Blueprint) -> MBPO:
    return MBPO(**cfg.for_environment(plan.env_id).learner(plan))


SPECS = {"mbpo": AlgorithmSpec(name="mbpo", config=MBPOOptions, build=build, loop=MBPOLoop, actions=("box",))}
train_mbpo = SPECS["mbpo"].train
