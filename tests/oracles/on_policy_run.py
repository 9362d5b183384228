"""A run of PPO, PPG or GAIL as one plain loop: environments one by one, lists of everything, sums instead of recursions.

The loop takes the actions that another run took, and draws what else is random from streams of the same seed and name,
in the same order: permutations of a rollout's rows, and the rows of discriminator batches.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.gae import advantages_and_targets
from oracles.normalisers import ObservationStatistics, RewardScale


def stream(seed: int, name: str) -> np.random.Generator:
    """Random numbers for one purpose."""
    return np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(name.encode()))))


def scheduled(schedule: dict[str, Any] | None, constant: float, step: int, total: int, warmup: int = 0) -> float:
    """Linear or by half a cosine from ``start`` at the first step to ``end`` at the last one, after a warm-up from zero."""
    if step < warmup:
        return constant * (step + 1) / warmup
    if schedule is None:
        return constant
    progress = (step - warmup) / (total - 1 - warmup)
    share = progress if schedule["type"] == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return schedule["start"] + (schedule["end"] - schedule["start"]) * share


class PlainRun:
    """``envs`` are reset with ``reset_seed(environment, episode)``. ``actions_of(agent's actions)`` are the environment's."""

    def __init__(
        self,
        learner: Any,
        envs: Sequence[Any],
        options: dict[str, Any],
        *,
        seed: int,
        total: int,
        reset_seed: Callable[[int, int], int],
        to_env: Callable[[Any], Any] = lambda action: action,
    ) -> None:
        self.learner, self.envs, self.options, self.total = learner, envs, options, total
        self._reset_seed, self._to_env, self._seed, self.step = reset_seed, to_env, seed, 0
        self.statistics = ObservationStatistics()
        self.scale = RewardScale(len(envs), options["gamma"])
        self._permutations = stream(seed, "minibatches")
        self._episodes = [0] * len(envs)
        self.lengths = [0] * len(envs)
        self.obs = [env.reset(seed=reset_seed(i, 0))[0] for i, env in enumerate(envs)]

    def orders(self, rows: int) -> Iterator[Any]:
        while True:
            yield self._permutations.permutation(rows)

    def seen(self, obs: Any) -> Tensor:
        """Observations as the networks see them."""
        rows = np.asarray(obs, np.float64)
        return torch.as_tensor(self.statistics.normalised(rows) if self.options["normalize_observations"] else rows)

    def values(self, obs: Any) -> np.ndarray:
        with torch.no_grad():
            return self.learner.network.values(self.seen(obs)).numpy()

    def set_schedules(self) -> None:
        options, learner = self.options, self.learner
        rate = scheduled(
            options.get("learning_rate_schedule"), 1.0, self.step, self.total, options.get("warmup_steps", 0)
        )
        for name in ("learning_rate", "aux_learning_rate", "discriminator_learning_rate"):
            optimizer = name.replace("learning_rate", "optimizer")
            if hasattr(learner, optimizer):
                getattr(learner, optimizer).param_groups[0]["lr"] = rate * options[name]
        for name in ("clip_coef", "ent_coef"):
            setattr(learner, name, scheduled(options.get(f"{name}_schedule"), options[name], self.step, self.total))

    def rollout(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """One rollout (T, N) with these actions, its advantages and value targets."""
        self.set_schedules()
        steps = [self._step(row) for row in actions]
        columns = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        # the value of a step's successor: of the true last observation where the episode was cut; else of the next row's
        # observation, and after the last row of the observation that the environment is at
        following = np.concatenate([columns["values"][1:], self.values(self.obs)[None]])
        columns["next_values"] = np.where(columns["truncated"] > 0, columns.pop("final_values"), following)
        self.replace_rewards(columns)
        columns["advantages"], columns["returns"] = advantages_and_targets(
            *(columns[name] for name in ("rewards", "values", "next_values", "terminated", "truncated")),
            gamma=self.options["gamma"], gae_lambda=self.options["gae_lambda"],
        )  # fmt: skip
        return columns

    def _step(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        raw = np.array(self.obs, np.float64)
        if self.options["normalize_observations"]:
            self.statistics.observe(raw)
        seen = self.seen(raw)
        with torch.no_grad():
            values = self.learner.network.values(seen).numpy()
            logprobs = self.learner.network.log_probs(seen, torch.as_tensor(actions)).numpy()
        results = [env.step(self._to_env(action)) for env, action in zip(self.envs, actions)]
        successors, rewards, terminated, truncated, _ = map(list, zip(*results))
        final_values, ended = self.values(successors), [a or b for a, b in zip(terminated, truncated)]
        self.lengths, lengths = [n + 1 for n in self.lengths], [n + 1 for n in self.lengths]
        for i, env in enumerate(self.envs):
            self.obs[i] = successors[i]
            if ended[i]:
                self._episodes[i] += 1
                self.lengths[i] = 0
                self.obs[i], _ = env.reset(seed=self._reset_seed(i, self._episodes[i]))
        if self.options["normalize_rewards"]:
            self.scale.observe(rewards, ended)
            rewards = self.scale.scaled(rewards)
        self.step += len(self.envs)
        return {
            "raw": raw, "obs": seen.numpy(), "actions": actions, "values": values, "logprobs": logprobs,
            "rewards": np.array(rewards, np.float64), "terminated": np.array(terminated, np.float64),
            "truncated": np.array(truncated, np.float64), "final_values": final_values, "lengths": np.array(lengths),
        }  # fmt: skip

    def replace_rewards(self, columns: dict[str, np.ndarray]) -> None:
        """GAIL's rewards take the place of the environment's."""

    def learn(self, columns: dict[str, np.ndarray]) -> list[dict]:
        """Every update's metrics."""
        options, names = self.options, ("obs", "actions", "logprobs", "values", "advantages", "returns")
        rows = {name: torch.as_tensor(columns[name].reshape(-1, *columns[name].shape[2:])) for name in names}
        size = len(rows["obs"])
        passes = {
            "epochs": options["update_epochs"],
            "size": options["minibatch_size"],
            "target_kl": options.get("target_kl"),
        }
        return self.learner.learn(rows, self.orders(size), **passes)


class PlainPPG(PlainRun):
    """Advantages normalised over a rollout, and an auxiliary phase after every ``aux_frequency`` rollouts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._rollouts = 0

    def rollout(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        columns, options = super().rollout(actions), self.options
        obs, returns = (
            torch.as_tensor(columns[name].reshape(-1, *columns[name].shape[2:])) for name in ("obs", "returns")
        )
        # the newest rollout takes the place of the oldest, which matters for the order of rows only
        self._kept[self._rollouts % (options.get("aux_buffer_rollouts") or options["aux_frequency"])] = (obs, returns)
        self._rollouts += 1
        if options.get("normalize_advantages", True):
            advantages = columns["advantages"]
            columns["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return columns

    def learn(self, columns: dict[str, np.ndarray]) -> list[dict]:
        results, options = super().learn(columns), self.options
        if self._rollouts == options["aux_frequency"]:
            obs, returns = (torch.cat([self._kept[place][part] for place in sorted(self._kept)]) for part in (0, 1))
            passes = {"epochs": options["aux_epochs"], "size": options["aux_minibatch_size"]}
            results += self.learner.auxiliary_phase(obs, returns, self.orders(len(obs)), **passes)
            self._kept, self._rollouts = {}, 0
        return results


class PlainGAIL(PlainRun):
    """Before each rollout is learned from, the discriminator learns from it and then rewards it."""

    def __init__(
        self, *args: Any, expert: dict[str, np.ndarray], limit: int | None = None, box: bool = False, **kwargs: Any
    ) -> None:
        """``expert``: obs, actions, and the lengths of those of its episodes that terminated; ``limit``: of an episode."""
        super().__init__(*args, **kwargs)
        self._expert, self._limit, self._box = expert, limit, box
        self._rows, self._data = stream(self._seed, "discriminator rows"), stream(self._seed, "dataset sampling")
        self._learned_scale = RewardScale(len(self.envs), self.options["gamma"])
        self.results: list[dict] = []

    def warm_start(self) -> list[dict]:
        """Cloning, on observations as they will be scaled for acting."""
        if self.options["normalize_observations"]:
            self.statistics.observe(self._expert["obs"])
        batches = [self._expert_batch() for _ in range(self.options["bc_updates"])]
        results = [self.learner.clone(self.seen(batch["obs"]), batch["actions"]) for batch in batches]
        if results:
            self.learner.end_cloning()
        return results

    def _expert_batch(self) -> dict[str, Tensor]:
        index = self._data.integers(len(self._expert["obs"]), size=self.options["discriminator_batch_size"])
        return {name: torch.as_tensor(self._expert[name][index]) for name in ("obs", "actions")}

    def _absorbing_after(self, length: int) -> float:
        """How many absorbing states follow a termination."""
        return 1 / (1 - self.options["gamma"]) if self._limit is None else self._limit - length

    def replace_rewards(self, columns: dict[str, np.ndarray]) -> None:
        options, shape, size = self.options, columns["rewards"].shape, self.options["discriminator_batch_size"]
        obs = torch.as_tensor(columns["raw"].reshape(-1, columns["raw"].shape[-1]))
        actions = torch.as_tensor(columns["actions"].reshape(-1, *columns["actions"].shape[2:]))
        if self._box:
            actions = actions.clamp(-1, 1)  # as the environment took them
        after = sum(self._absorbing_after(n) for n in columns["lengths"][columns["terminated"] > 0])
        expert_after = sum(map(self._absorbing_after, self._expert["terminated_lengths"]))
        shares = (after / (after + len(obs)), expert_after / (expert_after + len(self._expert["obs"])))
        self.results = []
        for _ in range(options["discriminator_updates"]):
            index = torch.as_tensor(self._rows.integers(len(obs), size=size))
            policy, expert = {"obs": obs[index], "actions": actions[index]}, self._expert_batch()
            if options["absorbing"]:
                for rows, share in zip((policy, expert), shares):
                    rows["absorbed"] = torch.as_tensor(self._rows.random(size, dtype=np.float32) < share).double()
            place = torch.rand(size, 1) if options["gradient_penalty"] else None  # from torch's own generator
            self.results.append(self.learner.update_discriminator(policy, expert, place))
        rewards = self.learner.rewards(obs, actions).numpy().reshape(shape)
        self.imitation_reward = rewards.mean()
        if options["absorbing"]:  # an absorbing state pays its reward for ever, from the step after the termination on
            gamma, reward = options["gamma"], self.learner.rewards(obs[:1], actions[:1], torch.ones(1)).item()
            rewards = rewards + columns["terminated"] * reward * gamma / (1 - gamma)
        if options["scale_learned_rewards"]:
            for row, ended in zip(rewards, columns["terminated"] + columns["truncated"]):
                self._learned_scale.observe(row, ended)
            rewards = self._learned_scale.scaled(rewards, clip=math.inf)
        columns["rewards"] = rewards
