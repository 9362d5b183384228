"""Dreamer on the off-policy loop: sequences instead of transitions, and a recurrent state carried while acting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from rl_training.algorithms.base import Learner
from rl_training.algorithms.dreamer import Dreamer
from rl_training.base.options import opt
from rl_training.models.dreamer import SIZES, padded
from rl_training.runtime.loops.off_policy import OffPolicyLoop, ReplayOptions
from rl_training.runtime.loops.recurrent import make_sequences
from rl_training.runtime.options import Schedule
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "DreamerLoop", "DreamerOptions", "build", "train_dreamer"]

RATES = {"world_model_learning_rate", "actor_learning_rate", "critic_learning_rate"}
SHARED = {"optimizer", "max_grad_norm", "gamma", "entropy_coef", "imagination_horizon", "imagination_batch_size"}


class DreamerOptions(ReplayOptions):
    TITLE = "dreamer"
    gradient_updates_per_step: ClassVar[int] = 1
    FORM: ClassVar[tuple[str, ...]] = (*ReplayOptions.FORM, "size", "action_embed_dim")
    size: Literal["nano", "tiny", "small", "1m", "12m"] = opt("tiny", "how large the networks are; nano is a toy")
    features_dim: int | None = opt(None, "width of the heads' hidden layers; null: the size's", ge=1)
    action_embed_dim: int | None = opt(None, "width of the embedded action; null: as other inputs of the RSSM", ge=1)
    buffer_capacity: int = opt(100_000, "observations kept; never more than the run can have", ge=1)
    batch_size: int = opt(16, "sequences per update", ge=1)
    sequence_length: int = opt(64, "observations of a sequence", ge=2)
    learning_starts: int = opt(1_000, "environment steps before the first update", ge=0)
    train_frequency: int = opt(8, "environment steps between updates, whatever the number of environments", ge=1)
    world_model_updates: int = opt(1, "updates of the world model each time", ge=0)
    actor_critic_updates: int = opt(1, "updates of actor and critic each time, together with the former", ge=0)
    imagination_horizon: int = opt(15, "steps that are imagined", ge=1)
    imagination_batch_size: int | None = opt(
        None,
        "observed states to imagine from; null: all of a batch (replayed returns then bootstrap from imagined ones)",
        ge=1,
    )
    world_model_learning_rate: float = opt(3e-4, "step size, for the world model", gt=0)
    actor_learning_rate: float = opt(1e-4, "step size, for the actor", gt=0)
    critic_learning_rate: float = opt(1e-4, "step size, for the critic", gt=0)
    optimizer: Literal["adam", "laprop"] = opt("adam", "adam, or laprop with adaptive clipping (the paper's)")
    max_grad_norm: float | None = opt(100.0, "gradients are scaled down to this norm, with adam", gt=0)
    normalize_observations: bool = opt(False, "vectors: scale them by their running mean and deviation")
    gamma: float = opt(0.997, "discount", ge=0, lt=1)
    gae_lambda: float = opt(0.95, "λ of the λ-returns: how far they look ahead before they bootstrap", ge=0, le=1)
    entropy_coef: float = opt(3e-4, "weight of the actor's entropy", ge=0)
    entropy_coef_schedule: Schedule = opt(None, "schedule of entropy_coef: {type, start, end}")


class DreamerLoop(OffPolicyLoop):
    """Act with a carried state, store observations, learn from sequences."""

    def __init__(self, run: Run, agent: Learner, cfg: DreamerOptions) -> None:
        super().__init__(run, agent, cfg, replay=make_sequences(run, cfg, cfg.sequence_length))  # type: ignore[arg-type]
        self._starts = max(cfg.learning_starts, (cfg.sequence_length + 1) * run.config.num_envs)

    def expected_updates(self, total_timesteps: int) -> int:
        each, every = max(self._cfg.world_model_updates, self._cfg.actor_critic_updates), self._cfg.train_frequency
        return int(max(0, total_timesteps - self._starts) // every * each)

    def __iter__(self) -> Iterator[None]:
        shape = self._run.spaces.obs_shape
        if len(shape) == 3 and shape[1:] != (sides := (padded(shape[1]), padded(shape[2]))):
            given, resized = ("{} x {}".format(*size) for size in (shape[1:], sides))
            self._run.announce(f"images of {given} are resized to {resized} for the world model")
        yield from super().__iter__()

    def learn(self, rounds: int) -> None:
        """Updates that have come due: of both as long as both have some left, then of the one that has."""
        run, agent = self._run, self.agent
        world, behaviour = self._cfg.world_model_updates, self._cfg.actor_critic_updates
        for _ in range(rounds):
            for k in range(max(world, behaviour)):
                if run.budget_spent:
                    return
                alone = agent.update_world_model if k < world else agent.update_actor_critic
                update = agent.update if k < min(world, behaviour) else alone
                run.update(agent, self.draw(), update)
            run.end_epoch()

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "replayed_observations": float(len(self.replay))}


def build(cfg: DreamerOptions, plan: Blueprint) -> Dreamer:
    """A Dreamer of the chosen size for the task's spaces."""
    if plan.network is not None:
        raise ValueError("dreamer's networks are given by size; network cannot replace them")
    spaces, size = plan.spaces, SIZES[cfg.size]
    size = replace(size, units=cfg.features_dim or size.units, embed=cfg.action_embed_dim)
    discrete = spaces.action_kind == "discrete"
    actions: Any = {"num_actions": spaces.num_actions} if discrete else {"action_dim": spaces.action_dim}
    return Dreamer(
        obs_shape=spaces.obs_shape, size=size, **actions, lam=cfg.gae_lambda, **cfg.pick(RATES | SHARED),
        normalizer=plan.normalizer(cfg.normalize_observations), device=plan.device,
    )  # fmt: skip


KINDS: dict[str, Any] = {"obs": ("vector", "image")}
SPECS = {"dreamer": AlgorithmSpec(name="dreamer", config=DreamerOptions, build=build, loop=DreamerLoop, **KINDS)}
train_dreamer = SPECS["dreamer"].train
