"""Steps environments, and can rebuild them exactly on resume."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class CollectResult:
    """What callbacks hear about collected experience."""

    num_env_steps: int
    num_episodes: int
    metrics: dict[str, float] = field(default_factory=dict)
    last_obs: np.ndarray | None = None
