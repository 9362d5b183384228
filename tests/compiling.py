"""Tests that compile are left out where that is not possible, and have time enough on a busy machine."""

from __future__ import annotations

import pytest

from rl_training.optim.compiled import cannot_compile

_possible = pytest.mark.skipif(cannot_compile() is not None, reason=f"compiling is not possible: {cannot_compile()}")


def compiles(test):
    return pytest.mark.timeout(900)(_possible(test))
