"""What training loops have in common: they hold state, and ``yield`` wherever it is safe to stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rl_training.algorithms.base import Learner
from rl_training.base.state import Stateful
from rl_training.envs.collector import Collector
from rl_training.runtime.run import Run

__all__ = ["Loop", "OnlineLoop"]


class Loop(Stateful):
    """A training loop. ``agent`` and whatever else is public is its saved state; iterating it trains."""

    agent: Any

    def __init__(self, run: Run, agent: Learner, cfg: Any) -> None:
        self.agent, self._run, self._cfg = agent, run, cfg

    def __iter__(self) -> Iterator[None]:
        raise NotImplementedError

    @property
    def mid_step(self) -> bool:
        """Whether this ``yield`` is in the middle of a step's work: the run may save and stop, but nothing is evaluated
        or logged before the work is done."""
        return False

    def expected_updates(self, total_timesteps: int) -> int:
        """Roughly how many updates the whole run makes; decides whether compiling pays."""
        raise NotImplementedError

    def first_update_step(self) -> int:
        """The environment step at which the first update is made, however long the run is; 0: at the beginning."""
        return 0

    def metrics(self) -> dict[str, float]:
        """The loop's own metrics, read at log time."""
        return {}

    def close(self) -> None:
        """Close environments."""


class OnlineLoop(Loop):
    """A loop that steps environments: the run's own, unless a collector is given."""

    def __init__(self, run: Run, agent: Learner, cfg: Any, *, collector: Collector | None = None) -> None:
        super().__init__(run, agent, cfg)
        self.collector = run.collector() if collector is None else collector
        self.exploration = run.rng("exploration")
        self._observe: Any = agent.normalizer.observe if agent.normalizer is not None else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.collector.lost.any():
            self.cut(self.collector.lost, self.collector.lost_at)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        """Hook: the environments where ``lost`` (N,) is set could not be rebuilt on resume, so their episodes ended at
        ``obs`` (N, ...); whatever is carried from step to step of an episode must begin anew."""

    def metrics(self) -> dict[str, float]:
        return self.collector.metrics()

    def close(self) -> None:
        self.collector.close()
