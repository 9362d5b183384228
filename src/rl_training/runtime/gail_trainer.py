"""GAIL on the on-policy loop: a discriminator is trained on each rollout, and pays for it instead of the environment."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import model_validator

from rl_training.algorithms.base import Learner
from rl_training.algorithms.gail import GAIL, RewardType
from rl_training.base.options import Sizes, opt
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_options import FOR_FILES, Mismatch, SourceOptions, Units
from rl_training.data.environment_match import match_environment, recorded_in
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prior_data import PriorData, read_source
from rl_training.data.recorder import collect_random
from rl_training.data.reward_scaler import RewardScaler
from rl_training.envs.collector import Collector, Step
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_gail_discriminator import MLPGAILDiscriminator
from rl_training.runtime.evaluation import LONGEST
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.options import Task
from rl_training.runtime.ppo_trainer import PPOOptions
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

REFERENCE_EPISODES, REFERENCE_STEPS = 10, 10_000  # of a random policy, to score by


class GAILOptions(PPOOptions):
    TITLE = "gail"
    normalize_rewards: bool = opt(True, "scale the discriminator's rewards by the running deviation of their return")
    discriminator_learning_rate: float = opt(3e-4, "step size of Adam, for the discriminator", gt=0)
    discriminator_updates: int = opt(4, "its updates for each rollout", ge=1)
    discriminator_batch_size: int = opt(256, "rows of the expert, and as many of the policy, in each", ge=1)
    discriminator_hidden_sizes: Sizes = opt((64, 64), "widths of its hidden layers")
    normalize_discriminator: bool = opt(True, "scale its observations by running statistics of expert and policy")
    reward_type: RewardType = opt("softplus", "softplus (pays for surviving), logsigmoid (for ending) or logit")
    absorbing: bool = opt(False, "let the time after a termination be judged, and paid for, like any other")
    label_smoothing: float = opt(0.0, "how far the discriminator's labels are from one and zero", ge=0, lt=0.5)
    gradient_penalty: float = opt(0.0, "weight of pulling the discriminator's slope towards one", ge=0)
    bc_updates: int = opt(0, "updates of behaviour cloning before the first rollout", ge=0)
    expert_dataset_kind: Literal["random", "npz", "minari", "hdf5", "checkpoint"] = opt(
        "random",
        "where the expert's data is: npz, hdf5, minari, a checkpoint to collect it with; random: no expert at all",
    )
    expert_dataset_path: str | None = opt(None, "the file, or the checkpoint (or its run)")
    expert_dataset_id: str | None = opt(None, "the dataset's name, for minari")
    expert_dataset_size: int = opt(2_000, "transitions to collect, for random", ge=1)
    expert_dataset_seed: int = opt(0, "seed of a collection", ge=0)
    expert_dataset_env_mismatch: Mismatch = opt(
        "refuse", "an expert of another environment: refuse, or allow (there is then no score relative to it)"
    )
    expert_dataset_episode_steps: int | None = opt(
        None, "for files that mark no time-outs: steps after which episodes were truncated; null: the time limit", ge=1
    )
    expert_dataset_action_units: Units = opt(
        "auto",
        "boxes: environment (its own units), unit (the file scales them to [-1, 1]), or auto: refuse what looks so",
    )
    expert_episodes: int | None = opt(
        None, "use only so many of its episodes, the first (a checkpoint: null is 10)", ge=1
    )
    features_dim: int | None = opt(None, "images: features of the policy's convolutions; null: as hidden_sizes", ge=1)
    head_hidden_sizes: Sizes = opt((), "images: layers between those features and the policy's outputs")
    discriminator_features_dim: int = opt(256, "images: features of the discriminator's convolutions", ge=1)
    discriminator_head_hidden_sizes: Sizes | None = opt(
        None, "images: layers after those; null: discriminator_hidden_sizes"
    )

    @model_validator(mode="after")
    def _expert(self) -> Any:
        if self.expert_dataset_kind == "checkpoint":
            if self.expert_dataset_path is None:
                raise ValueError("checkpoint data needs expert_dataset_path")
            if self.expert_dataset_id is not None:
                raise ValueError("expert_dataset_id does nothing for checkpoint data")
            for name in ("expert_dataset_episode_steps", "expert_dataset_action_units"):
                if getattr(self, name) != GAILOptions.model_fields[name].default:
                    raise ValueError(f"{name} does nothing for checkpoint data")
        else:
            try:
                self.source()
            except ValueError as error:
                raise ValueError(str(error).split(": ", 1)[-1].replace("dataset_", "expert_dataset_")) from None
        if self.absorbing and self.gamma == 1:
            raise ValueError("absorbing states last forever: gamma must be below 1")
        return self

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        return {**super().for_task(task), "normalize_rewards": True}  # the discriminator pays, whatever is observed

    def source(self) -> SourceOptions:
        return SourceOptions(
            dataset_kind=self.expert_dataset_kind,  # type: ignore[arg-type]
            dataset_path=self.expert_dataset_path,
            dataset_id=self.expert_dataset_id,
            dataset_size=self.expert_dataset_size,
            dataset_seed=self.expert_dataset_seed,
            dataset_env_mismatch=self.expert_dataset_env_mismatch,
            dataset_episode_steps=self.expert_dataset_episode_steps,
            dataset_action_units=self.expert_dataset_action_units,
        )


def expert_data(cfg: GAILOptions, run: Run) -> TransitionDataset:
    """The expert's transitions in the agent's units, with the returns of expert and random policy as its facts."""
    if cfg.expert_dataset_kind == "checkpoint":
        from rl_training.runtime.experience import collect_from_checkpoint

        where = str(cfg.expert_dataset_path)
        number = cfg.expert_episodes or 10
        data = collect_from_checkpoint(
            where, episodes=number, deterministic=True, seed=cfg.expert_dataset_seed, most_steps=number * LONGEST
        )
        allowed = cfg.expert_dataset_env_mismatch == "allow"
        with expert_names():
            data = match_environment(data, run.factory, f"the expert of {where}", allow=allowed)
        data = in_agent_units(data, run.spaces, where, check_rewards=False)
    else:
        with expert_names():
            data = read_source(cfg.source(), run.factory, run.spaces, check_rewards=False)
    episodes = data.episodes()
    if cfg.expert_episodes is not None and len(episodes) > cfg.expert_episodes:
        data = data.take(torch.arange(episodes[cfg.expert_episodes - 1].stop))
    returns = data.finished_returns()
    if cfg.expert_dataset_kind == "random":
        data.meta.pop("expert_return", None)
    elif not recorded_in(run.factory, data.meta):
        pass  # returns of another environment are no reference
    elif len(returns) and np.isfinite(returns).all():
        data.meta["expert_return"] = float(returns.mean())
        if "random_return" not in data.meta:
            drawn = collect_random(
                run.factory,
                REFERENCE_STEPS,
                cfg.expert_dataset_seed + 1,
                episodes=REFERENCE_EPISODES,
                check_rewards=False,
            )
            known = drawn.finished_returns()
            if len(known) and np.isfinite(known).all():
                data.meta["random_return"] = float(known.mean())
    return data


@contextlib.contextmanager
def expert_names() -> Iterator[None]:
    """Errors about data name options as GAIL has them."""
    try:
        yield
    except DatasetError as error:
        named = re.compile(rf"\b({'|'.join(FOR_FILES)})\b")
        raise DatasetError(named.sub(r"expert_\1", str(error))) from None


class GAILLoop(OnPolicyLoop):
    """``collect`` is PPO's, but the environment's rewards are never looked at."""

    STATE = ("lengths",)

    def __init__(self, run: Run, agent: Learner, cfg: GAILOptions) -> None:
        super().__init__(run, agent, cfg.model_copy(update={"normalize_rewards": False}))
        self.reward_scaler = None
        self.learned_scale = (
            RewardScaler(run.config.num_envs, cfg.gamma, clip=float("inf")) if cfg.normalize_rewards else None
        )
        data = expert_data(cfg, run)
        run.refer(data.meta)
        self.expert = PriorData(data, run.spaces, run.device, run.rng("dataset sampling"))
        self.rows = run.rng("discriminator rows")
        self.lengths = [0] * run.config.num_envs  # of the episodes that are under way
        rollout = self._rollout
        self._raw = np.zeros_like(rollout.obs)
        self._after = np.zeros((rollout.num_steps, rollout.num_envs), np.float32)  # steps that follow a termination
        self._limit = run.factory.time_limit()
        self._expert_after = sum(
            self._left(rows.stop - rows.start)
            for rows in data.episodes()
            if cfg.absorbing and data.dones[rows.stop - 1] > 0
        )

    def make_collector(self) -> Collector:
        return self._run.collector(check_rewards=False)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        self.lengths = [0 if gone else length for gone, length in zip(lost, self.lengths)]
        if self.learned_scale is not None:
            self.learned_scale.returns[lost > 0] = 0.0

    def _left(self, length: int) -> float:
        """How long the time after an episode of this length lasts, for the discriminator: up to the time limit, if there is one."""
        return max(0, self._limit - length) if self._limit is not None else 1 / (1 - self._cfg.gamma)

    def __iter__(self) -> Iterator[None]:
        run, cfg = self._run, self._cfg
        if cfg.expert_dataset_kind == "random":
            run.say("expert_dataset_kind is random: there is no expert, and nothing of use will be learned")
        if run.step == 0 and cfg.bc_updates:
            if self._observe is not None:  # what is cloned must be scaled as what will be acted on
                self._observe(self.expert.columns()["obs"])
            for _ in range(cfg.bc_updates):
                result = run.counted(self.agent.clone(self.expert.sample(cfg.discriminator_batch_size)))
            run.note(**result.metrics)
        yield from super().__iter__()

    def lived(self, t: int, step: Step) -> None:
        self._raw[t] = step.obs
        if not self._cfg.absorbing:
            return
        for i in range(len(self.lengths)):
            self.lengths[i] += 1
            self._after[t, i] = self._left(self.lengths[i]) if step.terminated[i] else 0
            if step.terminated[i] or step.truncated[i]:
                self.lengths[i] = 0

    def finish_rollout(self) -> None:
        """First the discriminator learns from the rollout, then it pays for it."""
        obs, actions = self._flat()
        self.train_discriminator(obs, actions)
        self.pay(obs, actions)
        super().finish_rollout()

    def _flat(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rollout's observations, as they were, and its actions, as the environment took them."""
        actions = self._rollout.actions
        spaces = self._run.spaces
        if spaces.action_kind == "box":
            flat_actions = actions.reshape(-1, *actions.shape[2:])
            actions = spaces.from_env(np.asarray(spaces.to_env(flat_actions))).reshape(actions.shape)
        flat = (torch.from_numpy(x.reshape(-1, *x.shape[2:])).to(self._run.device) for x in (self._raw, actions))
        return next(flat), next(flat)

    def train_discriminator(self, obs: torch.Tensor, actions: torch.Tensor) -> None:
        run, cfg = self._run, self._cfg
        size, expert_size = cfg.discriminator_batch_size, len(self.expert)
        for _ in range(cfg.discriminator_updates):
            rows = torch.from_numpy(self.rows.generator.integers(len(obs), size=size)).to(run.device)
            policy = {"obs": obs[rows], "actions": actions[rows]}
            drawn = self.expert.sample(size)
            expert = {"obs": drawn["obs"], "actions": drawn["actions"]}
            if cfg.absorbing:
                policy["absorbed"] = self._absorbed(size, self._after.sum(), len(obs))
                expert["absorbed"] = self._absorbed(size, self._expert_after, expert_size)
            result = run.counted(self.agent.update_discriminator(policy, expert, global_step=run.step))
        run.note(**result.metrics)

    def _absorbed(self, size: int, after: float, rows: int) -> torch.Tensor:
        """Which rows of a batch stand for the time after episodes, in proportion to how long that is."""
        share = after / (after + rows)
        drawn = self.rows.generator.random(size, dtype=np.float32) < share
        return torch.from_numpy(drawn.astype(np.float32)).to(self._run.device)

    def pay(self, obs: torch.Tensor, actions: torch.Tensor) -> None:
        """Put the discriminator's rewards in place of the environment's."""
        rollout, cfg, agent = self._rollout, self._cfg, self.agent
        pieces = zip(obs.split(4_096), actions.split(4_096))
        rewards = torch.cat([agent.discriminator_reward(*piece) for piece in pieces]).cpu().numpy()
        rewards = rewards.reshape(rollout.rewards.shape)
        self._run.note(imitation_reward=float(rewards.mean()))
        if cfg.absorbing:  # a termination is followed by that state for ever
            one = torch.ones(1, device=obs.device)
            forever = float(agent.discriminator_reward(obs[:1], actions[:1], one)) * cfg.gamma / (1 - cfg.gamma)
            rewards = rewards + np.float32(forever) * rollout.terminated
        if self.learned_scale is not None:
            for row, ended in zip(rewards, np.maximum(rollout.terminated, rollout.truncated)):
                self.learned_scale.observe(row, ended)
            rewards = self.learned_scale.scaled(rewards)  # by one deviation for the whole rollout
        rollout.rewards[:] = rewards


