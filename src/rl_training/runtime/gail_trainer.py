"""GAIL on the on-policy loop: a discriminator learns from each rollout, then its rewards replace the environment's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import model_validator

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.gail import GAIL, RewardType
from rl_training.base.devices import to_device, to_host
from rl_training.base.options import Sizes, opt
from rl_training.base.saved import Saved
from rl_training.data.prior_data import PriorData
from rl_training.data.reward_scaler import RewardScaler
from rl_training.envs.collector import Step
from rl_training.models.mlp_gail_discriminator import MLPGAILDiscriminator
from rl_training.runtime.absorbing_states import AbsorbingStates
from rl_training.runtime.cloning import clone_expert
from rl_training.runtime.expert_data import ExpertOptions, expert_data
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.options import Task
from rl_training.runtime.policy_options import PPOOptions
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "GAILLoop", "GAILOptions", "build", "train_gail"]

CHUNK = 4_096  # rows that are rewarded at once


class GAILOptions(PPOOptions, ExpertOptions):
    """Options of GAIL: PPO's, the discriminator's and the expert's."""

    TITLE = "gail"
    normalize_rewards: bool = opt(True, "scale the discriminator's rewards by the running deviation of their return")
    discriminator_learning_rate: float = opt(3e-4, "step size of Adam, for the discriminator", gt=0)
    discriminator_updates: int = opt(4, "its updates for each rollout", ge=1)
    discriminator_batch_size: int = opt(256, "rows of the expert, and as many of the policy, in each", ge=1)
    discriminator_hidden_sizes: Sizes = opt((64, 64), "widths of its hidden layers")
    normalize_discriminator: bool = opt(True, "scale its observations by running statistics of expert and policy")
    reward_type: RewardType = opt("softplus", "softplus (rewards survival), logsigmoid (termination) or logit")
    absorbing: bool = opt(False, "make the time after a termination a state that is discriminated and rewarded too")
    label_smoothing: float = opt(0.0, "how far the discriminator's labels are from one and zero", ge=0, lt=0.5)
    gradient_penalty: float = opt(0.0, "weight of the penalty that pulls its gradient norm to one", ge=0)
    bc_updates: int = opt(
        0,
        "updates of behaviour cloning before the first rollout; they leave the deviation of Box actions as it is",
        ge=0,
    )
    features_dim: int | None = opt(None, "images: features of the policy's convolutions; null: as hidden_sizes", ge=1)
    head_hidden_sizes: Sizes = opt((), "images: layers between those features and the policy's outputs")
    discriminator_features_dim: int = opt(256, "images: features of the discriminator's convolutions", ge=1)
    discriminator_head_hidden_sizes: Sizes | None = opt(None, "images: layers after; null: discriminator_hidden_sizes")

    @model_validator(mode="after")
    def _discounted(self) -> Any:
        if self.absorbing and self.gamma == 1:
            raise ValueError("absorbing states last forever: gamma must be below 1")
        return self

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        return {**super().for_task(task), "normalize_rewards": True}  # the discriminator gives the rewards


