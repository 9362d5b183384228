"""Runs that are interrupted on purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rl_training import Callback


class StopAtOnce(Callback):
    """Asks a run to stop after its first update."""

    def on_update_end(self, trainer, result):
        trainer.request_stop("for a while")


@contextlib.contextmanager
def every_run_stops() -> Iterator[None]:
    """Every run that is begun in here stops after its first update, and can be resumed."""
    from rl_training.runtime import spec

    controls = spec.build_control_callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "build_control_callbacks", lambda config: [*controls(config), StopAtOnce()])
        yield
