"""Where batches come from: anything with ``sample(n) -> batch`` is a source."""

from rl_training.data.dataset_files import load_transition_dataset
from rl_training.data.errors import DatasetError
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.offline_dataset import TransitionDataset, mix_transition_datasets
from rl_training.data.prioritized import PrioritizedReplayBuffer
from rl_training.data.recurrent_replay import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import Mixed, Source

__all__ = [
    "DatasetError",
    "HindsightReplayBuffer",
    "Mixed",
    "PrioritizedReplayBuffer",
    "RecurrentReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "Source",
    "TransitionDataset",
    "load_transition_dataset",
    "mix_transition_datasets",
]