class GAILLoop(OnPolicyLoop):
    """PPO's loop with the discriminator's rewards; the environment's are never read."""

    STATE = ("lengths",)

    def __init__(self, run: Run, agent: GAIL, cfg: GAILOptions) -> None:
        collector = run.collector(check_rewards=False)
        super().__init__(run, agent, cfg.model_copy(update={"normalize_rewards": False}), collector=collector)
        scaler = RewardScaler(run.config.num_envs, cfg.gamma, clip=float("inf"))
        self.learned_scale = scaler if cfg.normalize_rewards else None
        data = expert_data(cfg, run.factory, run.spaces)
        run.set_reference_returns(data.meta)
        self.expert = PriorData(data, run.spaces, "cpu", run.rng("dataset sampling"))
        self.rows = run.rng("discriminator rows")
        self.lengths = [0] * run.config.num_envs  # of the episodes that are under way, with absorbing states
        self._raw_obs, shape = np.zeros_like(self._rollout.obs), self._rollout.rewards.shape
        self._absorbing = AbsorbingStates(data, shape, cfg.gamma, run.factory.time_limit()) if cfg.absorbing else None
        self._rollout.beside = {"raw_obs": self._raw_obs}
        if self._absorbing is not None:
            self._rollout.beside["after_step"] = self._absorbing.after_step

    def load_state_dict(self, state: dict[str, Any]) -> None:
        Saved(state, state).counts("lengths", length=len(self.lengths))
        super().load_state_dict(state)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        super().cut(lost, obs)
        self.lengths = [0 if gone else length for gone, length in zip(lost, self.lengths)]
        if self.learned_scale is not None:
            self.learned_scale.returns[lost > 0] = 0.0

    def __iter__(self) -> Iterator[None]:
        run, cfg = self._run, self._cfg
        if cfg.expert_dataset_kind == "random":
            run.announce("expert_dataset_kind is random: there is no expert, and nothing of use will be learned")
        yield from clone_expert(run, cfg.bc_updates, self._observe_expert, self._clone, self.agent.end_cloning)
        yield from super().__iter__()

    def _observe_expert(self) -> None:
        if self._observe is not None:  # observations are scaled for cloning as they will be for acting
            self._observe(self.expert.columns()["obs"])

    def _clone(self) -> UpdateResult:
        batch = to_device(self.expert.sample(self._cfg.discriminator_batch_size), self._run.device)
        return self.agent.clone(batch)  # type: ignore[no-any-return]

    def on_row_stored(self, t: int, step: Step) -> None:
        self._raw_obs[t] = step.obs
        if self._absorbing is not None:
            self._absorbing.record(t, step, self.lengths)

    def finish_rollout(self) -> None:
        """Train the discriminator on the rollout, let it reward the rollout, then estimate advantages."""
        obs, actions = self.flat_rollout()
        self.train_discriminator(obs, actions)
        self.reward_rollout(obs, actions)
        super().finish_rollout()

    def flat_rollout(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rollout's observations before normalisation and its actions as the environment took them, flat, on the
        host."""
        actions, spaces = self._rollout.actions.reshape(-1, *self._rollout.actions.shape[2:]), self._run.spaces
        if spaces.action_kind == "box":
            actions = spaces.from_env(np.asarray(spaces.to_env(actions)))
        obs = self._raw_obs.reshape(-1, *self._raw_obs.shape[2:])
        return torch.from_numpy(obs), torch.from_numpy(actions)

    def train_discriminator(self, obs: torch.Tensor, actions: torch.Tensor) -> None:
        """``discriminator_updates`` steps, each on as many rows of the policy as of the expert."""
        run, size = self._run, self._cfg.discriminator_batch_size
        for _ in range(self._cfg.discriminator_updates):
            rows = torch.from_numpy(self.rows.generator.integers(len(obs), size=size))
            policy = {"obs": obs[rows], "actions": actions[rows]}
            expert = dict(self.expert.sample(size))
            if self._absorbing is not None:
                policy["absorbed"] = self._absorbing.policy_mask(size, self.rows.generator)
                expert["absorbed"] = self._absorbing.expert_mask(size, self.rows.generator)
            result = run.record_auxiliary_update(self.agent.update_discriminator(policy, expert, global_step=run.step))
        run.note(**result.metrics)

    def reward_rollout(self, obs: torch.Tensor, actions: torch.Tensor) -> None:
        """Replace the environment's rewards by the discriminator's."""
        rollout, agent, shape = self._rollout, self.agent, self._rollout.rewards.shape
        obs, actions = to_device({"obs": obs, "actions": actions}, self._run.device).values()
        chunks = zip(torch.split(obs, CHUNK), torch.split(actions, CHUNK))
        rewards = to_host(torch.cat([agent.discriminator_reward(*chunk) for chunk in chunks]))[0].reshape(shape)
        self._run.note(imitation_reward=float(rewards.mean()))
        if self._absorbing is not None:
            [absorbed] = to_host(agent.discriminator_reward(obs[:1], actions[:1], torch.ones(1, device=obs.device)))
            rewards = rewards + np.float32(self._absorbing.bonus(float(absorbed[0]))) * rollout.terminated
        if self.learned_scale is not None:
            for row, ended in zip(rewards, np.maximum(rollout.terminated, rollout.truncated)):
                self.learned_scale.observe(row, ended)
            rewards = self.learned_scale.scaled(rewards)  # by one deviation for the whole rollout
        rollout.rewards[:] = rewards


def build(cfg: GAILOptions, plan: Blueprint) -> GAIL:
    spaces, sizes = plan.spaces, cfg.discriminator_hidden_sizes
    changes: dict[str, Any] = {}
    if spaces.image:
        features = (cfg.features_dim,) if cfg.features_dim else cfg.hidden_sizes
        changes = {"hidden_sizes": features, "head_sizes": cfg.head_hidden_sizes}
        sizes = sizes if cfg.discriminator_head_hidden_sizes is None else cfg.discriminator_head_hidden_sizes
    own = {"hidden_sizes": sizes, "features_dim": cfg.discriminator_features_dim, "absorbing": cfg.absorbing}
    actions = spaces.num_actions if spaces.action_kind == "discrete" else spaces.action_dim
    make = replace(plan, network=None).make  # a network of the caller's own is the policy, never the discriminator
    network = make(MLPGAILDiscriminator, **plan.shape, action_dim=actions, normalize=cfg.normalize_discriminator, **own)
    names = {"discriminator_learning_rate", "reward_type", "label_smoothing", "gradient_penalty"}
    return GAIL(policy=cfg.policy(plan, **changes), discriminator=network, **cfg.pick(names), **cfg.learner(plan))


SPECS = {
    "gail": AlgorithmSpec(name="gail", config=GAILOptions, build=build, loop=GAILLoop, obs=("vector", "image", "mixed"))
}
train_gail = SPECS["gail"].train
