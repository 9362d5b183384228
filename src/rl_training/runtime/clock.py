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

    ``eval_every`` may be 0: never on the way. The run's end evaluates and saves by itself, and is logged here.
    """

    def __init__(self, step: int, total: int, *, log_every: int, save_every: int, eval_every: int) -> None:
        self._total, self._served = total, step
        self._log_every, self._save_every, self._eval_every = log_every, save_every, eval_every
        self.next_step = self._after(step)  # there is nothing to do before it

    @classmethod
    def of(cls, config: TrainConfig, eval_interval: int | None, step: int) -> Clock:
        """The config's intervals; by default a hundred log lines, twenty evaluations and twenty checkpoints a run."""
        total, twentieth = config.total_timesteps, max(1, config.total_timesteps // 20)
        return cls(
            step,
            total,
            log_every=config.log_interval or max(1, total // 100),
            save_every=config.checkpoint_interval or twentieth,
            eval_every=twentieth if eval_interval is None else eval_interval,
        )

    def due(self, step: int) -> Due:
        """What has become due since the last call."""
        before, self._served, self.next_step = self._served, step, self._after(step)
        on_the_way = step < self._total
        return Due(
            evaluate=on_the_way and self._eval_every > 0 and crossings(before, step, self._eval_every) > 0,
            log=not on_the_way or crossings(before, step, self._log_every) > 0,
            save=on_the_way and crossings(before, step, self._save_every) > 0,
        )

    def _after(self, step: int) -> int:
        intervals = [every for every in (self._log_every, self._save_every, self._eval_every) if every]
        draw = step + max(1, self._log_every // 10)  # lets the progress bar move between log lines
        return min(self._total, draw, *((step // every + 1) * every for every in intervals))
