"""Where batches come from: anything with ``sample(n) -> batch`` is a source."""

from rl_training.data.prioritized import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import Mixed, ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer

__all__ = ["Mixed", "PrioritizedReplayBuffer", "ReplayBuffer", "RolloutBuffer"]
