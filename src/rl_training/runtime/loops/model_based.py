"""What trainers that learn a dynamics model share: options, fits within a run, terminations, and rollouts in a
buffer of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rl_training.algorithms.dynamics import EnsembleDynamics, ModelFit, imagine
from rl_training.algorithms.mopo import MOPO
from rl_training.algorithms.terminations import LearnedTerminations, Terminations
from rl_training.base.devices import to_device
from rl_training.base.options import Options, Sizes, opt
from rl_training.base.saved import Saved
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import Mixed, Source
from rl_training.envs.spaces import Spaces
from rl_training.envs.terminations import never, termination_of
from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.critic_options import SoftOptions
from rl_training.runtime.run import Run, TrainingFailure
from rl_training.runtime.spec import Blueprint

__all__ = [
    "Imagination",
    "InUnits",
    "ModelOptions",
    "RolloutOptions",
    "in_units",
    "learn_terminations",
    "make_fit",
    "run_fit",
    "terminations_of",
]


class ModelOptions(Options):
    """Options of the ensemble of dynamics models."""

    model_hidden_sizes: Sizes = opt((200, 200, 200, 200), "widths of the model's hidden layers")
    num_ensembles: int = opt(7, "members of the ensemble", ge=1)
    model_learning_rate: float = opt(1e-3, "step size of Adam, for the model", gt=0)
    standardise_targets: bool = opt(
        False, "the model's outputs are in units of the targets' deviations, as its inputs are"
    )

    def model(self, plan: Blueprint, elites: int | None = None) -> Any:
        """The ensemble, of the task's sizes; ``elites``: how many members rollouts use (None: all)."""
        sizes = {"obs_dim": plan.spaces.obs_dim, "action_dim": plan.spaces.action_dim}
        members = {"num_ensembles": self.num_ensembles, "num_elites": elites}
        return plan.make(MLPMOPOEnsembleModel, **sizes, **members, hidden_sizes=self.model_hidden_sizes)


class RolloutOptions(SoftOptions, ModelOptions):
    """Options of fits with a holdout, of rollouts, and of the policy that learns from them."""

    NETWORKS: ClassVar[tuple[str, ...]] = ("layer_norm", "model_hidden_sizes", "num_ensembles", "standardise_targets")

    num_elites: int = opt(5, "members, the best on held-out data, that rollouts use", ge=1)
    model_batch_size: int = opt(256, "transitions per gradient step of each member", ge=1)
    model_updates: int | None = opt(
        None, "the most gradient steps one fit may take; null: until it no longer helps", ge=1
    )
    model_patience: int = opt(5, "epochs without progress on held-out data after which a fit may end", ge=0)
    model_patience_updates: int = opt(
        200,
        "gradient steps without progress that must have passed too: on little data an epoch is only a step or two",
        ge=0,
    )
    model_holdout_ratio: float = opt(
        0.2, "share of the data held out to score a fit, up to 5,000 transitions", gt=0, lt=1
    )
    rollout_batch_size: int = opt(100_000, "rollouts begun at each refresh", ge=1)
    rollout_horizon: int = opt(1, "steps of a rollout", ge=1)
    rollouts_retained: int = opt(1, "refreshes whose rollouts are kept", ge=1)
    synthetic_buffer_capacity: int | None = opt(None, "imagined transitions kept; null: those retained", ge=1)
    synthetic_batch_ratio: float = opt(0.95, "share of imagined transitions in every batch", ge=0, le=1)
    policy_learning_rate: float = opt(3e-4, "step size of Adam, for actor, critics and temperature", gt=0)
    layer_norm: bool = opt(False, "normalise the critics' hidden layers, which bounds the values of unseen actions")

    def learner(self, plan: Blueprint) -> dict[str, Any]:
        """The arguments of MOPO and MBPO alike."""
        elites = min(self.num_elites, self.num_ensembles)
        sizes: dict[str, Any] = {"action_dim": plan.spaces.action_dim, "hidden_sizes": self.hidden_sizes}
        if self.layer_norm:  # a network of the user's need not have this argument
            sizes["layer_norm"] = True
        return {
            "policy_model": self.network(plan, MLPSACModel, **plan.shape, **sizes),
            "dynamics_model": self.model(replace(plan, network=None), elites),
            "policy_learning_rate": self.policy_learning_rate,
            "model_learning_rate": self.model_learning_rate,
            "terminated": terminations_of(plan),
            **self.soft(),
        }


def make_fit(run: Run, dynamics: EnsembleDynamics, cfg: RolloutOptions) -> ModelFit:
    """A fit of the ensemble with the run's options and random stream."""
    return ModelFit(
        dynamics,
        run.rng("model fit"),
        batch_size=cfg.model_batch_size,
        patience=cfg.model_patience,
        patience_updates=cfg.model_patience_updates,
        holdout_ratio=cfg.model_holdout_ratio,
        most_updates=cfg.model_updates,
        standardise_targets=cfg.standardise_targets,
        pausing=run.pausing,
    )


def run_fit(run: Run, fit: ModelFit, data: dict[str, np.ndarray]) -> Iterator[None]:
    """Make a fit, or the rest of one, an epoch at a time. A run cannot stop after the last epoch: the work that
    follows belongs to the fit."""
    for metrics in fit.run(data):
        if not metrics:
            yield
            continue
        run.note(**metrics)
        error = metrics.get("holdout_error")
        text = f"model epoch {fit.epoch}" + ("" if error is None else f", holdout error {error:.3g}")
        run.show_stage(text, fit.active)
        if fit.active:
            yield
    if fit.cut_short:
        run.note(model_fits_cut_short=float(run.count("model_fits_cut_short")))


