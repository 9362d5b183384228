"""Noticing an environment that hangs."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.incidents import History, incident

__all__ = ["Watchdog"]

Act = Callable[[EnvironmentFailure], None]
GRACE = 10.0  # seconds after which a call that was interrupted counts as one that cannot be


class Watchdog:
    """Watches for a step or a reset that takes longer than ``seconds``, in any of the environments it has wrapped."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began, self.doing = math.inf, ""  # the call under way; inf: there is none
        self.history: History = {}  # of the environment that was called last

    def wrap(self, env: gym.Env, *, training: bool) -> gym.Env:
        """The environment, watched."""
        return _Watched(env, self, training)

    def call(self, history: History, doing: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call, watched; ``history`` led to it."""
        self.history, self.doing, self.began = history, doing, time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            self.began = math.inf

    def incident(self) -> dict[str, Any]:
        """What led to the call under way."""
        return incident(self.history, training=self.history["training"])

    @contextlib.contextmanager
    def watching(self, interrupt: Act, give_up: Act) -> Iterator[None]:
        """In a thread: ``interrupt`` the main thread if a call takes too long; if that does not end the call (it may be
        in a library that never returns to Python), ``give_up``."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done, interrupt, give_up), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def _watch(self, done: threading.Event, interrupt: Act, give_up: Act) -> None:
        while not done.wait(min(1.0, self.seconds / 4)):
            began = self.began
            if time.monotonic() - began <= self.seconds:
                continue
            hung = EnvironmentFailure(f"a {self.doing} has taken longer than {self.seconds:g} seconds")
            interrupt(hung)
            if not done.wait(GRACE) and self.began == began:
                give_up(hung)
            return


class _Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Tells a watchdog when a call begins and ends, and what the episode was so far."""

    def __init__(self, env: gym.Env, watchdog: Watchdog, training: bool) -> None:
        super().__init__(env)
        self._watchdog, self._training, self._episode = watchdog, training, -1
        self._history: History = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode += 1
        where = {"training": self._training, "episode": self._episode, "seed": seed}
        self._history = {**where, "actions": [], "exact": seed is not None}
        return self._watchdog.call(self._history, "reset", self.env.reset, seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._history:
            self._history["actions"].append(action)
        return self._watchdog.call(self._history, "step", self.env.step, action)