def build(cfg: GAILOptions, plan: Blueprint) -> GAIL:
    spaces = plan.spaces
    sizes = (cfg.features_dim,) if spaces.image and cfg.features_dim else cfg.hidden_sizes
    policy = plan.make(
        MLPActorCritic,
        **plan.shape,
        head=plan.head,
        hidden_sizes=sizes,
        initial_log_std=cfg.initial_log_std,
        **({"head_sizes": cfg.head_hidden_sizes} if spaces.image else {}),
    )
    head_sizes = cfg.discriminator_head_hidden_sizes if spaces.image else None
    discriminator = replace(plan, network=None).make(
        MLPGAILDiscriminator,
        **plan.shape,
        action_dim=spaces.num_actions if spaces.action_kind == "discrete" else spaces.action_dim,
        hidden_sizes=cfg.discriminator_hidden_sizes if head_sizes is None else head_sizes,
        features_dim=cfg.discriminator_features_dim,
        normalize=cfg.normalize_discriminator,
        absorbing=cfg.absorbing,
    )
    return GAIL(
        policy=policy,
        discriminator=discriminator,
        discriminator_learning_rate=cfg.discriminator_learning_rate,
        reward_type=cfg.reward_type,
        label_smoothing=cfg.label_smoothing,
        gradient_penalty=cfg.gradient_penalty,
        **cfg.learner(plan),
    )


SPECS = {"gail": AlgorithmSpec(name="gail", config=GAILOptions, build=build, loop=GAILLoop, obs=("vector", "image"))}
train_gail = SPECS["gail"].train
