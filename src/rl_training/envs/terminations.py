"""Where an environment's episodes terminate and what it pays, as functions: for rollouts of learned models.

``register_termination("MyEnv-v0", function)`` makes one known: (obs, actions in the environment's units, next_obs), arrays of rows,
to booleans. ``register_reward`` does the same for rewards, where they need not be learned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Rows = np.ndarray
Function = Callable[[Rows, Rows, Rows], Rows]


def never(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    return np.zeros(len(next_obs), bool)


def _finite(rows: Rows) -> Rows:
    return np.isfinite(rows).all(-1)


def hopper(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    """The observation leaves out x, so its first entry is the height; everything after that is bounded by 100."""
    healthy = (np.abs(next_obs[:, 1:]) < 100).all(-1) & (next_obs[:, 0] > 0.7) & (np.abs(next_obs[:, 1]) < 0.2)
    return ~(healthy & _finite(next_obs))


def walker2d(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    height, angle = next_obs[:, 0], next_obs[:, 1]
    return ~((height > 0.8) & (height < 2.0) & (np.abs(angle) < 1.0) & _finite(next_obs))


def ant(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    height = next_obs[:, 0]
    return ~((height >= 0.2) & (height <= 1.0) & _finite(next_obs))


def humanoid(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    height = next_obs[:, 0]
    return ~((height > 1.0) & (height < 2.0) & _finite(next_obs))


def inverted_pendulum(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    return ~((np.abs(next_obs[:, 1]) <= 0.2) & _finite(next_obs))


def inverted_double_pendulum(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    """The tip's height: both poles are 0.6 long, and the second angle is relative to the first."""
    sin1, sin2, cos1, cos2 = (next_obs[:, i] for i in (1, 2, 3, 4))
    height = 0.6 * cos1 + 0.6 * (cos1 * cos2 - sin1 * sin2)
    return ~((height > 1.0) & _finite(next_obs))


def cart_pole(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    return (np.abs(next_obs[:, 0]) > 2.4) | (np.abs(next_obs[:, 2]) > 12 * 2 * np.pi / 360)


def mountain_car(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    return (next_obs[:, 0] >= 0.5) & (next_obs[:, 1] >= 0)


def mountain_car_continuous(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    return (next_obs[:, 0] >= 0.45) & (next_obs[:, 1] >= 0)


def acrobot(obs: Rows, actions: Rows, next_obs: Rows) -> Rows:
    cos1, sin1, cos2, sin2 = (next_obs[:, i] for i in range(4))
    return -cos1 - (cos1 * cos2 - sin1 * sin2) > 1.0


_TERMINATIONS: dict[str, Function] = {
    "Hopper-v4": hopper,
    "Hopper-v5": hopper,
    "Walker2d-v4": walker2d,
    "Walker2d-v5": walker2d,
    "Ant-v4": ant,
    "Ant-v5": ant,
    "Humanoid-v4": humanoid,
    "Humanoid-v5": humanoid,
    "InvertedPendulum-v4": inverted_pendulum,
    "InvertedPendulum-v5": inverted_pendulum,
    "InvertedDoublePendulum-v4": inverted_double_pendulum,
    "InvertedDoublePendulum-v5": inverted_double_pendulum,
    "CartPole-v0": cart_pole,
    "CartPole-v1": cart_pole,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car_continuous,
    "Acrobot-v1": acrobot,
    **dict.fromkeys(
        ("Pendulum-v1", "HalfCheetah-v4", "HalfCheetah-v5", "Reacher-v4", "Reacher-v5", "Pusher-v4", "Pusher-v5"), never
    ),
    **dict.fromkeys(("Swimmer-v4", "Swimmer-v5", "HumanoidStandup-v4", "HumanoidStandup-v5"), never),
}
_REWARDS: dict[str, Function] = {}


def register_termination(env_id: str, function: Function) -> None:
    _TERMINATIONS[env_id] = function


def register_reward(env_id: str, function: Function) -> None:
    _REWARDS[env_id] = function


def termination_of(env_id: str) -> Function | None:
    """The environment's function, or None if none is known."""
    return _TERMINATIONS.get(env_id)


def reward_of(env_id: str) -> Function | None:
    return _REWARDS.get(env_id)
