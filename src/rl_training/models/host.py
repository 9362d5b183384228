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

from rl_training.models.mlp import EnsembleLinear, EnsembleMLP, Linear
from rl_training.models.mlp_iqn_network import ImplicitQuantiles
from rl_training.models.mlp_q_network import DuelingHead
from rl_training.models.noisy import NoisyLinear

Array = np.ndarray
Layer = Callable[[Array, np.random.Generator | None], Array]
MOST_ROWS = 256  # beyond this, torch's threads and vectorised tanh win


def host_forward(module: nn.Module) -> Callable[..., Array]:
    """``module`` as a function of arrays. Make it after the parameters have reached their final place.

    With a generator as second argument, noisy layers draw their noise from it; without one they have none.
    """
    slow = torch_forward(module, device_of(module))
    layers = numpy_layers(module)
    if layers is None:
        return lambda x, rng=None: slow(x)  # noise follows the module's mode

    def forward(x: Array, rng: np.random.Generator | None = None) -> Array:
        if len(x) > MOST_ROWS and rng is None:
            return slow(x)
        return through(layers, x, rng)

    return forward


def host_quantiles(network: ImplicitQuantiles) -> tuple[Callable[..., Array], Callable[..., Array]] | None:
    """The network's ``encode(obs, rng)`` and ``quantiles(features, taus, rng)`` as functions of arrays, or None."""
    parts = [numpy_layers(part) for part in (network.encoder, network.embedding, network.head)]
    if any(part is None for part in parts):
        return None
    encoder, embedding, head = (part or [] for part in parts)
    frequencies = network.frequencies.numpy()

    def encode(obs: Array, rng: np.random.Generator | None) -> Array:
        return through(encoder, obs, rng)

    def quantiles(features: Array, taus: Array, rng: np.random.Generator | None) -> Array:
        rows, count = taus.shape
        embedded = through(embedding, np.cos(taus.reshape(-1, 1) * frequencies), rng)
        joint = embedded.reshape(rows, count, -1) * features[:, None]
        return through(head, joint.reshape(rows * count, -1), rng).reshape(rows, count, -1).swapaxes(1, 2)

    return encode, quantiles


def through(layers: list[Layer], x: Array, rng: np.random.Generator | None) -> Array:
    for layer in layers:
        x = layer(x, rng)
    return x


def device_of(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def torch_forward(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function of tensors as one of arrays, on any device; a tuple of arrays if it returns several tensors."""

    @torch.no_grad()
    def forward(*arrays: Array) -> Any:
        y = function(*(torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in arrays))
        return tuple(part.cpu().numpy() for part in y) if isinstance(y, tuple) else y.cpu().numpy()

    return forward


def numpy_layers(module: nn.Module) -> list[Layer] | None:
    """The module's layers as functions of arrays, or None if one of them has no numpy form here."""
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in module.parameters()):
        return None
    if type(module) in (nn.Sequential, EnsembleMLP):
        layers: list[Layer] = []
        for child in module.children():
            inner = numpy_layers(child)
            if inner is None:
                return None
            layers += inner
        return layers
    make = _LAYERS.get(type(module))
    return None if make is None else [make(module)]


def _linear(layer: nn.Linear) -> Layer:
    weight = layer.weight.detach().numpy().T
    bias = layer.bias.detach().numpy() if layer.bias is not None else np.float32(0)

    def forward(x: Array, rng: np.random.Generator | None) -> Array:
        y = np.dot(x, weight)
        y += bias
        return y

    return forward


def _noisy_linear(layer: NoisyLinear) -> Layer:
    plain = _linear(layer)  # type: ignore[arg-type]
    sigma, bias_sigma = layer.weight_sigma.detach().numpy().T, layer.bias_sigma.detach().numpy()

    def forward(x: Array, rng: np.random.Generator | None) -> Array:
        y = plain(x, rng)
        if rng is not None:
            noise = rng.standard_normal(sum(sigma.shape), np.float32)
            noise = np.sign(noise) * np.sqrt(np.abs(noise))
            noise_in, noise_out = noise[: len(sigma)], noise[len(sigma) :]
            y += noise_out * (np.dot(x * noise_in, sigma) + bias_sigma)
        return y

    return forward


def _dueling(head: DuelingHead) -> Layer:
    value, advantage = numpy_layers(head.value), numpy_layers(head.advantage)
    assert value is not None and advantage is not None  # of linear layers and activations alone

    def forward(x: Array, rng: np.random.Generator | None) -> Array:
        v, a = through(value, x, rng), through(advantage, x, rng)
        a = a.reshape(*x.shape[:-1], head.actions, head.atoms)
        return (v[..., None, :] + a - a.mean(-2, keepdims=True)).reshape(*x.shape[:-1], -1)

    return forward


def _ensemble_linear(layer: EnsembleLinear) -> Layer:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def forward(x: Array, rng: np.random.Generator | None) -> Array:
        y = np.matmul(x, weight)
        y += bias
        return y

    return forward


def _relu(layer: nn.Module) -> Layer:
    return lambda x, rng: np.maximum(x, np.float32(0), out=x)


def _tanh(layer: nn.Module) -> Layer:
    return lambda x, rng: np.tanh(x, out=x)


def _identity(layer: nn.Module) -> Layer:
    return lambda x, rng: x


_LAYERS: dict[type, Callable] = {
    nn.Linear: _linear,
    Linear: _linear,
    NoisyLinear: _noisy_linear,
    DuelingHead: _dueling,
    EnsembleLinear: _ensemble_linear,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.Identity: _identity,
}
