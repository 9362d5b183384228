"""A tiny environment whose every reward, end, cut and reset is known, and whole runs on it as plain loops."""

from __future__ import annotations

import copy
import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from oracles.actors import perceptron
from rl_training import Callback
from rl_training.experiment.registry import get_algorithm_spec

LIMIT = 4  # of steps, by a wrapper
EPISODES = ((1, "terminated"), (3, "truncated"), (2, "both"), (9, "cut by the limit"), (4, "terminated"))  # steps, end
LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)
ENV_KWARGS = {"max_episode_steps": LIMIT}
Batch = dict[str, torch.Tensor]
Rows = dict[str, np.ndarray]


class Scripted(gym.Env):
    """Plays one of the ``EPISODES``, by its seed. Observes which, the step in it, and where the actions have led."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(LOW, HIGH)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.t, self.x = int(self.np_random.integers(len(EPISODES))), 0, 0.0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([self.number - 2, self.t, self.x], np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        self.x = 0.5 * self.x + float(action[0] - action[1])
        steps, end = EPISODES[self.number]
        over = self.t >= steps
        reward = self.t - 0.7 * self.number + float(action[0])
        return self._obs(), reward, over and end in ("terminated", "both"), over and end in ("truncated", "both"), {}


class PlainEnv:
    """Environment ``index`` of a run: its episode k starts from a seed made of (run seed, index, k)."""

    def __init__(self, seed: int, index: int) -> None:
        self.env, self.key, self.episode = Scripted(), (seed, index), -1
        self.ended: list[tuple[float, int]] = []  # returns and lengths
        self.obs = self.begin()

    def begin(self) -> np.ndarray:
        self.episode += 1
        self.t, self.total = 0, 0.0
        seed = np.random.SeedSequence((*self.key, self.episode)).generate_state(1)[0]
        return self.env.reset(seed=int(seed))[0]

    def step(self, action: np.ndarray) -> Rows:
        """A transition with its true successor, from an action in [-1, 1]; the next episode begins where one ended."""
        taken = LOW + (action + 1) / 2 * (HIGH - LOW)
        obs, reward, terminated, truncated, _ = self.env.step(np.clip(taken, LOW, HIGH).astype(np.float32))
        self.t, self.total = self.t + 1, self.total + reward
        truncated = (truncated or self.t == LIMIT) and not terminated
        row = {"obs": self.obs, "actions": action, "rewards": reward, "next_obs": obs}
        if terminated or truncated:
            self.ended.append((self.total, self.t))
            obs = self.begin()
        self.obs = obs
        return {**row, "dones": float(terminated), "truncations": float(truncated)}


def stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers that a run has for one purpose."""
    return np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(name.encode()))))


def recorded(rows: int, seed: int = 5) -> Rows:
    """Transitions of random actions, in [-1, 1]."""
    env, rng = PlainEnv(seed, 0), np.random.default_rng(seed)
    steps = [env.step(rng.uniform(-1, 1, 2).astype(np.float32)) for _ in range(rows)]
    return {name: np.stack([step[name] for step in steps]).astype(np.float32) for name in steps[0]}


def write_npz(path: Any, data: Rows) -> str:
    """The transitions as a file that anybody might have written, with actions in the environment's units."""
    units = LOW + (data["actions"] + 1) / 2 * (HIGH - LOW)
    rest = {name: data[name] for name in ("obs", "rewards", "next_obs", "truncations")}
    np.savez(path, actions=units, terminations=data["dones"], **rest)
    return str(path)


