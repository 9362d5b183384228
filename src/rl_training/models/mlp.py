"""Multilayer perceptrons, alone or as a batched ensemble, and their initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.overrides import ordinary

__all__ = [
    "EnsembleLayerNorm",
    "EnsembleLinear",
    "EnsembleMLP",
    "Linear",
    "ensemble_mlp",
    "mlp",
    "orthogonal_",
    "xavier_",
]

FEW = 4  # outputs up to which sums beat a matrix product
BLOCK = 800  # rows that pass through a network together in inference


class Linear(nn.Linear):
    """A linear layer that a compiler can fuse with its neighbours: the bias is added with the activation (a fused
    product would first copy it to every row), and a handful of outputs are sums rather than a matrix product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return super().forward(x)
        return self._fusible(x)

    def _fusible(self, x: torch.Tensor) -> torch.Tensor:
        """The same as operations that the compiler fuses, or hands to the same kernel as eager layers."""
        if self.out_features <= FEW:
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        if x.ndim > 2:
            return x @ self.weight.t() + self.bias
        return (x[None] @ self.weight.t() + self.bias).squeeze(
            0
        )  # with two dimensions, the compiler would fuse product and bias again


class EnsembleLinear(nn.Module):
    """E independent linear layers in one batched product: (B, in) or (E, B, in) -> (E, B, out)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor, members: torch.Tensor | None = None) -> torch.Tensor:
        weight, bias = _weight_and_bias(self, members)
        if x.ndim == 2:
            x = x.expand(len(weight), *x.shape)
        return torch.baddbmm(bias, x, weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation (Ba et al., 2016) with a gain and a bias for every member: (E, B, W) -> (E, B, W)."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: torch.Tensor, members: torch.Tensor | None = None) -> torch.Tensor:
        weight, bias = _weight_and_bias(self, members)
        return F.layer_norm(x, x.shape[-1:]) * weight + bias


def _weight_and_bias(
    layer: EnsembleLinear | EnsembleLayerNorm, members: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's weight and bias: of all members, or of those whose indices are given."""
    return (layer.weight, layer.bias) if members is None else (layer.weight[members], layer.bias[members])


class EnsembleMLP(nn.Sequential):
    """E independent perceptrons: (B, in) or (E, B, in) -> (E, B, out), or (M, B, out) for those in ``members`` (M,)."""

    def forward(self, x: torch.Tensor, members: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self:
            x = layer(x, members) if isinstance(layer, EnsembleLinear | EnsembleLayerNorm) else layer(x)
        return x

    @torch.no_grad()
    def infer(self, x: torch.Tensor, members: torch.Tensor | None = None) -> torch.Tensor:
        """``forward`` for many rows (E, B, in), without a gradient. On a CPU, blocks of rows pass through one member at
        a time and are activated in place, so that they stay in the cache."""
        layers: list[Any] = list(self)
        linear, between = layers[::2], layers[1::2]
        plain = (
            ordinary(self, EnsembleMLP)
            and len(linear) == len(between) + 1
            and all(ordinary(layer, EnsembleLinear) for layer in linear)
            and all(ordinary(layer, nn.SiLU) for layer in between)
        )
        if x.device.type != "cpu" or not plain:
            outputs: torch.Tensor = self(x, members)
            return outputs
        indices = range(len(linear[0].weight)) if members is None else members.tolist()
        result = x.new_empty(len(indices), x.shape[-2], linear[-1].weight.shape[-1])
        for k, member in enumerate(indices):
            rows = x if x.ndim == 2 else x[k]
            weights = [(layer.bias[member], layer.weight[member]) for layer in linear]
            for block, out in zip(torch.split(rows, BLOCK), torch.split(result[k], BLOCK)):
                for bias, weight in weights[:-1]:
                    block = F.silu(torch.addmm(bias, block, weight), inplace=True)
                torch.addmm(weights[-1][0], block, weights[-1][1], out=out)
        return result


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    *,
    activate_last: bool = False,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> nn.Sequential:
    """Linear layers between the given sizes; the last one is followed by the activation only with ``activate_last``."""
    return nn.Sequential(*_stack(sizes, linear, activation, activate_last))


def ensemble_mlp(
    members: int,
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    *,
    activate_last: bool = False,
    layer_norm: bool = False,
) -> EnsembleMLP:
    """E independent perceptrons; with ``layer_norm``, every hidden layer is normalised before its activation."""

    norm = partial(EnsembleLayerNorm, members) if layer_norm else None
    return EnsembleMLP(*_stack(sizes, partial(EnsembleLinear, members), activation, activate_last, norm))


def _stack(
    sizes: Sequence[int],
    linear: Callable[[int, int], nn.Module],
    activation: type[nn.Module],
    activate_last: bool,
    norm: Callable[[int], nn.Module] | None = None,
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        layers.append(linear(inputs, outputs))
        if number < len(sizes) - 1 or activate_last:
            layers += [activation()] if norm is None else [norm(outputs), activation()]
    return layers


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases in every linear or convolutional layer, member by member in an ensemble."""
    for layer in module.modules():
        if isinstance(layer, EnsembleLinear | nn.Linear | nn.Conv2d):
            members = layer.weight.data if isinstance(layer, EnsembleLinear) else [layer.weight]  # (in, out) each
            for weight in members:  # orthogonal up to transposition
                nn.init.orthogonal_(weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def xavier_(module: nn.Module) -> None:
    """Weights uniform by fan-in and fan-out (Glorot & Bengio, 2010), member by member in an ensemble; zero biases."""
    for layer in module.modules():
        if isinstance(layer, EnsembleLinear | nn.Linear | nn.Conv2d):
            field = layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
            ends = layer.weight.shape[:2] if isinstance(layer, nn.Conv2d) else layer.weight.shape[-2:]
            bound = math.sqrt(6 / (field * sum(ends)))
            nn.init.uniform_(layer.weight, -bound, bound)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
