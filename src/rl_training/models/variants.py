"""Other activations and initial weights for the networks of this package, chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from rl_training.models.mlp import EnsembleLayerNorm, EnsembleLinear, orthogonal_, xavier_

__all__ = [
    "ACTIVATIONS",
    "INITIALISATIONS",
    "Activation",
    "Initialisation",
    "hidden_layers",
    "initialise_hidden_",
    "use_activation_",
]

Activation = Literal["relu", "tanh", "silu", "elu", "gelu", "leaky_relu"]
Initialisation = Literal["orthogonal", "xavier", "kaiming", "uniform"]


class GELU(nn.GELU):
    """GELU by its tanh form, which numpy can compute as well."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "gelu": GELU,
    "leaky_relu": nn.LeakyReLU,
}
LINEAR = (nn.Linear, nn.Conv2d, EnsembleLinear)


def use_activation_(network: nn.Module, name: Activation) -> None:
    """Put another activation in the place of every one in the network; weights stay as they are."""
    kind, known = ACTIVATIONS[name], tuple(ACTIVATIONS.values())
    found = [
        (parent, key) for parent in network.modules() for key, part in parent.named_children() if type(part) in known
    ]
    if not found:
        raise ValueError(f"{type(network).__name__} has no activation that could be replaced")
    for parent, key in found:
        setattr(parent, key, kind())


def hidden_layers(network: nn.Module) -> list[nn.Module]:
    """The linear and convolutional layers that an activation follows, perhaps after a normalisation."""
    known, found = tuple(ACTIVATIONS.values()), list[nn.Module]()
    for parent in network.modules():
        if isinstance(parent, nn.Sequential):
            parts = [part for part in parent if not isinstance(part, EnsembleLayerNorm)]
            found += [one for one, after in pairwise(parts) if isinstance(one, LINEAR) and isinstance(after, known)]
    return found


def initialise_hidden_(network: nn.Module, name: Initialisation) -> None:
    """Draw the weights of the hidden layers anew; output layers keep the algorithm's own, and noisy layers theirs."""
    layers = hidden_layers(network)
    if not layers:
        raise ValueError(f"{type(network).__name__} has no hidden layer that could be initialised")
    for layer in layers:
        INITIALISATIONS[name](layer)


def kaiming_(layer: nn.Module) -> None:
    """Normal weights of deviation √(2 / fan-in) (He et al., 2015), member by member in an ensemble; zero biases."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    fan_in = weight.shape[-2] if isinstance(layer, EnsembleLinear) else weight[0].numel()
    nn.init.normal_(weight, 0.0, (2 / fan_in) ** 0.5)
    _zero_bias(layer)


def uniform_(layer: nn.Module) -> None:
    """Weights and biases uniform within ±1 / √fan-in: what torch's layers begin with."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    fan_in = weight.shape[-2] if isinstance(layer, EnsembleLinear) else weight[0].numel()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)


def _zero_bias(layer: nn.Module) -> None:
    if isinstance(layer.bias, torch.Tensor):
        nn.init.zeros_(layer.bias)


INITIALISATIONS: dict[Initialisation, Callable[[nn.Module], None]] = {
    "orthogonal": lambda layer: orthogonal_(layer, 2**0.5),
    "xavier": xavier_,
    "kaiming": kaiming_,
    "uniform": uniform_,
}
