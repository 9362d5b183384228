"""What callbacks receive after environment steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["CollectResult"]


@dataclass(slots=True)
class CollectResult:
    """Counts, episode metrics and last observations of the steps just taken."""

    num_env_steps: int
    num_episodes: int
    metrics: dict[str, float] = field(default_factory=dict)
    last_obs: np.ndarray | None = None
