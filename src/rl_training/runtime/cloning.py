"""Behaviour cloning of expert data before a run's first step, which can be paused after every update."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.run import Run

__all__ = ["clone_expert"]


def clone_expert(
    run: Run, updates: int, first: Callable[[], None], clone: Callable[[], UpdateResult], last: Callable[[], None]
) -> Iterator[None]:
    """Call ``first`` once, ``clone`` until it has been called ``updates`` times, then ``last`` once; yields where the
    run pauses."""
    while run.step == 0 and (cloned := run.counters.get("bc_updates", 0)) < updates:
        if not cloned:
            first()
        result = run.record_auxiliary_update(clone())
        if run.count("bc_updates") == updates:
            run.note(**result.metrics)
            last()
        if run.pausing():
            yield
