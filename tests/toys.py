"""Small environments with known answers, and tiny configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training import Callback, TrainConfig
from rl_training.tracking.jsonl import MetricsFile

OFF_POLICY = {"buffer_capacity": 500, "batch_size": 16, "learning_starts": 20}
VALUE_BASED = {**OFF_POLICY, "hidden_sizes": [16, 16], "target_update_interval": 10}
OFFLINE = {"dataset_size": 300, "batch_size": 16, "hidden_sizes": [16, 16]}
MODEL = {
    **{"hidden_sizes": [16, 16], "model_hidden_sizes": [16, 16], "num_ensembles": 3, "num_elites": 2},
    **{"model_batch_size": 16, "model_updates": 40, "rollout_batch_size": 50},
}
SMOKE: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {"num_steps": 32, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [16]}),
    "ppg": (
        "CartPole-v1",
        {
            **{"num_steps": 32, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [16], "aux_frequency": 3},
            **{"aux_epochs": 2, "aux_minibatch_size": 32},
        },
    ),
    "gail": (
        "CartPole-v1",
        {
            **{"num_steps": 32, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [16]},
            **{"expert_dataset_size": 200, "discriminator_batch_size": 16, "discriminator_hidden_sizes": [16]},
        },
    ),
    "dreamer": (
        "CartPole-v1",
        {
            **{
                "buffer_capacity": 500,
                "batch_size": 3,
                "sequence_length": 8,
                "learning_starts": 20,
                "train_frequency": 16,
            },
            **{"size": "nano", "imagination_horizon": 3},
        },
    ),
    "dqn": ("CartPole-v1", VALUE_BASED),
    "qr_dqn": ("CartPole-v1", {**VALUE_BASED, "num_quantiles": 5}),
    "iqn": ("CartPole-v1", {**VALUE_BASED, "num_quantiles": 4, "action_samples": 5, "embedding_dim": 6}),
    "fqf": ("CartPole-v1", {**VALUE_BASED, "num_quantiles": 4, "embedding_dim": 6}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "hidden_sizes": [16, 16], "initial_random_steps": 20}),
    "bc": ("Pendulum-v1", OFFLINE),
    "td3_bc": ("Pendulum-v1", OFFLINE),
    "iql": ("Pendulum-v1", OFFLINE),
    "cql": ("Pendulum-v1", {**OFFLINE, "num_cql_samples": 3}),
    "pets": (
        "Pendulum-v1",
        {
            **{"buffer_capacity": 500, "batch_size": 16, "learning_starts": 30, "initial_random_steps": 30},
            **{"train_frequency": 30, "model_hidden_sizes": [16, 16], "num_ensembles": 3, "planning_horizon": 3},
            "model_updates_per_step": 1.0,
            **{"planning_candidates": 8, "planning_topk": 3, "planning_iterations": 2, "planning_particles": 3},
        },
    ),
    "mbpo": (
        "Pendulum-v1",
        {
            **OFF_POLICY,
            **MODEL,
            "initial_random_steps": 20,
            "gradient_updates_per_step": 2,
            "model_train_frequency": 40,
        },
    ),
    "mopo": ("Pendulum-v1", {**OFFLINE, **MODEL, "rollout_refresh_interval": 30, "rollout_horizon": 2}),
    "rlpd": (
        "Pendulum-v1",
        {
            **{**OFF_POLICY, "hidden_sizes": [16, 16], "initial_random_steps": 20, "dataset_size": 300},
            **{"gradient_updates_per_step": 3, "num_critics": 4, "offline_pretrain_updates": 5},
        },
    ),
}


def tiny_config(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    """Fields of TrainConfig by name; anything else is an option of the algorithm."""
    env_id, options = SMOKE[algo]
    fields = {k: v for k, v in changes.items() if k in TrainConfig.model_fields}
    options = {**options, **{k: v for k, v in changes.items() if k not in fields}, **fields.pop("algo_kwargs", {})}
    base = {
        "algo": algo,
        "env_id": env_id,
        "seed": 3,
        "total_timesteps": 128,
        "output_dir": folder,
        "eval_episodes": 1,
        "threads": 1,
    }
    return TrainConfig(**{**base, "progress": "off", **fields, "algo_kwargs": options})


class Counter(gym.Env):
    """Observes t; truncates (or terminates) after ``limit`` steps; pays 1."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, limit: int = 3, terminate: bool = False, actions: gym.Space | None = None) -> None:
        self.limit, self.terminate, self.t = limit, terminate, 0
        self.action_space = actions if actions is not None else gym.spaces.Discrete(2)

    def _obs(self) -> np.ndarray:
        return np.array([self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        over = self.t >= self.limit
        return self._obs(), 1.0, over and self.terminate, over and not self.terminate, {}


class OneState(Counter):
    """The same observation for ever: only bootstrapping tells a cut from an end."""

    def _obs(self) -> np.ndarray:
        return np.ones(1, np.float32)


class Pictures(Counter):
    """A picture whose brightness is t."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def __init__(self) -> None:
        super().__init__(limit=9)

    def _obs(self) -> np.ndarray:
        return np.full((1, 36, 36), 20 * self.t, np.uint8)


class DictCounter(Counter):
    """Observes t and t modulo 3, as a Dict."""

    observation_space = gym.spaces.Dict(
        {"t": gym.spaces.Box(-1, 99, (1,), np.float32), "phase": gym.spaces.Discrete(3)}
    )

    def _obs(self):
        return {"t": np.array([self.t], np.float32), "phase": self.t % 3}


class ImageEnv(Counter):
    """Observes an image whose every pixel is t."""

    def __init__(self, shape=(48, 48, 3), **kwargs):
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def _obs(self):
        return np.full(self.observation_space.shape, self.t, np.uint8)


class Broken(Counter):
    """Fails in a chosen way at its ``at``-th step."""

    def __init__(self, how: str, at: int = 50, **kwargs: Any) -> None:
        super().__init__(limit=10, **kwargs)
        self.how, self.at, self.count = how, at, 0

    def step(self, action):
        self.count += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.count >= self.at:
            if self.how == "raises":
                raise KeyError("the simulator lost a wheel")
            if self.how == "nan observation":
                obs = np.full(1, np.nan, np.float32)
            if self.how == "nan reward":
                reward = float("nan")
        return obs, reward, terminated, truncated, info


class Table(nn.Module):
    """Values read from a table by an integer observation."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows, dtype=torch.float32))

    def forward(self, obs):
        return self.rows[obs[:, 0].long()]


def assert_same(a: Any, b: Any, path: str = "state") -> None:
    """Equal to the last bit, tensor for tensor, and of the same structure."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and a.keys() == b.keys(), f"{path}: {sorted(a)} against {sorted(b)}"
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, path
        assert torch.equal(a, b), f"{path} differs by up to {(a.double() - b.double()).abs().max().item()}"
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{path}[{i}]")
    else:
        assert a == b, f"{path}: {a} against {b}"


class StopAt(Callback):
    """Stops a run at the first update after each of these steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = list(steps)

    def on_update_end(self, trainer, result):
        if self.steps and trainer.global_step >= self.steps[0]:
            self.steps.pop(0)
            trainer.request_stop("a test")


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, without their times."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def same_end(a: Any, b: Any) -> None:
    """Two checkpoints, of which no bit differs."""
    for part in ("algorithm_state", "buffer_state", "trainer_state"):
        assert_same(getattr(a, part), getattr(b, part), part)


def written_run(
    folder: Path,
    algo: str = "ppo",
    env_id: str = "CartPole-v1",
    seed: int = 1,
    evaluations: Any = ((100, 10.0), (200, 20.0)),
    *,
    episodes: Any = (),
    status: str = "finished",
    **options: Any,
) -> Path:
    """A run directory as training would leave it, with these evaluations and training returns, without the training."""
    text = " ".join(f"{k}={v}" for k, v in options.items())
    run = folder / f"{algo}__{env_id}__seed{seed}{text and '__'}{text}"
    run.mkdir(parents=True)
    config = {"algo": algo, "env_id": env_id, "seed": seed, "total_timesteps": 200, "algo_kwargs": options}
    (run / "config.yaml").write_text(json.dumps({**config, "output_dir": str(folder)}))  # JSON is YAML
    facts = {"status": status, "step": 200, "seconds": 61.5, "command": ["rl-training", "train", "--seed", str(seed)]}
    facts |= {"git": {"commit": "abcdef0123456789", "modified": True}, "versions": {"python": "3.11"}}
    (run / "metadata.json").write_text(json.dumps({**facts, "hardware": {"processor": "abacus", "cores": 2}}))
    metrics = MetricsFile(run / "metrics.jsonl")
    for step, value in episodes:
        metrics.write(step, {"policy_loss": 0.1, "episode_return": value, "episode_length": 9.0})
    for step, value in evaluations:
        metrics.write(step, {"eval_return_mean": value, "eval_return_std": 0.0})
    metrics.close()
    return run


class Reaching(gym.Env):
    """Episodes of ``limit`` steps that say in their last info whether they succeeded (by a coin) and how far away they
    ended (``scale`` times the episode's number); infos before the last say something else."""

    def __init__(self, limit: int = 5, scale: float = 1.0, continuous: bool = False, width: float = 1.0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        box = gym.spaces.Box(-width, width, (1,), np.float32)
        self.action_space = box if continuous else gym.spaces.Discrete(2)
        self.limit, self.scale, self.t = limit, scale, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.lucky = 0, bool(self.np_random.integers(2))
        self.distance = self.scale * float(self.np_random.uniform(1, 2))
        return np.array([0, self.lucky], np.float32), {"is_success": True, "distance": -1.0}

    def step(self, action):
        self.t += 1
        over = self.t >= self.limit
        info = {"is_success": over and self.lucky, "distance": self.distance if over else -1.0, "note": "text"}
        return np.array([self.t, self.lucky], np.float32), float(np.sum(action)), False, over, info


gym.register("Reaching-v0", entry_point=Reaching, max_episode_steps=100)


class Signs(gym.Env):
    """Episodes of a few steps that pay 1 for telling whether the side of an image that is bright agrees with the sign of
    a number: neither says anything alone."""

    observation_space = gym.spaces.Dict(
        {"eye": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8), "sign": gym.spaces.Box(-1, 1, (1,), np.float32)}
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self, limit: int = 4) -> None:
        self.limit, self.t = limit, 0

    def _obs(self) -> dict[str, np.ndarray]:
        self.right, self.positive = map(bool, self.np_random.integers(2, size=2))
        eye = np.zeros((7, 7, 3), np.uint8)
        eye[:, 4:] = 255 * self.right
        eye[:, :3] = 255 * (not self.right)
        return {"eye": eye, "sign": np.array([1.0 if self.positive else -1.0], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        reward = float(bool(action) == (self.right == self.positive))
        return self._obs(), reward, False, self.t >= self.limit, {}


class Sampled(Counter):
    """Observes samples of a space that follow from t."""

    def __init__(self, space: gym.Space, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = space

    def _obs(self) -> Any:
        self.observation_space.seed(self.t)
        return self.observation_space.sample()
