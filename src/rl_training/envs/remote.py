"""Environments in Ray actors, for simulators so slow that stepping them elsewhere pays. Same episodes, same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym

from rl_training.base.errors import reason
from rl_training.base.modules import directories_added, look_in
from rl_training.envs.factory import EnvFactory
from rl_training.envs.hosted import HostedEnvs, LostWorker, Reply, registered

__all__ = ["RayLink", "RayMaker", "connect"]


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


class RayMaker:
    """Makes Ray actors for environments of a run."""

    KIND = "Ray worker"

    def __init__(self, factory: EnvFactory, seed: int, info: Sequence[str]) -> None:
        self.ray = connect()
        self._limit = None if factory.watchdog is None else factory.watchdog.seconds
        self._arguments = (replace(factory, watchdog=None), seed, tuple(info), directories_added(), registered(factory))

    def launch(self, indices: Sequence[int]) -> RayLink:
        actor = self.ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Actor)
        return RayLink(self.ray, actor.remote(list(indices), *self._arguments), self._limit)


class _Actor:
    """The actor's side."""

    def __init__(
        self,
        indices: Sequence[int],
        factory: EnvFactory,
        seed: int,
        info: Sequence[str],
        modules: Sequence[str],
        specs: Mapping[str, Any],
    ) -> None:
        look_in(modules)
        for name, spec in specs.items():
            gym.registry.setdefault(name, spec)
        self._hosted = HostedEnvs(factory, seed, indices, info)

    def serve(self, name: str, arguments: dict[int, Any]) -> dict[int, Reply]:
        return {place: outcome.packed() for place, outcome in self._hosted.serve(name, arguments).items()}


class RayLink:
    """The run's end of the connection to one actor."""

    def __init__(self, ray: Any, actor: Any, limit: float | None) -> None:
        self._ray, self._actor, self._limit = ray, actor, limit
        self._answer: Any = None
        self._count, self._started = 0, False  # the first answer takes as long as an actor takes to start

    def send(self, name: str, arguments: Mapping[int, Any]) -> None:
        self._count, self._place = len(arguments), min(arguments, default=0)
        self._answer = self._actor.serve.remote(name, dict(arguments))

    def receive(self) -> dict[int, Reply]:
        limit = self._limit * self._count if self._limit is not None and self._started else None
        try:
            sent: dict[int, Reply] = self._ray.get(self._answer, timeout=limit)
        except self._ray.exceptions.GetTimeoutError:
            raise LostWorker(f"has not answered for {limit:g} seconds", self._place) from None
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayActorError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise LostWorker(f"is gone ({lines[-1] if lines else reason(error)})", self._place) from None
        self._started = True
        return {place: outcome.unpacked() for place, outcome in sent.items()}

    def end(self, *, kill: bool = False) -> None:
        self._ray.kill(self._actor)

    def wait(self) -> None:
        """An actor is gone when it is killed."""
