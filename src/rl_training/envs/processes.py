"""Environments in worker processes: one byte through a pipe for each worker and step, everything else in shared memory.

A pipe wakes as fast as a semaphore or an eventfd, and tells besides that whoever is at its other end is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.base.errors import reason
from rl_training.envs.board import Board, SharedWatchdog, layout_of
from rl_training.envs.factory import EnvFactory
from rl_training.envs.hosted import HostedEnvs, LostWorker, Reply, registered
from rl_training.envs.nursery import exactly, nursery, serve_forks
from rl_training.envs.replay import episode_seed
from rl_training.envs.spaces import Spaces

__all__ = ["ProcessLink", "ProcessMaker", "serve_workers"]

STEP, BEGIN, DONE, MESSAGE, CLOSE = (bytes([letter]) for letter in b"sb.mc")
LENGTH = struct.Struct("q")
PATIENCE = 2.0  # seconds in which a worker that is asked to end must do so


class ProcessMaker:
    """Makes worker processes for environments of a run."""

    KIND = "worker process"

    def __init__(self, factory: EnvFactory, seed: int, info: Sequence[str], spaces: Spaces) -> None:
        import cloudpickle

        if not hasattr(os, "fork"):
            raise ValueError("execution_backend: process needs Linux or macOS; elsewhere, take ray or local")
        self._spaces, self._limit = spaces, None if factory.watchdog is None else factory.watchdog.seconds
        factory = replace(factory, watchdog=None)
        try:  # in memory, for our own process: nothing that is unpickled comes from a file
            made = cloudpickle.dumps((factory, registered(factory)))
        except Exception as error:  # whatever its __reduce__ may raise
            raise ValueError(
                f"{factory.name} cannot be sent to worker processes ({reason(error)}): pass an id, or a function that "
                "makes it from plain values"
            ) from None
        self._order = {"made": made, "seed": seed, "info": tuple(info), "limit": self._limit}

    def launch(self, indices: Sequence[int]) -> ProcessLink:
        """Start a worker for these environments; it is waited for when its first answer is."""
        layout = layout_of(self._spaces, len(indices))
        place = {"path": list(sys.path), "directory": _directory(), "environ": dict(os.environ)}
        discrete = self._spaces.action_kind == "discrete"
        order = {**self._order, **place, "indices": list(indices), "layout": layout, "discrete": discrete}
        return ProcessLink(Board(layout), order, self._limit)


class ProcessLink:
    """The run's end of the pipes to one worker process."""

    def __init__(self, board: Board, order: dict[str, Any], limit: float | None) -> None:
        self._board, self._limit, self._waits = board, limit, select.poll()
        theirs, self._writer = os.pipe()
        self._reader, answers = os.pipe()
        try:
            nursery().start(theirs, answers, board.descriptor)
        finally:
            for descriptor in (theirs, answers, board.descriptor):
                os.close(descriptor)
        self._waits.register(self._reader, select.POLLIN)
        self._worker, self._asked = 0, b""
        self._places: Mapping[int, Any] = {}
        with contextlib.suppress(BrokenPipeError):
            _send(self._writer, order)

    def send(self, name: str, arguments: Mapping[int, Any]) -> None:
        """Let the worker begin with an operation; a worker that is gone is noticed by ``receive``."""
        board, self._places = self._board, arguments
        with contextlib.suppress(BrokenPipeError):
            if name == "step":
                for place, action in arguments.items():
                    board.actions[place] = action
                self._asked = STEP
                os.write(self._writer, STEP)
            elif name == "begin":
                board.chosen[:] = [place in arguments for place in range(len(board.chosen))]
                self._asked = BEGIN
                os.write(self._writer, BEGIN)
            else:
                self._asked = MESSAGE
                os.write(self._writer, MESSAGE)
                _send(self._writer, (name, dict(arguments)))

    def receive(self) -> dict[int, Reply]:
        """The replies of what was sent last; LostWorker if there will be none."""
        if not self._worker:
            self._greet()
        more: dict[int, Reply] = {}
        infos: dict[int, Any] = {}
        if self._read(1) == MESSAGE:
            infos, sent = self._message()
            more = {place: reply.unpacked() for place, reply in sent.items()}
        if self._asked == MESSAGE:
            return more
        board = self._board
        if self._asked == BEGIN:
            seen = {place: Reply(True, (board.seen(place), {})) for place in self._places if board.plain[place]}
            return {**seen, **more}
        steps = board.steps()
        return {
            place: more[place] if place in more else Reply(True, (*steps[place], infos.get(place, {})))
            for place in self._places
        }

    def _greet(self) -> None:
        """Wait for the worker to have made its environments."""
        self._worker, made = self._message()
        if not made.ok:
            raise made.unpacked().value

    def _message(self) -> Any:
        size: int = LENGTH.unpack(self._read(LENGTH.size))[0]
        return pickle.loads(self._read(size))  # from our own process, of environments whose code has run

    def _read(self, size: int) -> bytes:
        try:
            return exactly(self._part, size)
        except EOFError:
            raise LostWorker(nursery().fate(self._worker), int(self._board.at[0])) from None

    def _part(self, size: int) -> bytes:
        if self._limit is not None:
            self._wait(self._limit)
        return os.read(self._reader, size)

    def _wait(self, limit: float) -> None:
        """Wait for an answer, as long as no call of an environment takes longer than the limit."""
        while not self._waits.poll(min(1000.0, 250 * limit)):
            began = self._board.began
            place = int(began.argmin())
            if time.monotonic() - began[place] > limit:
                raise LostWorker(f"has not answered for {limit:g} seconds", place)

    def end(self, *, kill: bool = False) -> None:
        """Ask the worker to end, or kill it; ``wait`` waits for that."""
        if kill and self._worker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker, signal.SIGKILL)
        elif self._writer >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._writer, CLOSE)

    def wait(self) -> None:
        """Wait until the worker is gone; one that does not end is killed."""
        if self._writer < 0:
            return
        os.close(self._writer)
        self._writer = -1
        limit = time.monotonic() + PATIENCE
        gone = False
        while not gone and (left := limit - time.monotonic()) > 0:
            gone = bool(self._waits.poll(1000 * left)) and not os.read(self._reader, 1 << 16)
        if not gone:
            self.end(kill=True)
        os.close(self._reader)

    def __del__(self) -> None:
        """A worker whose pipes are closed ends."""
        if getattr(self, "_writer", -1) >= 0:
            os.close(self._writer)
            os.close(self._reader)


