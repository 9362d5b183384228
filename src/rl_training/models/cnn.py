"""The convolutional trunk for pixels (Mnih et al., 2015)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from rl_training.models.mlp import Linear, mlp

__all__ = ["Convolutions", "PixelScale", "convolutional_layers", "encoder", "features", "observation_shape"]


class PixelScale(nn.Module):
    """uint8 pixels to floats in [0, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 255.0


class Convolutions(nn.Sequential):
    """Convolutions of images to flat features. With ``in_bf16``, they are computed in bfloat16 where there is a
    gradient; weights, features and all that follows stay float32, and so do acting and targets."""

    in_bf16 = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forward: Callable[[torch.Tensor], torch.Tensor] = super().forward
        if not (self.in_bf16 and torch.is_grad_enabled()):
            return forward(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return forward(x).float()


def convolutional_layers(obs_shape: tuple[int, ...]) -> tuple[Convolutions, int]:
    """Convolutions of images (C, H, W), of at least 36 x 36 pixels, to flat features, and the number of features."""
    channels, height, width = obs_shape
    if min(height, width) < 36:
        raise ValueError(f"the convolutional network needs images of at least 36 x 36 pixels, got {height} x {width}")
    layers = Convolutions(
        PixelScale(),
        nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),
        nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        return layers, layers(torch.zeros(1, *obs_shape, dtype=torch.uint8)).shape[1]


def observation_shape(obs_dim: int | None, obs_shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of observations from a network's arguments: ``obs_dim`` for vectors, ``obs_shape`` for anything."""
    if obs_shape is not None:
        return tuple(obs_shape)
    if obs_dim is None:
        raise ValueError("give obs_dim (vectors) or obs_shape")
    return (obs_dim,)


def encoder(
    obs_shape: tuple[int, ...],
    hidden_sizes: tuple[int, ...],
    activation: type[nn.Module] = nn.ReLU,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> tuple[nn.Module, int, tuple[int, ...]]:
    """The layers before the last hidden one: the convolutions for images, the other hidden layers (at least one) for
    vectors; the number of features they give; and the widths that remain for the head."""
    if len(obs_shape) == 3:
        layers, width = convolutional_layers(obs_shape)
        return layers, width, hidden_sizes[-1:] or (512,)
    here = hidden_sizes[:-1] or hidden_sizes
    sizes = (obs_shape[0], *here)
    return mlp(sizes, activation, activate_last=True, linear=linear), sizes[-1], hidden_sizes[len(here) :]


def features(
    obs_shape: tuple[int, ...],
    hidden_sizes: tuple[int, ...],
    activation: type[nn.Module] = nn.ReLU,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> tuple[nn.Sequential, int]:
    """All hidden layers (vectors: a perceptron; images: convolutions and one more), and their number of features."""
    if len(obs_shape) == 3:
        layers, width, hidden = encoder(obs_shape, hidden_sizes)
        return nn.Sequential(layers, linear(width, hidden[0]), nn.ReLU()), hidden[0]
    sizes = (obs_shape[0], *hidden_sizes)
    return mlp(sizes, activation, activate_last=True, linear=linear), sizes[-1]
