"""A module that a file names and nobody may import; it notes that somebody did."""

import os
from pathlib import Path

import gymnasium as gym

if "RL_TRAINING_CANARY" in os.environ:
    Path(os.environ["RL_TRAINING_CANARY"]).touch()


class Canary(gym.Env):
    """An environment, so that whoever imports the module finds what the file names."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,))
    action_space = gym.spaces.Discrete(2)


gym.register("Canary-v0", entry_point=Canary)
