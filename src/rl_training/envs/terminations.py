"""Known terminations and rewards of environments, as functions of transitions: for plans and rollouts of learned
models.

``register_termination("MyEnv-v0", function)`` makes one known: (obs, actions in the environment's units, next_obs),
arrays of rows, to booleans. ``register_reward`` does the same for rewards, where they need not be learned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["Function", "never", "register_reward", "register_termination", "reward_of", "termination_of"]

Function = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def never(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """Episodes that are truncated but never terminate."""
    return np.zeros(len(next_obs), bool)


def _unless(healthy: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """Terminated where the state is not healthy, or not finite."""
    terminated: np.ndarray = ~(healthy & np.isfinite(next_obs).all(-1))
    return terminated


def hopper(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """The observation leaves out x, so its first entry is the height; everything after that is bounded by 100."""
    healthy = (np.abs(next_obs[:, 1:]) < 100).all(-1) & (next_obs[:, 0] > 0.7) & (np.abs(next_obs[:, 1]) < 0.2)
    return _unless(healthy, next_obs)


def walker2d(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    height, angle = next_obs[:, 0], next_obs[:, 1]
    return _unless((height > 0.8) & (height < 2.0) & (np.abs(angle) < 1.0), next_obs)


def ant(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    height = next_obs[:, 0]
    return _unless((height >= 0.2) & (height <= 1.0), next_obs)


def humanoid(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    height = next_obs[:, 0]
    return _unless((height > 1.0) & (height < 2.0), next_obs)


def inverted_pendulum(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    return _unless(np.abs(next_obs[:, 1]) <= 0.2, next_obs)


def inverted_double_pendulum(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    """The tip's height: both poles are 0.6 long, and the second angle is relative to the first."""
    sin1, sin2, cos1, cos2 = (next_obs[:, i] for i in (1, 2, 3, 4))
    height = 0.6 * cos1 + 0.6 * (cos1 * cos2 - sin1 * sin2)
    return _unless(height > 1.0, next_obs)


def cart_pole(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    outside: np.ndarray = (np.abs(next_obs[:, 0]) > 2.4) | (np.abs(next_obs[:, 2]) > 12 * 2 * np.pi / 360)
    return outside


def mountain_car(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    arrived: np.ndarray = (next_obs[:, 0] >= 0.5) & (next_obs[:, 1] >= 0)
    return arrived


def mountain_car_continuous(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    arrived: np.ndarray = (next_obs[:, 0] >= 0.45) & (next_obs[:, 1] >= 0)
    return arrived


def acrobot(obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
    cos1, sin1, cos2, sin2 = (next_obs[:, i] for i in range(4))
    above: np.ndarray = -cos1 - (cos1 * cos2 - sin1 * sin2) > 1.0
    return above


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
    """Make an environment's terminations known."""
    _TERMINATIONS[env_id] = function


def register_reward(env_id: str, function: Function) -> None:
    """Make an environment's rewards known, so that they need not be learned."""
    _REWARDS[env_id] = function


def termination_of(env_id: str) -> Function | None:
    """The function of the environment's terminations, or None if none is known."""
    return _TERMINATIONS.get(env_id)


def reward_of(env_id: str) -> Function | None:
    """The function of the environment's rewards, or None if none is known."""
    return _REWARDS.get(env_id)
