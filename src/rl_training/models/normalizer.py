"""Normalisation of observations by their running mean and variance."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from rl_training.base.devices import HostBuffers, arrays_to_device, to_device, to_host
from rl_training.base.moments import merge_moments
from rl_training.models.overrides import overridden

__all__ = ["ObservationNormalizer"]


class _OnHost(NamedTuple):
    """Mean and inverse deviation as arrays, and the versions of the tensors that they were read from."""

    versions: tuple[int, int]
    mean: np.ndarray
    inverse_std: np.ndarray


class ObservationNormalizer(HostBuffers):
    """(x - mean) / deviation, clipped, with statistics of all observations seen in training; frozen while evaluating.

    The statistics are buffers of the agent, so they are saved, loaded and applied wherever the agent goes.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by ``host``, in acting
    ON_HOST = ("square", "exact_mean", "count")

    mean: torch.Tensor
    inverse_std: torch.Tensor
    square: torch.Tensor
    exact_mean: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], *, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("inverse_std", torch.ones(shape))
        self.register_buffer("square", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("exact_mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self._on_host: _OnHost | None = None

    def observe(self, rows: np.ndarray) -> None:
        """Update the statistics by observations (B, ...); does nothing in evaluation mode."""
        if not self.training:
            return
        count, mean, square = merge_moments(
            float(self.count), self.exact_mean.numpy(), self.square.numpy(), rows.astype(np.float64)
        )
        self.count.fill_(count)
        self.exact_mean.copy_(torch.as_tensor(mean))
        self.square.copy_(torch.as_tensor(square))
        self._set(self.exact_mean, (self.square / count + 1e-8).rsqrt())

    def fit(self, rows: np.ndarray, *, epsilon: float = 1e-3) -> None:
        """Set the statistics to those of a fixed dataset: (x - mean) / (deviation + epsilon)."""
        exact = rows.astype(np.float64)
        self._set(torch.as_tensor(exact.mean(0)), torch.as_tensor(1 / (exact.std(0) + epsilon)))

    def _set(self, mean: torch.Tensor, inverse_std: torch.Tensor) -> None:
        """Take over what ``forward`` scales by, in one transfer."""
        if self.mean.device.type != "cpu":
            return self._set_elsewhere(mean, inverse_std)
        self.mean.copy_(mean)  # at every step of a run: nothing to pack
        self.inverse_std.copy_(inverse_std)

    def _set_elsewhere(self, mean: torch.Tensor, inverse_std: torch.Tensor) -> None:
        rounded = {"mean": mean.to(self.mean.dtype), "inverse_std": inverse_std.to(self.inverse_std.dtype)}
        for name, values in to_device(rounded, self.mean.device).items():
            self._buffers[name].copy_(values)  # type: ignore[union-attr]
        self._on_host = _OnHost(self._versions(), *(values.numpy() for values in rounded.values()))

    def _versions(self) -> tuple[int, int]:
        """How often the tensors have been changed in place."""
        return self.mean._version, self.inverse_std._version

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and inverse deviation as arrays. Those of another device than a CPU are read again only when they have
        changed: they are needed for every action."""
        if self.mean.device.type == "cpu":
            return self.mean.numpy(), self.inverse_std.numpy()
        return self._scale_elsewhere()

    def _scale_elsewhere(self) -> tuple[np.ndarray, np.ndarray]:
        if self._on_host is None or self._on_host.versions != self._versions():
            self._on_host = _OnHost(self._versions(), *to_host(self.mean, self.inverse_std))
        return self._on_host.mean, self._on_host.inverse_std

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_on_host": None}  # a copy's tensors count their changes anew

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._on_host = None  # and so do those that are moved
        return super()._apply(fn, recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.mean) * self.inverse_std).clamp(-self.clip, self.clip)

    def host(self, x: np.ndarray) -> np.ndarray:
        """``forward`` on arrays, for acting."""
        if overridden(self):
            return self._through_torch(x)
        mean, inverse_std = self._scale()
        scaled: np.ndarray = (x - mean) * inverse_std
        return np.clip(scaled, -self.clip, self.clip, out=scaled)

    @torch.no_grad()
    def _through_torch(self, x: np.ndarray) -> np.ndarray:
        return to_host(self(*arrays_to_device(self.mean.device, x)))[0]
