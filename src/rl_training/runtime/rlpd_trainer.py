"""RLPD: learn online from batches that are half prior data, optionally after a stage on the prior data alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from torch import nn

from rl_training.algorithms.rlpd import RLPD
from rl_training.base.batches import Tensors
from rl_training.base.devices import to_device
from rl_training.base.options import opt
from rl_training.data.dataset_options import DatasetOptions
from rl_training.data.prior_data import PriorData, build_dataset, rewards_learned_from
from rl_training.data.sources import Mixed
from rl_training.models.mlp import xavier_
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.runtime.critic_options import Temperature
from rl_training.runtime.loops.off_policy import OffPolicyLoop, ReplayOptions, make_replay
from rl_training.runtime.loops.offline import _build_offline_dataset, _infer_env_spaces
from rl_training.runtime.options import Task
from rl_training.runtime.run import Run
from rl_training.runtime.sac_trainer import SACOptions, build
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = [
    "SPECS",
    "RLPDLoop",
    "RLPDOptions",
    "_build_offline_dataset",
    "_infer_env_spaces",
    "build_rlpd",
    "network",
    "train_rlpd",
]


class RLPDOptions(DatasetOptions, SACOptions):
    """RLPD's options: SAC's, the prior data's, and the ensemble of critics."""

    TITLE = "rlpd"
    BY_TASK: ClassVar[tuple[str, ...]] = ReplayOptions.BY_TASK
    FORM: ClassVar[tuple[str, ...]] = (*SACOptions.FORM, "num_critics", "layer_norm")
    learning_rate: float = opt(3e-4, "step size of Adam, for actor, critics and temperature", gt=0)
    alpha: Temperature = opt("auto", "temperature: a number, or auto to tune it to target_entropy")
    learning_starts: int = opt(5_000, "environment steps before updates; by task: at most a tenth of the run", ge=0)
    initial_random_steps: int = opt(5_000, "environment steps with random actions; by task: as learning_starts", ge=0)
    gradient_updates_per_step: int = opt(20, "critic updates each time, followed by one of the actor", ge=1)
    num_critics: int = opt(10, "critics in the ensemble", ge=1)
    layer_norm: bool = opt(True, "normalise the critics' hidden layers, which bounds the values of unseen actions")
    target_subset: int = opt(2, "critics, drawn anew for each update, whose smallest value is the target", ge=1)
    backup_entropy: bool = opt(True, "count the next action's entropy in the targets")
    target_entropy: float | None = opt(
        None, "entropy a tuned temperature aims for; null: minus half the action dimension"
    )
    offline_pretrain_updates: int = opt(0, "updates on the prior data before the first step", ge=0)
    frozen_actor_updates: int = opt(
        0, "updates at the start, pretraining included, of the critics alone: for a policy from init_from", ge=0
    )
    offline_batch_ratio: float = opt(0.5, "share of prior data in every batch", ge=0, le=1)

    def idle(self) -> set[str]:
        return DatasetOptions.idle(self) | SACOptions.idle(self)

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        return cls.warm_up(task, min(5_000, task.total_timesteps // 10))


class RLPDLoop(OffPolicyLoop):
    """The off-policy loop with batches of prior data and replay; if set, after updates on the prior data alone."""

    def __init__(self, run: Run, agent: RLPD, cfg: RLPDOptions) -> None:
        data = build_dataset(cfg, run.factory, run.spaces)
        rewards = rewards_learned_from(cfg, run.factory, data)
        replay = make_replay(run, cfg, device="cpu", rewards=rewards)
        super().__init__(run, agent, cfg, collector=run.collector(rewards=rewards), replay=replay)
        self.prior = PriorData(data, run.spaces, "cpu", run.rng("dataset sampling"))
        run.set_reference_returns(data.meta)
        if self._observe is not None:
            self._observe(data.obs.numpy())
        self._repeats, self._rows = 1, cfg.batch_size * cfg.gradient_updates_per_step
        share, slices = cfg.offline_batch_ratio, cfg.gradient_updates_per_step
        self._mixed = Mixed((self.prior, share), (self.replay, 1 - share), slices=slices, device=run.device)
        self._source = self._mixed

    def first_update_step(self) -> int:
        return 0 if self._cfg.offline_pretrain_updates else super().first_update_step()

    def __iter__(self) -> Iterator[None]:
        run, total = self._run, self._cfg.offline_pretrain_updates
        while run.counters.get("pretrain_updates", 0) < total:
            run.apply_schedules(self.agent)
            self.update(to_device(self.prior.sample(self._rows), run.device))
            run.stage("pretraining", run.count("pretrain_updates"), total)
            yield
        yield from super().__iter__()

    def update(self, batch: Tensors) -> None:
        frozen = self._run.update_count < self._cfg.frozen_actor_updates
        self._run.update(self.agent, batch, self.agent.update_critics if frozen else None)

    def metrics(self) -> dict[str, float]:
        offline, online = self._mixed.counts(self._rows)
        slices = self._cfg.gradient_updates_per_step
        return {
            **super().metrics(),
            "pretrain_updates_done": float(self._run.counters.get("pretrain_updates", 0)),
            "offline_batch_size": offline / slices,
            "online_batch_size": online / slices,
            "offline_dataset_size": float(len(self.prior)),
            "online_buffer_size": float(len(self.replay)),
        }


def network(**sizes: Any) -> nn.Module:
    """SAC's networks with Xavier initialisation."""
    model = MLPSACModel(**sizes)
    xavier_(model)
    return model


def build_rlpd(cfg: RLPDOptions, plan: Blueprint) -> RLPD:
    """The learner, with an ensemble of critics."""
    learner = partial(
        RLPD,
        updates_per_batch=cfg.gradient_updates_per_step,
        target_subset=cfg.target_subset,
        backup_entropy=cfg.backup_entropy,
    )
    sizes = {"num_critics": cfg.num_critics, "layer_norm": cfg.layer_norm}
    return build(cfg, plan, learner=learner, network=partial(network, **sizes))  # type: ignore[return-value]


SPECS = {"rlpd": AlgorithmSpec(name="rlpd", config=RLPDOptions, build=build_rlpd, loop=RLPDLoop, actions=("box",))}
train_rlpd = SPECS["rlpd"].train
