"""When a run evaluates, logs and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

__all__ = ["Clock", "Due", "crossings"]


def crossings(before: int, after: int, interval: int) -> int:
    """How many multiples of ``interval`` lie in (before, after]."""
    return after // interval - before // interval


class Due(NamedTuple):
    """What is to be done at a step."""

    evaluate: bool
    log: bool
    save: bool


class Clock:
    """Intervals in environment steps, each due when a multiple of it is crossed; so a clock needs no saved state.

    By default a run has a hundred log lines, twenty evaluations and twenty checkpoints; an evaluation interval of 0 is
    never due. The end of a run evaluates and saves by itself, and is logged here.
    """

    def __init__(self, config: TrainConfig, eval_interval: int | None, step: int) -> None:
        self._total, self._last = config.total_timesteps, step
        twentieth = max(1, self._total // 20)
        log = config.log_interval or max(1, self._total // 100)
        evaluate = twentieth if eval_interval is None else eval_interval
        self._intervals = log, config.checkpoint_interval or twentieth, evaluate
        self._redraw = max(1, log // 10)  # lets the progress bar move between log lines
        self.next_step = self._after(step)  # there is nothing to do before it

    def due(self, step: int) -> Due:
        """What has become due since the last call."""
        before, self._last, self.next_step = self._last, step, self._after(step)
        log, save, evaluate = (every and crossings(before, step, every) > 0 for every in self._intervals)
        done = step >= self._total
        return Due(evaluate=bool(evaluate) and not done, log=bool(log) or done, save=bool(save) and not done)

    def _after(self, step: int) -> int:
        due = ((step // every + 1) * every for every in self._intervals if every)
        return min(self._total, step + self._redraw, *due)
