"""Where worker processes come from: forks of one clean process, which has imported what they need and nothing else.

A fork of the run's own process would inherit its threads' locks, its GPU and its graphics; a new interpreter for each
worker would import torch anew, and the user's script with it. The clean process has one thread, takes no part in
signals, and ends when the process that it belongs to is gone, however that went, and its children with it.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from rl_training.base.signals import SIGNALS

__all__ = ["Nursery", "exactly", "nursery", "serve_forks"]

PATIENCE = 2.0  # seconds that workers get to end by themselves
START, WAIT = b"s", b"w"  # requests: start a worker with three descriptors; wait for the end of one
NUMBER = struct.Struct("q")
_nurseries: dict[int, Nursery] = {}  # by the process that they belong to
_lock = threading.Lock()


class Nursery:
    """Starts workers for this process."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        # the run decides what signals mean; a handler, since what is ignored stays so in programs that workers start
        deaf = f"import signal, sys; [signal.signal(n, lambda *_: None) for n in {[*map(int, SIGNALS)]}]"
        serve = f"from rl_training.envs.processes import serve_workers; serve_workers({theirs.fileno()})"
        code = f"{deaf}; sys.path[:] = {sys.path!r}; {serve}"
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **one},
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, *descriptors: int) -> None:
        """Start a worker, with its own copies of three descriptors."""
        with _lock:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            self._channel.sendmsg([START + NUMBER.pack(0)], rights)

    def fate(self, worker: int) -> str:
        """How a worker that is gone has ended."""
        try:
            with _lock:
                self._channel.sendall(WAIT + NUMBER.pack(worker))
                status = NUMBER.unpack(exactly(self._channel.recv, NUMBER.size))[0]
        except (OSError, EOFError):
            return "is gone"
        if status < 0:
            return "is gone"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"has ended with code {code}"
        known = -code in signal.Signals.__members__.values()
        return f"was ended by {signal.Signals(-code).name if known else f'signal {-code}'}"


def nursery() -> Nursery:
    """The one of this process, which is made when it is first asked for."""
    with _lock:
        found = _nurseries.get(os.getpid())
        if found is None or not found.alive:
            found = _nurseries[os.getpid()] = Nursery()
        return found


def serve_forks(channel: int, work: Callable[[int, int, int], None]) -> None:
    """The clean process: forks a worker that calls ``work`` for every request, until its owner is gone."""
    owner, workers = socket.socket(fileno=channel), set[int]()
    while True:
        try:
            request, descriptors, *_ = socket.recv_fds(owner, 1 + NUMBER.size, 3)
            if not request:
                break
            request += exactly(owner.recv, 1 + NUMBER.size - len(request))
        except (OSError, EOFError):
            break
        if request[:1] == WAIT:
            _answer(owner, NUMBER.unpack(request[1:])[0], workers)
            continue
        worker = os.fork()
        if not worker:
            owner.close()
            _work(work, descriptors)
        workers.add(worker)
        for descriptor in descriptors:
            os.close(descriptor)
    _end(workers)


def _answer(owner: socket.socket, worker: int, workers: set[int]) -> None:
    """Tell the owner how a worker ended; -1: it is not known."""
    status = os.waitpid(worker, 0)[1] if worker in workers else -1
    workers.discard(worker)
    with contextlib.suppress(OSError):
        owner.sendall(NUMBER.pack(status))


def _work(work: Callable[[int, int, int], None], descriptors: list[int]) -> NoReturn:
    """A worker's whole life."""
    code = 1
    try:
        work(*descriptors)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end(workers: set[int]) -> None:
    """Wait for workers, which notice by themselves that the owner is gone; kill those that do not end."""
    limit = time.monotonic() + PATIENCE
    while workers and time.monotonic() < limit:
        for worker in [*workers]:
            if os.waitpid(worker, os.WNOHANG)[0]:
                workers.discard(worker)
        time.sleep(0.02)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)


def exactly(receive: Callable[[int], Any], size: int) -> bytes:
    """So many bytes."""
    found = b""
    while len(found) < size:
        part = receive(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
