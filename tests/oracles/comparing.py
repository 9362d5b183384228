"""Compares what a learner holds and reports with what its oracle does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

FLOAT32 = (
    2e-5  # a few updates of a network of some ten units: thousands of roundings of 1e-7 that do not add up to more
)
FLOAT64 = 1e-9


def assert_same_parameters(ours: nn.Module, theirs: nn.Module, *, tolerance: float, name: str = "network") -> None:
    """Every parameter and buffer of two modules of one architecture, to rounding."""
    expected = theirs.state_dict()
    assert list(ours.state_dict()) == list(expected), f"{name}: other parameters"
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(
            value.double(),
            expected[key].double(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, key=key: f"{name}.{key}: {text}",
        )


def assert_changed(before: Mapping[str, torch.Tensor], after: nn.Module) -> None:
    """Every parameter has moved: two networks that nobody has updated would agree too."""
    still = [
        key
        for key, value in after.state_dict().items()
        if value.is_floating_point() and torch.equal(value, before[key])
    ]
    assert not still, f"not updated: {still}"


def assert_same_metrics(ours: Mapping[str, float], theirs: Mapping[str, float], *, tolerance: float) -> None:
    """Every number that the oracle knows is reported, and is that number."""
    for name, value in theirs.items():
        assert name in ours, f"{name} is not reported; reported: {sorted(ours)}"
        torch.testing.assert_close(
            torch.tensor(float(ours[name]), dtype=torch.float64), torch.tensor(float(value), dtype=torch.float64),
            rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip
