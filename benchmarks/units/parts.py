"""Learning from observations of several parts, and from one: python parts.py UNIT ours|flat|flattened|painted

``ours`` sees a Dict. ``flat`` sees the same numbers as one box that the environment makes itself, ``flattened`` by Gymnasium's
wrapper; ``painted`` sees a picture with the numbers in a channel of their own, which is the one box for a picture and numbers.
"""

from __future__ import annotations

import sys
import tempfile

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation
from meter import THREADS
from timing import Timing

from rl_training import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec

NUMBERS, SIDE = 12, 24
OPTIONS = {  # algorithm, environments, steps before the measurement, its options
    "dict_ppo": ("ppo", 8, 3072, {"num_steps": 128, "minibatch_size": 256, "update_epochs": 4}),
    "dict_picture_ppo": ("ppo", 8, 512, {"num_steps": 32, "minibatch_size": 64, "update_epochs": 4, "hidden_sizes": [64]}),
    "dict_sac": ("sac", 1, 450, {"buffer_capacity": 50_000, "learning_starts": 300, "initial_random_steps": 300, "batch_size": 256}),
}  # fmt: skip


class Flat(gym.Env):
    """Twelve numbers that follow the actions, with about as much work in a step as CartPole has."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (NUMBERS,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.state = 0, self.np_random.standard_normal(NUMBERS, np.float32)
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        self.state = 0.9 * self.state
        self.state[:2] += action
        reward = -float(np.square(self.state).sum())
        return self.seen(), reward, False, self.t >= 200, {}

    def seen(self):
        return self.state


class Parted(Flat):
    """The same as a Dict of three parts."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-np.inf, np.inf, (4,), np.float32) for name in ("arm", "goal", "hand")}
    )

    def seen(self):
        return {"arm": self.state[:4], "goal": self.state[4:8], "hand": self.state[8:]}


class Pictured(Flat):
    """A picture, and the numbers beside it."""

    observation_space = gym.spaces.Dict(
        {"numbers": Flat.observation_space, "picture": gym.spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)}
    )

    def seen(self):
        return {"numbers": self.state, "picture": np.full((3, SIDE, SIDE), self.t, np.uint8)}


class Painted(Flat):
    """The picture with a fourth channel, which holds the numbers."""

    observation_space = gym.spaces.Box(0, 255, (4, SIDE, SIDE), np.uint8)

    def seen(self):
        picture = np.full((4, SIDE, SIDE), self.t, np.uint8)
        picture[3, 0, :NUMBERS] = (128 + 16 * self.state).clip(0, 255)
        return picture


MAKERS = {
    "ours": Parted,
    "flat": Flat,
    "flattened": lambda: FlattenObservation(Parted()),
    "painted": Painted,
}


if __name__ == "__main__":
    unit, who = sys.argv[1:]
    algo, num_envs, warm, options = OPTIONS[unit]
    maker = Pictured if unit == "dict_picture_ppo" and who == "ours" else MAKERS[who]
    if who == "painted":
        options["hidden_sizes"] = [256]  # as many features as a Dict's picture has before it is joined with the numbers
    timing = Timing(warm)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo, env_id="-", num_envs=num_envs, total_timesteps=10**9, output_dir=folder, eval_episodes=1, threads=THREADS,
            progress="off", log_interval=10_000, checkpoint_interval=10**9, algo_kwargs={**options, "eval_interval": 0},
        )  # fmt: skip
        get_algorithm_spec(algo).train(config, callbacks=[timing], env=maker)
    timing.meter.report(unit, who)
