"""Recording the steps of one environment as a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.base.state import Rng
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.collector import Collector, Step
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces

__all__ = ["Recorder", "collect_random"]


def collect_random(
    factory: EnvFactory, steps: int, seed: int, *, episodes: int | None = None, check_rewards: bool = True
) -> TransitionDataset:
    """``steps`` transitions of uniformly random actions, or fewer if ``episodes`` end sooner; seeded."""
    rng = Rng(seed, "random dataset").generator
    collector = Collector(factory, 1, seed, rewards=lambda rewards: rewards, check_rewards=check_rewards)
    try:
        recorder = Recorder(collector.spaces)
        while len(recorder) < steps and (episodes is None or collector.episodes < episodes):
            actions = collector.spaces.random_actions(rng, 1, collector.obs)
            recorder.add(actions, collector.step(actions))
        return recorder.dataset({"seed": seed, "behaviour": {"algo": "random"}})
    finally:
        collector.close()


class Recorder:
    """Steps of one environment, gathered into a dataset."""

    def __init__(self, spaces: Spaces) -> None:
        if spaces.action_kind == "joint":
            raise ValueError("datasets hold no actions that mix choices and numbers, of a Tuple or Dict")
        self._spaces = spaces
        self._rows: list[tuple[np.ndarray, Any, float, np.ndarray, float, float]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, actions: np.ndarray, step: Step) -> None:
        """A step and the agent's actions (1, ...) that led to it."""
        env_action = np.asarray(self._spaces.to_env(actions)[0])
        flags = (float(step.terminated[0]), float(step.truncated[0]))
        self._rows.append((step.obs[0].copy(), env_action, float(step.rewards[0]), step.next_obs[0].copy(), *flags))

    def dataset(self, meta: dict[str, Any]) -> TransitionDataset:
        names = ("obs", "actions", "rewards", "next_obs", "terminations", "truncations")
        columns = {name: np.stack(column) for name, column in zip(names, zip(*self._rows))} if self._rows else {}
        columns |= {name: self._spaces.unmasked(columns[name]) for name in ("obs", "next_obs") if name in columns}
        return TransitionDataset.from_dict({**columns, "meta": {**meta, **self._spaces.recorded()}})
