"""States of the Atari emulator from files: tried in a copy of the process before this one restores them.

The emulator reads a state without checking it: numbers that do not belong there overwrite its memory. So a forked copy
of the process restores the state first, compares what the emulator then saves with what it was given, resets and plays
a few frames. Where the copy fails or dies, the state is refused, and nothing has happened here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.base.saved import Saved, StateError, within
from rl_training.base.state import set_generator

__all__ = ["restore_emulator"]

PATIENCE = 60.0  # seconds that a copy may take for what takes a tenth of one
HELD = b"1"  # what a copy says if its check passes
FRAMES = 100  # that a copy plays after a reset
TRUE, FALSE = b"\xb2\xfa\xb1\xfa", b"\xd2\xba\xd1\xba"  # as the emulator writes them
ROOM = 2**29  # bytes that a copy may take beyond what there is


def restore_emulator(env: Any, state: Any) -> None:
    """Give an ALE environment a saved state of its emulator and of its random numbers."""
    from ale_py import ALEState

    saved = Saved(state, ("emulator", "np_random"))
    present = env.clone_state(include_rng=True).serialize()
    data = saved.array("emulator", np.uint8, (None,)).tobytes()
    if not len(present) // 2 < len(data) < 2 * len(present):
        raise StateError(f"has {len(data):,} bytes, and a state of this game about {len(present):,}", "emulator")
    with within("np_random"):
        set_generator(env.np_random, saved["np_random"])

    def restores() -> bool:
        env.restore_state(ALEState(data))
        same = _without_flags(env.clone_state(include_rng=True).serialize()) == _without_flags(data)
        if same:
            env.ale.reset_game()
            for _ in range(FRAMES):
                env.ale.act(0)
        return same

    if hasattr(os, "fork") and not _holds_in_a_copy(restores):
        raise StateError("is not a state of this game's emulator", "emulator")
    env.restore_state(ALEState(data))


def _without_flags(data: bytes) -> bytes:
    """A state with every flag false: those of some games (MiniatureGolf) are not restored as they were saved."""
    return data.replace(TRUE, FALSE)


def _holds_in_a_copy(check: Callable[[], bool]) -> bool:
    """Whether a check passes in a forked copy of this process, which may die of it."""
    with warnings.catch_warnings():  # of other threads, which the copy does not have and does not need
        warnings.simplefilter("ignore", DeprecationWarning)
        reading, writing = os.pipe()  # an exit code would not reach a process that ignores SIGCHLD
        child = os.fork()
    if child == 0:
        _run_and_leave(check, writing)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], PATIENCE)
        return bool(ready) and os.read(reading, 1) == HELD
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _run_and_leave(check: Callable[[], bool], writing: int) -> None:
    """In the copy: quiet, with little memory, and gone without any of the process's own clearing up."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(quiet, stream)
        _limit_memory()
        if check():
            os.write(writing, HELD)
    finally:
        os._exit(0)


def _limit_memory() -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):  # where there is no /proc, or a lower limit already
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
