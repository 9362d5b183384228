"""Disks that are full or slow, for one process."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["limit_files", "may_mount", "slow_disk", "small_disk"]


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """A disk of ``size`` bytes at ``folder``, where this user may mount one; gives what makes it large again."""
    folder.mkdir(parents=True, exist_ok=True)

    def mount(*words: str) -> None:
        subprocess.run(["mount", *words], check=True, capture_output=True)

    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield lambda: mount("-o", "remount,size=64m", str(folder))
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def may_mount(folder: Path) -> bool:
    """Whether this user may mount a disk."""
    try:
        with small_disk(folder, 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond ``size`` bytes: a full disk for users who may not mount one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def slow_disk(seed: int, seconds: float) -> None:
    """Let each fsync and each rename of this process take up to ``seconds``."""
    rng = random.Random(seed)

    def slowly(call: Any) -> Any:
        @functools.wraps(call)
        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(rng.uniform(0, seconds))
            return call(*args, **kwargs)

        return slow

    os.fsync, os.replace = slowly(os.fsync), slowly(os.replace)
