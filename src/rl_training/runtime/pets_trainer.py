"""PETS on the off-policy loop: the data trains the model, and actions come from planning through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from rl_training.algorithms.base import Learner, UpdateResult
from rl_training.algorithms.dynamics import ModelFit
from rl_training.algorithms.pets import PETS
from rl_training.algorithms.planning import CEM, ICEM, Planner, RandomShooting
from rl_training.base.options import ConfigError, Sizes, opt
from rl_training.envs.terminations import never, reward_of, termination_of
from rl_training.runtime.loops.model_based import ModelOptions, in_units, learn_terminations, terminations_of
from rl_training.runtime.loops.off_policy import OffPolicyLoop, ReplayOptions
from rl_training.runtime.options import Task
from rl_training.runtime.run import Run, crossings
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "PETSLoop", "PETSOptions", "build", "train_pets"]


class PETSOptions(ModelOptions, ReplayOptions):
    """PETS's options."""

    TITLE = "pets"
    BY_TASK: ClassVar[tuple[str, ...]] = (*ReplayOptions.BY_TASK, "planner", "planning_horizon")
    FORM: ClassVar[tuple[str, ...]] = ("model_hidden_sizes", "num_ensembles", "standardise_targets")
    gradient_updates_per_step: ClassVar[int] = 1
    eval_interval: int | None = opt(
        0,
        "environment steps between evaluations, which plan for every step; null: twenty per run; 0: only at the end",
        ge=0,
    )
    num_ensembles: int = opt(5, "members of the ensemble", ge=1)
    model_hidden_sizes: Sizes = opt((200, 200, 200), "widths of the model's hidden layers")
    batch_size: int = opt(32, "transitions per gradient step of each member", ge=1)
    learning_starts: int = opt(200, "environment steps before the first fit", ge=0)
    initial_random_steps: int = opt(200, "environment steps with uniformly random actions", ge=0)
    train_frequency: int = opt(200, "environment steps between fits", ge=1)
    standardise_targets: bool = opt(
        True, "the model's outputs are in units of the targets' deviations, as its inputs are"
    )
    model_updates_per_step: float | None = opt(
        None,
        "gradient steps of a fit for each step between fits; null: five passes over the data, at least 1,000",
        gt=0,
    )
    planner: Literal["cem", "icem", "random"] = opt(
        "cem", "how plans are searched for; by task: icem where episodes may terminate, else the paper's cem"
    )
    planning_horizon: int = opt(
        20, "actions of a plan; by task: 20 where episodes are known never to terminate, else 40", ge=1
    )
    planning_candidates: int = opt(100, "plans that are tried in each iteration", ge=2)
    planning_topk: int = opt(10, "of which the best so many shape the next iteration", ge=1)
    planning_iterations: int = opt(8, "iterations for each action", ge=1)
    planning_particles: int = opt(5, "particles for each plan; rounded up to as many for every member", ge=1)
    planning_alpha: float = opt(0.1, "how much of the search's mean and variance stays in an iteration", ge=0, le=1)
    propagation: Literal["tsinf", "ts1"] = opt(
        "tsinf", "particles keep their member for a plan, or change it every step"
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        """A plan must foresee a termination while there is time to avoid it.

        Noise that is independent from step to step hardly finds plans of 40 steps that survive: most end within ten.
        """
        safe = termination_of(task.env_id) is never
        chosen = {"planner": "cem", "planning_horizon": 20} if safe else {"planner": "icem", "planning_horizon": 40}
        return {**super().for_task(task), **chosen}

    def search(self) -> Planner:
        """The planner that these options describe."""
        if self.planner == "random":
            return RandomShooting(self.planning_candidates * self.planning_iterations)
        kind = {"cem": CEM, "icem": ICEM}[self.planner]
        return kind(
            candidates=self.planning_candidates,
            elites=min(self.planning_topk, self.planning_candidates),
            iterations=self.planning_iterations,
            alpha=self.planning_alpha,
        )


PASSES = 5  # over all data in a fit, as in the paper
LEAST_UPDATES = 1_000  # of a fit: five passes over the first data are only a few dozen gradient steps


class PETSLoop(OffPolicyLoop):
    """The off-policy loop with fits of the model, on all data and without a holdout, in place of updates."""

    def __init__(self, run: Run, agent: Learner, cfg: PETSOptions) -> None:
        if run.config.num_envs > 1:
            raise ConfigError([(("num_envs",), "pets plans for one environment at a time; set it to 1")])
        super().__init__(run, agent, cfg)
        self.fit = ModelFit(
            self.agent,
            run.rng("model fit"),
            batch_size=cfg.batch_size,
            holdout_ratio=0.0,
            standardise_targets=cfg.standardise_targets,
            pausing=run.pausing,
        )

    def updates_of_a_fit(self, rows: int) -> int:
        """How many gradient steps a fit to so many transitions takes."""
        cfg: PETSOptions = self._cfg
        if cfg.model_updates_per_step is not None:
            return max(1, round(cfg.train_frequency * cfg.model_updates_per_step))
        return max(LEAST_UPDATES, PASSES * -(-rows // cfg.batch_size))

    def expected_updates(self, total_timesteps: int) -> int:
        fits = range(self._starts, total_timesteps + 1, self._cfg.train_frequency)
        return sum(self.updates_of_a_fit(min(step, self._cfg.buffer_capacity)) for step in fits)

    def first_update_step(self) -> int:
        return max(1, int(self._starts))  # the first fit waits for no train_frequency

    def prepare(self) -> Iterator[None]:
        run, fit = self._run, self.fit
        due = fit.fits == 0 or crossings(run.step - 1, run.step, self._cfg.train_frequency)
        if not (fit.active or due) or run.budget_spent:
            return
        if not fit.active:
            fit.most_updates = self.updates_of_a_fit(len(self.replay))
        data = self.replay.columns()
        for metrics in fit.run(data):
            if not metrics:
                yield
                continue
            run.show_stage(f"model epoch {fit.epoch}", fit.active)
            run.record_update(UpdateResult(metrics, fit.epoch_updates))
            if fit.active:
                yield
        learn_terminations(run, self.agent.terminations, data)
        run.end_epoch()

    def learn(self, rounds: int) -> None:
        """All learning is in the fits."""


def build(cfg: PETSOptions, plan: Blueprint) -> PETS:
    """The learner, with a model of the task's sizes."""
    return PETS(
        dynamics_model=cfg.model(plan),
        learning_rate=cfg.model_learning_rate,
        planner=cfg.search(),
        horizon=cfg.planning_horizon,
        num_particles=cfg.planning_particles,
        propagation=cfg.propagation,
        rewards=in_units(reward_of(plan.env_id), plan.spaces),
        terminated=terminations_of(plan),
    )


SPECS = {"pets": AlgorithmSpec(name="pets", config=PETSOptions, build=build, loop=PETSLoop, actions=("box",))}
train_pets = SPECS["pets"].train
