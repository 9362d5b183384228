"""What every loop is: an iterable object that holds state and pauses wherever it is safe to stop."""

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
    """``agent`` and whatever else is public is saved; ``_run`` and ``_cfg`` are how it works."""

    agent: Any

    def __init__(self, run: Run, agent: Learner, cfg: Any) -> None:
        self.agent, self._run, self._cfg = agent, run, cfg

    def __iter__(self) -> Iterator[None]:
        raise NotImplementedError

    @property
    def mid_step(self) -> bool:
        """Whether this ``yield`` is in the middle of a step's work: the run may stop here, but neither evaluate nor log."""
        return False

    def expected_updates(self, total_timesteps: int) -> int:
        """Roughly how many updates the whole run makes; decides whether compiling pays."""
        raise NotImplementedError

    def first_update_step(self) -> int:
        """The environment step at which the first update is made, however long the run is; 0: at the beginning."""
        return 0

    def metrics(self) -> dict[str, float]:
        """What the loop itself has to report, read at log time."""
        return {}

    def close(self) -> None:
        """Let go of environments."""


class OnlineLoop(Loop):
    """A loop that steps environments: the run's own, unless a collector is given."""

    def __init__(self, run: Run, agent: Learner, cfg: Any, *, collector: Collector | None = None) -> None:
        super().__init__(run, agent, cfg)
        self.collector = run.collector() if collector is None else collector
        self.exploration = run.rng("exploration")
        normalizer = getattr(agent, "normalizer", None)
        self._observe = normalizer.observe if normalizer is not None else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.collector.lost.any():
            self.cut(self.collector.lost, self.collector.lost_at)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        """Hook: the environments where ``lost`` (N,) is set could not be rebuilt on resume. Their episodes ended at ``obs`` (N, ...),
        and whatever follows an episode from step to step must begin anew."""

    def metrics(self) -> dict[str, float]:
        return self.collector.metrics()

    def close(self) -> None:
        self.collector.close()
