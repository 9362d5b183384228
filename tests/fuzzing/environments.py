"""An environment that misbehaves at random: it raises, hangs for a moment, lies about shapes, types and numbers, or closes early."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["HARMLESS", "MISBEHAVIOURS", "Misbehaving"]

OBSERVATIONS: dict[str, Any] = {
    "a NaN": lambda obs: obs * np.nan, "an infinity": lambda obs: obs + np.inf, "a number beyond float32": lambda obs: np.full(obs.shape, 1e300),
    "another length": lambda obs: obs[:1], "another dimension": lambda obs: obs[None], "nothing": lambda obs: None, "a scalar": lambda obs: 0.0,
    "words": lambda obs: np.array(["a", "b"]), "objects": lambda obs: np.array([None, {}], object), "a dict": lambda obs: {"obs": obs},
    "complex numbers": lambda obs: obs.astype(np.complex64), "a ragged list": lambda obs: [1.0, [2.0]], "dates": lambda obs: np.zeros(2, "M8[s]"),
    "an empty list": lambda obs: [], "a generator": lambda obs: (x for x in obs),
    "whole numbers": lambda obs: obs.astype(np.int64), "doubles": np.float64, "a list": list, "a read-only array": lambda obs: _frozen(obs),
}  # fmt: skip
REWARDS: list[Any] = [
    None, "1", float("nan"), float("inf"), -float("inf"), 1e300, 10**400, np.zeros(2), np.zeros((1, 1)), [], {}, 1j, True, np.float16(1), [[1.0]],
]  # fmt: skip
FLAGS: list[Any] = [
    None,
    "False",
    2,
    -1,
    np.zeros(2, bool),
    np.array(True),
    {},
    [],
    0.5,
    float("nan"),
    1,
    np.bool_(False),
]
RESULTS: list[Any] = [None, (), (1,), "result", 7, {}]
ERRORS: list[type[BaseException]] = [
    KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError, RecursionError, AssertionError, StopIteration, AttributeError,
    ZeroDivisionError, BrokenPipeError, ConnectionResetError, EOFError, TimeoutError, NotImplementedError, UnicodeError,
]  # fmt: skip
HARMLESS = ("nothing wrong", "slow")
MISBEHAVIOURS = (
    *HARMLESS,
    "raises",
    "observation",
    "reward",
    "terminated",
    "truncated",
    "result",
    "info",
    "closes",
    "space",
    "action",
)
PAUSE = 0.05  # seconds of a hang


def _frozen(obs: np.ndarray) -> np.ndarray:
    obs.flags.writeable = False
    return obs


class Misbehaving(gym.Env):
    """Observes two numbers, pays one, ends after seven steps; a seed decides how it goes wrong, and at which step or reset."""

    def __init__(self, seed: int, *, box: bool = False) -> None:
        rng = random.Random(seed)
        self.how = rng.choice(MISBEHAVIOURS)
        self.at, self.in_reset = rng.randint(1, 60), rng.random() < 0.25
        self.number = rng.randrange(1 << 30)
        self.calls = {"reset": 0, "step": 0}
        self.t = 0
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if box else gym.spaces.Discrete(3)
        self.closed = False

    def _wrong(self, call: str) -> bool:
        self.calls[call] += 1
        place = 1 + self.at // 8 if self.in_reset else self.at
        return (call == "reset") == self.in_reset and self.calls[call] == place

    def _spoil(self, result: tuple[Any, ...], call: str) -> Any:
        """The result of a call as it goes wrong, once."""
        how, parts = self.how, list(result)
        if how == "slow":
            time.sleep(PAUSE)
        elif how == "raises":
            raise _chosen(ERRORS, self.number)("the simulator lost a wheel")
        elif how == "observation":
            parts[0] = _chosen(list(OBSERVATIONS.values()), self.number)(parts[0])
        elif how == "result":
            return _chosen(RESULTS, self.number)
        elif how == "info":
            parts[-1] = _chosen([None, [], {1: 2}, {"episode": 3}, "info", {"final_observation": None}], self.number)
        elif how == "closes":
            self.close()
        elif how == "space":
            self.observation_space = gym.spaces.Discrete(2)
        elif how == "action":
            self.action_space = gym.spaces.Discrete(1)
        elif call == "step":
            place, values = {"reward": (1, REWARDS), "terminated": (2, FLAGS), "truncated": (3, FLAGS)}.get(
                how, (1, [1.0])
            )
            parts[place] = _chosen(values, self.number)
        return tuple(parts)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.closed:
            raise RuntimeError("reset of a closed environment")
        self.t = 0
        result = (self._obs(), {})
        return self._spoil(result, "reset") if self._wrong("reset") else result

    def step(self, action: Any) -> Any:
        if self.closed:
            raise RuntimeError("step of a closed environment")
        self.t += 1
        result = (self._obs(), 1.0, self.t >= 7, False, {})
        return self._spoil(result, "step") if self._wrong("step") else result

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.np_random.normal()], np.float32)

    def close(self) -> None:
        self.closed = True


def _chosen(values: list[Any], number: int) -> Any:
    return values[number % len(values)]
