"""Forward passes for acting: numpy on zero-copy views of the parameters where that is possible, torch elsewhere.

For one or a few observations a torch call costs ten times the arithmetic; numpy on the same memory does not. The views
follow every update because optimizers change parameters in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.models.mlp import EnsembleLinear

Array = np.ndarray
MOST_ROWS = 256  # beyond this, torch's threads and vectorised tanh win


def host_forward(module: nn.Module) -> Callable[[Array], Array]:
    """``module`` as a function of arrays. Make it after the parameters have reached their final place."""
    slow = torch_forward(module, device_of(module))
    layers = numpy_layers(module)
    if layers is None:
        return slow

    def forward(x: Array) -> Array:
        if len(x) > MOST_ROWS:
            return slow(x)
        for layer in layers:
            x = layer(x)
        return x

    return forward


def device_of(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def torch_forward(function: Callable[[torch.Tensor], Any], device: torch.device) -> Callable[[Array], Any]:
    """A function of tensors as one of arrays, on any device; a tuple of arrays if it returns several tensors."""

    @torch.no_grad()
    def forward(x: Array) -> Any:
        y = function(torch.from_numpy(np.ascontiguousarray(x)).to(device))
        return tuple(part.cpu().numpy() for part in y) if isinstance(y, tuple) else y.cpu().numpy()

    return forward


def numpy_layers(module: nn.Module) -> list[Callable[[Array], Array]] | None:
    """The module's layers as functions of arrays, or None if one of them has no numpy form here."""
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in module.parameters()):
        return None
    if type(module) is nn.Sequential:
        layers: list[Callable[[Array], Array]] = []
        for child in module:
            inner = numpy_layers(child)
            if inner is None:
                return None
            layers += inner
        return layers
    make = _LAYERS.get(type(module))
    return None if make is None else [make(module)]


def _linear(layer: nn.Linear) -> Callable[[Array], Array]:
    weight = layer.weight.detach().numpy().T
    bias = layer.bias.detach().numpy() if layer.bias is not None else np.float32(0)

    def forward(x: Array) -> Array:
        y = np.dot(x, weight)
        y += bias
        return y

    return forward


def _ensemble_linear(layer: EnsembleLinear) -> Callable[[Array], Array]:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def forward(x: Array) -> Array:
        y = np.matmul(x, weight)
        y += bias
        return y

    return forward


def _relu(layer: nn.Module) -> Callable[[Array], Array]:
    return lambda x: np.maximum(x, np.float32(0), out=x)


def _tanh(layer: nn.Module) -> Callable[[Array], Array]:
    return lambda x: np.tanh(x, out=x)


def _identity(layer: nn.Module) -> Callable[[Array], Array]:
    return lambda x: x


_LAYERS: dict[type, Callable] = {
    nn.Linear: _linear,
    EnsembleLinear: _ensemble_linear,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.Identity: _identity,
}
