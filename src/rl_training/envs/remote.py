"""Environments in Ray actors, for simulators so slow that stepping them elsewhere pays. Same episodes, same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym

from rl_training.base.errors import reason
from rl_training.base.modules import directories_added, look_in
from rl_training.base.saved import Saved
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.endings import only
from rl_training.envs.factory import EnvFactory
from rl_training.envs.incidents import History
from rl_training.envs.replay import changed_arguments, episode_seed, replayable

__all__ = ["RemoteEnv", "connect"]


def connect(address: str | None = None) -> Any:
    """Ray, connected to a cluster (by default the one that RAY_ADDRESS names), or to a new one on this machine."""
    import logging
    import os

    try:
        import ray
    except ImportError:
        raise ValueError("Ray is not installed: pip install 'rl_training[ray]'") from None
    if ray.is_initialized():
        return ray
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None and address != "auto":
        _reachable(address)
    where = {"include_dashboard": False} if address is None else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"no Ray cluster at {address!r}: {reason(error)}") from None
    return ray


def _reachable(address: str) -> None:
    """Fail within seconds where nothing listens; Ray itself would wait for minutes."""
    import socket

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"a Ray address is host:port, or auto; got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at {address}: {error.strerror or error}") from None


class _Host:
    """The actor's side: one environment, stepped on request."""

    def __init__(
        self, factory: EnvFactory, seed: int, index: int, info: Sequence[str], modules: Sequence[str] = ()
    ) -> None:
        look_in(modules)
        self._info = info  # the entries of infos that are read, beside success
        make = factory.make_changed
        self._slot = replayable(factory.make(training=True), seed=seed, index=index, make=make)

    def begin(self) -> Any:
        return self._slot.begin()

    def change(self, env_kwargs: dict[str, Any]) -> None:
        self._slot.change(env_kwargs)

    def step(self, action: Any) -> Any:
        result = self._slot.step(action)
        self._slot.actions.append(action)
        whole = isinstance(result, tuple) and len(result) == 5
        # the rest of info stays here; what is wrong is for the collector to refuse
        return (*result[:4], only(result[4], self._info)) if whole else result

    def state_dict(self) -> dict[str, Any]:
        return self._slot.state_dict()

    def rebuild(self, state: dict[str, Any]) -> tuple[Any, float, int]:
        self._slot.load_state_dict(state)
        return self._slot.replay(state["actions"])

    def close(self) -> None:
        self._slot.env.close()


class RemoteEnv:
    """As a ReplayableEnv, but ``send`` starts a step or an episode that ``step`` or ``begin`` then waits for."""

    def __init__(self, factory: EnvFactory, *, seed: int, index: int, info: Sequence[str] = ()) -> None:
        """``info``: entries of infos that are sent back, beside those that report success."""
        if isinstance(factory.source, gym.Env):
            raise ValueError(f"{factory.name} was given as an object; for Ray's workers, pass a function that makes it")
        self._limit = None if factory.watchdog is None else factory.watchdog.seconds
        factory = replace(factory, watchdog=None)
        self._ray = connect()
        actor = self._ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Host)
        self._host = actor.remote(factory, seed, index, tuple(info), directories_added())
        self._pending: Any = None
        self.env = self  # what is closed
        self._key, self._episode = (seed, index), -1
        self._started = False  # the first answer takes as long as a worker takes to start
        self._seeded = not factory.name.startswith("ALE/")  # whose games begin with a seed only once
        self.env_kwargs: dict[str, Any] = {}  # arguments that were changed before this episode
        self.actions: list[Any] = []  # of the episode, for reports; those that are saved are the host's

    def change(self, env_kwargs: dict[str, Any]) -> None:
        if env_kwargs != self.env_kwargs:
            self._got(self._host.change.remote(env_kwargs))
            self.env_kwargs = dict(env_kwargs)

    def send(self, action: Any = None) -> None:
        if action is None:
            self._episode, self.actions = self._episode + 1, []
        self._pending = self._host.begin.remote() if action is None else self._host.step.remote(action)

    def step(self, action: Any) -> Any:
        return self._received(self._limit)

    def begin(self) -> Any:
        if self._pending is None:
            self.send()
        return self._received(self._limit)

    def history(self) -> History:
        """What led to where the episode is, as it was sent: a worker that hangs cannot be asked."""
        seed = episode_seed(*self._key, self._episode)
        return {"episode": self._episode, "seed": seed, "actions": list(self.actions), "exact": self._seeded}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._got(self._host.state_dict.remote())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._episode, actions = state["episode"], state["actions"]
        self.env_kwargs = changed_arguments(Saved(state, (), state))
        self.actions = [] if actions is None else list(actions.numpy())
        self._pending = self._host.rebuild.remote(state)

    def replay(self, actions: Any) -> Any:
        return self._received()

    def _received(self, limit: float | None = None) -> Any:
        pending, self._pending = self._pending, None
        result = self._got(pending, limit if self._started else None)
        self._started = True
        return result

    def _got(self, reference: Any, limit: float | None = None) -> Any:
        try:
            return self._ray.get(reference, timeout=limit)
        except self._ray.exceptions.GetTimeoutError:
            raise EnvironmentFailure(f"its Ray worker has not answered for {limit:g} seconds") from None
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayActorError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise RuntimeError(f"its Ray worker is gone: {lines[-1] if lines else reason(error)}") from None

    def close(self) -> None:
        self._ray.kill(self._host)
