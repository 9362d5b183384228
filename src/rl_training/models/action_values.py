"""Action values Q(s, ·) of a network: on arrays, in numpy where possible, for acting; on tensors for export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.base.devices import to_device
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    host_forward,
    host_quantiles,
    numpy_layers,
    through,
    with_arrays,
)
from rl_training.models.mlp_fqf_network import MLPFQFNetwork
from rl_training.models.mlp_iqn_network import midpoints, quantiles_at

__all__ = ["ActionValues", "FractionQuantileMeans", "ProposedQuantileMeans", "QuantileMeans"]


class ActionValues:
    """Q(s, ·) as a network's own outputs (DQN)."""

    def __init__(self, network: nn.Module) -> None:
        self._forward = host_forward(network)

    def on_arrays(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Values (N, A) of observations (N, ...), with the network's noise from ``rng``; None: without noise."""
        values: np.ndarray = self._forward(obs, rng)
        return values

    def on_tensors(self, network: Any, obs: torch.Tensor) -> torch.Tensor:
        """Values (B, A) of observations (B, ...) by ``network``, without noise."""
        values: torch.Tensor = network(obs)
        return values


class QuantileMeans(ActionValues):
    """Q(s, ·) as the mean of ``num_quantiles`` quantiles at fixed fractions (QR-DQN)."""

    def __init__(self, network: nn.Module, num_quantiles: int) -> None:
        super().__init__(network)
        self._num_quantiles = num_quantiles

    def on_arrays(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        values: np.ndarray = self._forward(obs, rng).reshape(len(obs), -1, self._num_quantiles).mean(-1)
        return values

    def on_tensors(self, network: Any, obs: torch.Tensor) -> torch.Tensor:
        return super().on_tensors(network, obs).mean(-1)


class FractionQuantileMeans(ActionValues):
    """Q(s, ·) as the mean of quantiles at ``count`` fractions: random ones, or midpoints without a generator (IQN)."""

    def __init__(self, network: nn.Module, count: int) -> None:
        self.midpoints = midpoints(count)
        self._forward = HostFunction(network, _numpy_mean_at, _torch_mean_at)

    def on_arrays(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        rows, count = len(obs), len(self.midpoints)
        taus = np.tile(self.midpoints.numpy(), (rows, 1)) if rng is None else rng.random((rows, count), "f4")
        values: np.ndarray = self._forward(obs, taus, rng)
        return values

    def on_tensors(self, network: Any, obs: torch.Tensor) -> torch.Tensor:
        first = obs[0] if isinstance(obs, tuple) else obs  # an export hands over the parts of rows
        taus = to_device({"taus": self.midpoints[None]}, first.device)["taus"]
        return quantiles_at(network, obs, taus).mean(-1)


def _torch_mean_at(network: Any, obs: np.ndarray, taus: np.ndarray, rng: np.random.Generator | None) -> Any:
    return with_arrays(network, lambda obs, taus: quantiles_at(network, obs, taus).mean(-1), obs, taus)


def _numpy_mean_at(network: Any) -> Callable[..., Any] | None:
    parts = host_quantiles(network)
    if parts is None:
        return None
    encode, quantiles = parts

    def mean_at(obs: np.ndarray, taus: np.ndarray, rng: np.random.Generator | None) -> Any:
        if taus.size > MOST_ROWS:
            return _torch_mean_at(network, obs, taus, rng)
        return quantiles(encode(obs, rng), taus, rng).mean(-1)

    return mean_at


class ProposedQuantileMeans(ActionValues):
    """Q(s, ·) as the mean of quantiles at the fractions that the network proposes, weighted by their mass (FQF)."""

    def __init__(self, network: MLPFQFNetwork) -> None:
        self._forward = HostFunction(network, _numpy_weighted_mean, _torch_weighted_mean)

    def on_tensors(self, network: Any, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = network.values(obs)
        return values


def _torch_weighted_mean(network: MLPFQFNetwork, obs: np.ndarray, rng: np.random.Generator | None) -> Any:
    return with_arrays(network, network.values, obs)


def _numpy_weighted_mean(network: MLPFQFNetwork) -> Callable[..., Any] | None:
    parts, fraction_head = host_quantiles(network), numpy_layers(network.fraction_head)
    if parts is None or fraction_head is None:
        return None
    encode, quantiles = parts

    def weighted_mean(obs: np.ndarray, rng: np.random.Generator | None) -> Any:
        if len(obs) * network.num_quantiles > MOST_ROWS:
            return _torch_weighted_mean(network, obs, rng)
        features = encode(obs, rng)
        logits = through(fraction_head, features)
        mass = np.exp(logits - logits.max(1, keepdims=True))
        mass /= mass.sum(1, keepdims=True)
        upper = np.minimum(mass.cumsum(1), np.float32(1))
        upper[:, -1] = 1
        lower = np.concatenate([np.zeros_like(upper[:, :1]), upper[:, :-1]], 1)
        return (mass[:, None] * quantiles(features, (lower + upper) / 2, rng)).sum(-1)

    return weighted_mean