def serve_workers(channel: int) -> None:
    """The clean process that worker processes are forks of."""
    serve_forks(channel, _work)


def _work(requests: int, answers: int, shared: int) -> None:
    """A worker process: makes its environments, and serves them until it is asked to end or the run is gone."""
    try:
        order = pickle.loads(_received(requests))
        board, hosted = _settle(order, shared)
    except EOFError:
        return
    except Exception as error:
        _send(answers, (os.getpid(), Reply(False, error).packed()))
        return
    _send(answers, (os.getpid(), Reply(True, None)))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while (asked := os.read(requests, 1)) not in (b"", CLOSE):
            if asked == MESSAGE:
                name, arguments = pickle.loads(_received(requests))
                _reply(answers, {}, _served(board, hosted, name, arguments))
            else:
                _reply(answers, *(_stepped if asked == STEP else _begun)(board, hosted, order["discrete"]))
    hosted.close()


def _settle(order: dict[str, Any], shared: int) -> tuple[Board, HostedEnvs]:
    """Be where the run is, and make the environments."""
    sys.path[:] = order["path"]
    os.environ.clear()
    os.environ.update(order["environ"])
    with contextlib.suppress(OSError):
        os.chdir(order["directory"])
    torch.set_num_threads(1)
    indices = order["indices"]
    entropy = episode_seed(order["seed"], *indices)  # for environments that ask global generators: not all the same
    legacy: Any = np.random
    legacy.set_state(np.random.MT19937(entropy).state)
    torch.manual_seed(entropy)
    import_module("random").seed(entropy)
    board, limit = Board(order["layout"], shared), order["limit"]
    dogs = None if limit is None else [SharedWatchdog(board, place, limit) for place in range(len(indices))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has made one of them too, and heard it all
        factory, specs = pickle.loads(order["made"])
        for name, spec in specs.items():
            gym.registry.setdefault(name, spec)
        return board, HostedEnvs(factory, order["seed"], indices, order["info"], dogs)


def _stepped(board: Board, hosted: HostedEnvs, discrete: bool) -> tuple[dict[int, Any], dict[int, Reply]]:
    """Step every environment with its action on the board: infos of ends, and replies that the board cannot hold."""
    infos, more = {}, {}
    actions = board.actions.tolist() if discrete else board.actions.copy()
    for place, action in enumerate(actions):
        board.at[0] = place
        reply = hosted.attempt("step", place, action)
        if not board.put_step(place, reply):
            more[place] = reply
        elif board.ends[place].any() and reply.value[4]:
            infos[place] = reply.value[4]
    return infos, more


def _begun(board: Board, hosted: HostedEnvs, _: bool) -> tuple[dict[int, Any], dict[int, Reply]]:
    """Begin the episodes that the board names."""
    more = {}
    for place in np.flatnonzero(board.chosen).tolist():
        board.at[0] = place
        reply = hosted.attempt("begin", place)
        plain = reply.ok and not reply.value[1] and board.put_obs(place, reply.value[0])
        board.plain[place] = plain
        if not plain:
            more[place] = reply
    return {}, more


def _served(board: Board, hosted: HostedEnvs, name: str, arguments: dict[int, Any]) -> dict[int, Reply]:
    replies = {}
    for place, argument in arguments.items():
        board.at[0] = place
        replies[place] = hosted.attempt(name, place, argument)
    return replies


def _reply(answers: int, infos: dict[int, Any], more: dict[int, Reply]) -> None:
    if infos or more:
        os.write(answers, MESSAGE)
        _send(answers, (infos, {place: reply.packed() for place, reply in more.items()}))
    else:
        os.write(answers, DONE)


def _send(descriptor: int, value: Any) -> None:
    """Send a message, all of it, however little fits into the pipe at a time."""
    text = pickle.dumps(value)
    message = memoryview(LENGTH.pack(len(text)) + text)
    while message:
        message = message[os.write(descriptor, message) :]


def _received(descriptor: int) -> bytes:
    read = partial(os.read, descriptor)
    size: int = LENGTH.unpack(exactly(read, LENGTH.size))[0]
    return exactly(read, size)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return os.sep