def rate(schedule: str | None, step: int, total: int, warmup: int) -> float:
    """What a learning rate is multiplied by at a step."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (total - 1 - warmup)
    return {None: 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[schedule]


def set_rates(oracle: Any, scale: float) -> None:
    for optimizer in (part for part in vars(oracle).values() if isinstance(part, torch.optim.Optimizer)):
        group = optimizer.param_groups[0]
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * scale


class Normalizer:
    """Scales by the mean and deviation of everything in ``rows``."""

    def __init__(self, rows: list[np.ndarray]) -> None:
        self.rows = rows

    def __call__(self, batch: Batch) -> Batch:
        """A batch with scaled observations."""
        return {name: self.scaled(column) if "obs" in name else column for name, column in batch.items()}

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        rows = np.concatenate(self.rows).astype(np.float64)
        mean, std = rows.mean(0), np.sqrt(rows.var(0) + 1e-8)
        return ((x - torch.tensor(mean)) / torch.tensor(std)).clamp(-10, 10).float()


class OffPolicyScript:
    """A run of SAC or RLPD: ``replay`` is its ring of transitions, ``batches`` what it learned from, and when."""

    def __init__(
        self, oracle: Any, *, seed: int, num_envs: int, total: int, options: Mapping[str, Any],
        prior: Rows | None = None, reward: Callable[[np.ndarray], np.ndarray] = lambda rewards: rewards,
    ) -> None:  # fmt: skip
        self.oracle, self.total, self.options, self.reward = oracle, total, options, reward
        self.envs = [PlainEnv(seed, i) for i in range(num_envs)]
        self.exploration, self.drawing, self.prior_drawing = (
            stream(seed, name) for name in ("exploration", "replay", "dataset sampling")
        )
        self.prior, self.capacity = prior, min(options["buffer_capacity"], total + num_envs)
        self.replay: list[Rows] = []
        self.stored = self.step = self.epochs = 0
        self.batches: list[tuple[int, Batch]] = []
        self.metrics: dict[str, torch.Tensor] = {}
        normalise = options.get("normalize_observations", False)
        self.normalizer = Normalizer([] if prior is None else [prior["obs"]]) if normalise else None

    def run(self) -> OffPolicyScript:
        o, n = self.options, len(self.envs)
        for _ in range(o.get("offline_pretrain_updates", 0)):
            set_rates(self.oracle, rate(o.get("learning_rate_schedule"), 0, self.total, o.get("warmup_steps", 0)))
            self.learn(self.draw_prior(o["batch_size"] * o["gradient_updates_per_step"]))
        while self.step < self.total and not self.spent and self.epochs < o.get("max_epochs", math.inf):
            scale = rate(o.get("learning_rate_schedule"), self.step, self.total, o.get("warmup_steps", 0))
            set_rates(self.oracle, scale)
            self.collect()
            if self.step >= max(o["learning_starts"], o["batch_size"]):
                for moment in range(self.step - n + 1, self.step + 1):
                    if moment % o.get("train_frequency", 1) == 0:
                        self.learn_all()
        return self

    @property
    def spent(self) -> bool:
        return len(self.batches) >= self.options.get("max_updates", math.inf)

    def collect(self) -> None:
        obs = np.stack([env.obs for env in self.envs])
        if self.normalizer is not None:
            self.normalizer.rows.append(obs)
        shape = (len(obs), 2)
        if self.step < self.options["initial_random_steps"]:
            actions = self.exploration.uniform(-1, 1, shape).astype(np.float32)
        else:
            seen = torch.tensor(obs) if self.normalizer is None else self.normalizer.scaled(torch.tensor(obs))
            mean, log_std = perceptron(self.oracle.weights, "actor", seen).detach().chunk(2, -1)
            noise = torch.tensor(self.exploration.standard_normal(shape, dtype=np.float32))
            actions = (mean + log_std.clamp(-20, 2).exp() * noise).tanh().numpy()
        for env, action in zip(self.envs, actions):
            row = env.step(action)
            row["rewards"] = self.reward(np.float32(row["rewards"]))
            if len(self.replay) < self.capacity:
                self.replay.append(row)
            else:
                self.replay[self.stored % self.capacity] = row
            self.stored += 1
        self.step += len(self.envs)

    def learn_all(self) -> None:
        o, times = self.options, self.options["gradient_updates_per_step"]
        if self.prior is None:
            for _ in range(times):
                if self.spent:
                    return
                self.learn(self.draw_replay(o["batch_size"]))
            self.epochs += 1
            return
        rows = o["batch_size"] * times
        share = int(o["batch_size"] * o["offline_batch_ratio"]) * times  # the same in every slice
        parts = [(self.draw_prior, share), (self.draw_replay, rows - share)]
        drawn = [(draw(count), count) for draw, count in parts if count]
        places = np.concatenate([(np.arange(count) + 0.5) * rows / count for _, count in drawn])
        order = torch.tensor(np.argsort(places, kind="stable"))  # every part spread evenly
        names = drawn[0][0]
        self.learn({name: torch.cat([batch[name] for batch, _ in drawn])[order] for name in names})
        self.epochs += 1

    def draw_replay(self, rows: int) -> Batch:
        chosen = [self.replay[i] for i in self.drawing.integers(len(self.replay), size=rows)]
        return {name: torch.tensor(np.stack([row[name] for row in chosen])).float() for name in chosen[0]}

    def draw_prior(self, rows: int) -> Batch:
        index = self.prior_drawing.integers(len(self.prior["rewards"]), size=rows)
        return {name: torch.tensor(column[index]) for name, column in self.prior.items()}

    def learn(self, batch: Batch) -> None:
        self.batches.append((self.step, batch))
        frozen = len(self.batches) <= self.options.get("frozen_actor_updates", 0)
        update = self.oracle.update_critics if frozen else self.oracle.update
        self.metrics = update(batch if self.normalizer is None else self.normalizer(batch))


class Watch(Callback):
    """Watches a run: the batches of its updates and when they came, its loop, and the state that it began with."""

    def __init__(self, algo: str, network: str = "model") -> None:
        self.batches: list[tuple[int, Batch]] = []
        self.weights: Any = None
        self.evaluated: list[int] = []
        spec, watch = get_algorithm_spec(algo), self

        class Watched(spec.loop):
            def __init__(self, run: Any, agent: Any, cfg: Any) -> None:
                super().__init__(run, agent, cfg)
                watch.loop, learn = self, run.update
                if watch.weights is None:  # else the run goes on, from a checkpoint
                    watch.weights = copy.deepcopy(getattr(agent, network).state_dict())
                    watch.random = torch.get_rng_state()

                def update(agent: Any, batch: Batch, method: Any = None) -> Any:
                    watch.batches.append((run.step, {name: column.clone() for name, column in batch.items()}))
                    return learn(agent, batch, method)

                run.update = update

        self.spec = dataclasses.replace(spec, loop=Watched)

    def on_eval_end(self, trainer, metrics):
        self.evaluated.append(trainer.global_step)


def assert_same_batches(ours: list[tuple[int, Batch]], theirs: list[tuple[int, Batch]]) -> None:
    """The same rows, drawn at the same steps."""
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    for number, ((step, batch), (_, expected)) in enumerate(zip(ours, theirs)):
        assert set(batch) == {"obs", "actions", "rewards", "next_obs", "dones"}
        for name, column in batch.items():
            torch.testing.assert_close(
                column, expected[name], rtol=1e-4, atol=1e-4,
                msg=lambda text, name=name, step=step, number=number: f"{name} of update {number}, step {step}: {text}",
            )  # fmt: skip
