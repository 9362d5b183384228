"""Times work after a warm-up, in wall and in processor seconds, and prints one JSON line. Shared by ours and every peer."""

from __future__ import annotations

import contextlib
import json
import os
import time

THREADS = int(os.environ.get("THREADS", "1"))
SECONDS = float(os.environ.get("SECONDS", "20"))
UNITS = {  # name: (environment, number of environments, steps of each per rollout, minibatch, epochs)
    "ppo_cartpole": ("CartPole-v1", 8, 128, 256, 4),
    "ppo_cheetah8": ("HalfCheetah-v5", 8, 256, 64, 10),
}


class Meter:
    """``tick(total)`` at work boundaries; False when the time slice is over."""

    def __init__(self, warm: int) -> None:
        self.warm = warm
        self.start: tuple[float, float, int] | None = None
        self.end: tuple[float, float, int] | None = None

    def tick(self, total: int) -> bool:
        if self.start is None:
            if total >= self.warm:
                self.start = (time.perf_counter(), time.process_time(), total)
            return True
        self.end = (time.perf_counter(), time.process_time(), total)
        return self.end[0] - self.start[0] < SECONDS

    def report(self, unit: str, who: str) -> None:
        wall, cpu, work = (b - a for a, b in zip(self.start, self.end))
        line = {
            "unit": unit,
            "who": who,
            "threads": THREADS,
            "per_cpu_second": work / cpu,
            "per_second": work / wall,
            "work": work,
        }
        print(json.dumps(line), flush=True)


@contextlib.contextmanager
def as_in_a_run():
    """What a run sets for its updates, around a learner that is updated without one: memory, and who multiplies."""
    from rl_training.optim.products import by_onednn, onednn_is_faster
    from rl_training.runtime.engine import keep_freed_memory

    keep_freed_memory()
    with by_onednn(onednn_is_faster()):
        yield