@dataclass(frozen=True)
class InUnits:
    """A function of actions in the environment's units as one of actions in [-1, 1]."""

    function: Callable[..., np.ndarray]
    spaces: Spaces

    def __call__(self, obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        return self.function(obs, np.asarray(self.spaces.to_env(actions)), next_obs)


def in_units(function: Callable[..., np.ndarray] | None, spaces: Spaces) -> Terminations | None:
    """``function`` of actions in [-1, 1]; None for one that is not known or is false everywhere (``never``)."""
    return None if function is None or function is never else InUnits(function, spaces)


def terminations_of(plan: Blueprint) -> LearnedTerminations:
    """Terminations by the function that is registered for the environment, or by a learned classifier."""
    function, spaces = termination_of(plan.env_id), plan.spaces
    return LearnedTerminations(
        in_units(function, spaces),
        known=function is not None,
        obs_dim=spaces.obs_dim,
        action_dim=spaces.action_dim,
        device=plan.device,
    )


def learn_terminations(run: Run, terminations: LearnedTerminations, data: dict[str, np.ndarray]) -> None:
    """After a fit: compare known terminations with the data, or fit the classifier; print once which decides."""
    env_id = run.config.env_id
    if terminations.known:
        wrong = terminations.contradictions(data)
        if terminations.known:
            return
        share = f"{wrong:,} of {len(data['dones']):,} transitions"
        run.announce(f"the termination registered for {env_id} is wrong for {share}: not used")
    learned = terminations.classifier.fit(data, run.rng(f"ends at {run.step}").generator)
    if run.counters.get("ends_said") != 1 + learned:
        run.counters["ends_said"] = 1 + learned
        without = "rollouts never end: the data shows no termination"
        text = "a classifier, learned from the data, ends rollouts" if learned else without
        run.announce(
            f"where episodes of {env_id} terminate is not known; {text} "
            "(rl_training.envs.terminations.register_termination makes it known)"
        )


class Imagination:
    """Rollouts of the learned model from real observations, kept in a buffer of their own.

    Each ``refresh`` writes as many rows as its rollouts had steps, fewer where they terminated; ``counts`` (newest
    last) says how many, so that exactly the rows of the last ``rollouts_retained`` can be drawn, whatever their lengths
    were.
    """

    def __init__(self, run: Run, agent: MOPO, cfg: RolloutOptions, *, longest: int) -> None:
        spaces = run.spaces
        self._run, self._agent, self._cfg = run, agent, cfg
        self.counts: list[int] = []
        most = cfg.rollout_batch_size * cfg.rollouts_retained * longest
        self.buffer = ReplayBuffer(
            cfg.synthetic_buffer_capacity or most, spaces.obs_shape, spaces.action_shape, "cpu",
            spaces.obs_dtype, spaces.action_dtype, rng=run.rng("synthetic"), reuse=True,
        )  # fmt: skip

    def refresh(self, source: Source, horizon: int) -> None:
        """New rollouts from observations of ``source``, which is on the host; older ones than are retained are no
        longer drawn."""
        sample = source.sample(self._cfg.rollout_batch_size)["obs"].clone()
        starts = to_device({"obs": sample}, self._run.device)["obs"]
        count = 0
        agent = self._agent
        for rows in imagine(agent.imagined_step, agent.imagined_actions, starts, horizon, agent.terminated):
            self.buffer.add(**rows)
            count += len(rows["rewards"])
        if not count:
            raise TrainingFailure(
                f"the model imagined nothing finite from {len(starts):,} observations: it has diverged; "
                "lower model_learning_rate, or look for huge values in observations and rewards"
            )
        self.counts = [*self.counts, count][-self._cfg.rollouts_retained :]
        self.buffer.newest = sum(self.counts)
        self._run.note(rollout_rows=float(count), rollout_horizon=float(horizon))

    def mixed(self, real: Source) -> Mixed:
        """Batches of real transitions, from a source on the host, and imagined ones, in the shares that the options
        set."""
        share = self._cfg.synthetic_batch_ratio
        return Mixed((real, 1 - share), (self.buffer, share), device=self._run.device)

    def metrics(self, fit: ModelFit, mixed: Mixed) -> dict[str, float]:
        real, synthetic = mixed.counts(self._cfg.batch_size)  # type: ignore[attr-defined]
        return {
            "synthetic_buffer_size": float(min(sum(self.counts), len(self.buffer))),
            "model_updates_done": float(fit.total_updates),
            "real_batch_size": float(real),
            "synthetic_batch_size": float(synthetic),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self.buffer.state_dict(), "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        Saved(state, ("packed", "written", "newest"), state)
        ring = {name: value for name, value in state.items() if name != "counts"}
        if "counts" not in state:  # saved before rows were counted, perhaps in a ring of another size: oldest first
            filled = len(ring["packed"])
            ring["packed"] = ring["packed"].roll(-(ring["written"] % max(filled, 1)), 0)
            drawn = min(ring["newest"] or 0, filled)
            ring |= {"written": filled, "newest": drawn or None}
            state = {**state, "counts": [drawn] if drawn else []}
        self.buffer.load_state_dict(ring)
        self.counts = Saved(state, state).counts("counts")
