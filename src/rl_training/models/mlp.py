"""Multilayer perceptrons, alone or as a batched ensemble, and their initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

FEW = 4  # outputs up to which sums beat a matrix product


class Linear(nn.Linear):
    """A linear layer that a compiler can join with its neighbours: the bias is added with the activation (in a product that
    adds, it has to be copied to every row first), and a handful of outputs is no matrix product at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(x)
        if self.out_features <= FEW:
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        if x.ndim > 2:
            return x @ self.weight.t() + self.bias
        return (x[None] @ self.weight.t() + self.bias).squeeze(0)  # of two dimensions, it would be joined again


class EnsembleLinear(nn.Module):
    """E independent linear layers in one batched product: (B, in) or (E, B, in) -> (E, B, out)."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 2:
            x = x.expand(len(self.weight), *x.shape)
        return torch.baddbmm(self.bias, x, self.weight)


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    *,
    activate_last: bool = False,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> nn.Sequential:
    """Linear layers between the given sizes; the last one is followed by the activation only if asked."""
    return _stack(sizes, linear, activation, activate_last)


def ensemble_mlp(
    members: int, sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU, *, activate_last: bool = False
) -> nn.Sequential:
    """E independent perceptrons: (B, sizes[0]) or (E, B, sizes[0]) -> (E, B, sizes[-1])."""
    return _stack(sizes, lambda i, o: EnsembleLinear(members, i, o), activation, activate_last)


def _stack(sizes: Sequence[int], linear: Callable, activation: type[nn.Module], activate_last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [linear(inputs, outputs), activation()]
    return nn.Sequential(*(layers if activate_last else layers[:-1]))


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases in every linear or convolutional layer, member by member in an ensemble."""
    for layer in module.modules():
        if isinstance(layer, EnsembleLinear):
            for weight in layer.weight.data:  # (in, out): orthogonal up to transposition
                nn.init.orthogonal_(weight, gain)
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
