"""Measures our own training: a callback that hands the meter every step at which an update was made."""

from meter import Meter

from rl_training import Callback


class Timing(Callback):
    """Stops the run when the meter has measured for long enough; ``warm``: steps before it begins."""

    def __init__(self, warm: int) -> None:
        self.meter, self.step = Meter(warm), -1

    def on_update_end(self, trainer, result):
        if trainer.global_step != self.step:
            self.step = trainer.global_step
            if not self.meter.tick(self.step):
                trainer.request_stop("measured")
