"""How updates run: compiled or not, on how many threads, and which library multiplies matrices. Decided once for each
run, stored with it, used again on resume.

A number of threads in the config is obeyed. ``auto`` goes by the width of the networks and the processors that are free
to use, and takes no more than OMP_NUM_THREADS, which is how clusters and people with several runs divide a machine;
since sums of several threads round differently, the run says so where that made a difference.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import nn

from rl_training.algorithms.base import Learner
from rl_training.base.devices import processors
from rl_training.base.options import ConfigError
from rl_training.base.saved import Saved
from rl_training.experiment.config import THREAD_LIMIT, TrainConfig
from rl_training.models.cnn import Convolutions
from rl_training.optim.compiled import cannot_compile, lacking
from rl_training.optim.products import by_onednn, onednn_is_faster

__all__ = ["Engine", "keep_freed_memory", "resolve_device", "set_precision"]

WIDE = 256 * 256  # weights in a layer from which a second thread helps; below, threads only wait for each other
MOST_THREADS = 4  # that a run chooses itself
WIDE_FOR_ONEDNN = 200 * 200  # weights in a layer from which the faster products outweigh what calling oneDNN costs
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def resolve_device(name: str) -> torch.device:
    """The torch device of a config's ``device``; ``auto`` is the first GPU, or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is set, but torch sees no GPU")
    return device


def set_precision(learner: Learner, precision: str) -> None:
    """Let a learner's convolutions learn in ``precision``; refuse another one than float32 where there are none."""
    found = [part for module in _modules(learner) for part in module.modules() if isinstance(part, Convolutions)]
    if precision != "float32" and not found:
        problem = f"{precision} is for the convolutions of PPO, PPG, GAIL, BC and the DQN family: there are none here"
        raise ConfigError([(("precision",), problem)])
    for part in found:
        part.in_bf16 = precision == "bf16"


Compile = bool | Literal["safe"]


@dataclass(frozen=True)
class Engine:
    """How the updates of a run are computed; ``why`` says so in a sentence."""

    compile: Compile
    threads: int
    why: str = ""
    onednn: bool = False  # multiplies matrices, instead of MKL

    @classmethod
    def choose(cls, config: TrainConfig, learner: Learner, expected_updates: int) -> Engine:
        """The engine of a new run, from its config and from the number of updates that it will make."""
        threads, on = _threads(config, learner)
        onednn = _onednn_helps(learner)
        on += ", products by oneDNN" if onednn else ""
        compiled, because = _compile(config.compile, learner, expected_updates)
        if not compiled:
            return cls(False, threads, f"updates run eagerly, {on}: {because}", onednn)
        guarded = " with torch.compile's guards" if compiled == "safe" and learner.PARTS else ""
        why = f"updates are compiled{guarded}, {on}: {because}; the first one takes a while"
        return cls(compiled, threads, why, onednn)

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Engine:
        """The engine that a checkpoint's run began with."""
        saved = Saved(state, ("compile", "threads"), optional=("onednn",))
        threads = saved.count("threads", least=1, most=THREAD_LIMIT)
        compiled: Compile = "safe" if saved["compile"] == "safe" else saved.flag("compile")
        onednn = "onednn" in saved and saved.flag("onednn") and onednn_is_faster()  # else this is another processor
        return cls(compiled, threads, f"updates run as before the stop, {_on(threads)}", onednn)

    def state_dict(self, learner: Learner | None = None) -> dict[str, Any]:
        """What a resumed run needs; with its learner, also that compiling failed."""
        compiled = self.compile if learner is None or learner.compiled else False
        return {"compile": compiled, "threads": self.threads, "onednn": self.onednn}

    def prepare(self, learner: Learner) -> None:
        """Let the learner's updates run as decided."""
        if self.compile:
            learner.use_compiled(safe=self.compile == "safe")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Threads and products set for the run and put back after it. Acting multiplies small matrices in numpy: one
        BLAS thread."""
        from threadpoolctl import threadpool_limits

        keep_freed_memory()
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with threadpool_limits(limits=1, user_api="blas"), by_onednn(self.onednn):
                yield
        finally:
            torch.set_num_threads(before)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep memory that updates free.

    Giving it back to the system and fetching it anew, page by page, takes up to a third of an update whose intermediate
    results are megabytes. Linux with glibc; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, 256 * 2**20)
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)


def _modules(learner: Learner) -> list[nn.Module]:
    """The networks of a learner and of the learners it is made of."""
    found: list[nn.Module] = []
    for part in learner._parts().values():
        found += [part] if isinstance(part, nn.Module) else _modules(part) if isinstance(part, Learner) else []
    return found


def _compile(setting: Compile | Literal["auto"], learner: Learner, expected_updates: int) -> tuple[Compile, str]:
    """Whether and how to compile, and why."""
    if setting is False:
        return False, "compile is false"
    if learner.EAGER:
        return False, learner.EAGER
    if setting == "auto" and expected_updates < learner.COMPILE_THRESHOLD:
        return False, f"{expected_updates:,} updates are too few (compiling pays from {learner.COMPILE_THRESHOLD:,} on)"
    return _compiled(setting, expected_updates)


def _compiled(setting: Literal[True, "safe", "auto"], expected_updates: int) -> tuple[Compile, str]:
    """How to compile, and why, unless something prevents it."""
    if obstacle := cannot_compile():
        return False, obstacle
    if setting == "safe":
        return "safe", "compile is safe"
    if missing := lacking():
        return "safe", missing
    return True, "compile is true" if setting is True else f"{expected_updates:,} expected"


def _on(threads: int) -> str:
    return f"on {threads} thread{'s' if threads != 1 else ''}"


def _threads(config: TrainConfig, learner: Learner) -> tuple[int, str]:
    """The number of threads, and the words that say so."""
    if config.threads != "auto":
        return config.threads, _on(config.threads)
    useful, cap = _useful_threads(learner), _environment_cap()
    if cap is not None and cap < useful:
        return cap, f"{_on(cap)} (OMP_NUM_THREADS; else {useful})"
    return useful, _on(useful)


def _useful_threads(learner: Learner) -> int:
    convolutional = any(w.ndim == 4 for w in _matrices(learner))
    return min(processors(), MOST_THREADS) if _widest(learner) >= WIDE or convolutional else 1


def _matrices(learner: Learner) -> list[torch.Tensor]:
    """The weights of a learner's layers that are multiplied by."""
    weights = [layer.weight for module in _modules(learner) for layer in module.modules() if hasattr(layer, "weight")]
    return [w for w in weights if isinstance(w, torch.Tensor) and w.ndim >= 2]


def _widest(learner: Learner) -> int:
    """How many weights the widest of the layers has."""
    return max((w.shape[-1] * w.shape[-2] for w in _matrices(learner)), default=0)


def _onednn_helps(learner: Learner) -> bool:
    on_cpu = all(w.device.type == "cpu" for w in _matrices(learner))
    return on_cpu and _widest(learner) >= WIDE_FOR_ONEDNN and onednn_is_faster()


def _environment_cap() -> int | None:
    """OMP_NUM_THREADS, if it is a number (or a list, of which the first is for the outer level)."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None
