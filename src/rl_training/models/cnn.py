"""Convolutions of images: those of Mnih et al. (2015) for large ones, and fewer, smaller ones for small ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["Convolutions", "PixelScale", "convolutional_layers"]

Stages = tuple[tuple[int, int, int], ...]  # channels, side of the kernel and stride of each

LARGE: Stages = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALLER: tuple[tuple[int, Stages], ...] = (  # by the shorter side, from which on
    (20, ((32, 3, 2), (64, 3, 2), (64, 3, 1))),
    (10, ((32, 3, 1), (64, 3, 2))),
    (5, ((32, 3, 1), (64, 3, 1))),
)
LARGE_SIDE = 36


class PixelScale(nn.Module):
    """Pixels to floats: those of bytes in [0, 1], others divided by ``divisor``."""

    def __init__(self, divisor: float = 255.0) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / self.divisor


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


def convolutional_layers(obs_shape: tuple[int, ...], *, divisor: float = 255.0) -> tuple[Convolutions, int]:
    """Convolutions of images (C, H, W), of at least 5 x 5 pixels, to flat features, and the number of features."""
    channels, height, width = obs_shape
    side = min(height, width)
    chosen = LARGE if side >= LARGE_SIDE else next((layers for least, layers in SMALLER if side >= least), None)
    if chosen is None:
        raise ValueError(f"the convolutional network needs images of at least 5 x 5 pixels, got {height} x {width}")
    parts: list[nn.Module] = [PixelScale(divisor)]
    for outputs, kernel, stride in chosen:
        parts += [nn.Conv2d(channels, outputs, kernel, stride=stride), nn.ReLU()]
        channels = outputs
    layers = Convolutions(*parts, nn.Flatten())
    with torch.no_grad():
        return layers, layers(torch.zeros(1, *obs_shape, dtype=torch.uint8)).shape[1]
