"""Rows of several parts (``base.parts``) taken apart on the device: their encoder, and their normaliser."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.base.devices import arrays_to_device, to_host
from rl_training.base.parts import Parts
from rl_training.models.cnn import convolutional_layers
from rl_training.models.mlp import Linear
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.overrides import overridden

__all__ = ["BYTES", "IMAGE_FEATURES", "PartsEncoder", "PartsNormalizer", "Taken", "VectorsOfRows", "join", "take_apart"]

IMAGE_FEATURES = 256  # of every image, which are joined with the vectors
BYTES = 4  # of a float

Taken = tuple[torch.Tensor, ...]  # vectors side by side (B, V), each image (B, C, H, W), and the mask, if there is one


def take_apart(rows: torch.Tensor, parts: Parts) -> Taken:
    """The vectors of rows (B, width) side by side, and their images; the parts of other kinds are not encoded."""
    in_bytes = rows.dtype == torch.uint8
    floats = rows[:, : BYTES * parts.floats].view(torch.float32) if in_bytes and parts.floats else rows
    each, taken = BYTES if in_bytes else 1, [floats[:, : parts.vector_size]]
    for part, (start, stop) in zip(parts.all, parts.spans):
        if part.kind == "image":
            of_bytes = part.dtype == "uint8"
            image = rows[:, start:stop] if of_bytes else floats[:, start // each : stop // each]
            taken.append(image.reshape(len(image), *part.shape))
    return tuple(taken)


def join(vectors: torch.Tensor, rows: torch.Tensor, parts: Parts) -> torch.Tensor:
    """Rows with other vectors (B, V), which are their first numbers."""
    if rows.dtype != torch.uint8:
        return torch.cat([vectors, rows[:, parts.vector_size :]], 1)
    return torch.cat([vectors.contiguous().view(torch.uint8), rows[:, BYTES * parts.vector_size :]], 1)


class PartsEncoder(nn.Module):
    """Rows (B, width) to features (B, ``width``): every image through convolutions of its own and a hidden layer, then
    joined with the vectors. Parts that were taken apart already (``Taken``) are encoded as they are."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        self.images = nn.ModuleList()
        for part in parts.images:
            layers, size = convolutional_layers(part.shape, divisor=part.divisor)
            self.images.append(nn.Sequential(layers, Linear(size, IMAGE_FEATURES), nn.ReLU()))
        self.width = parts.vector_size + IMAGE_FEATURES * len(self.images)

    def forward(self, x: torch.Tensor | Taken) -> torch.Tensor:
        vectors, *images = take_apart(x, self.parts) if isinstance(x, torch.Tensor) else x
        joined = [vectors] if self.parts.vector_size else []
        return torch.cat([*joined, *(encoder(image) for encoder, image in zip(self.images, images))], 1)


class VectorsOfRows(nn.Module):
    """The vectors of rows that have no images: (B, width) to (B, V)."""

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by ``host_form``, in acting

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.width = parts.vector_size

    def forward(self, x: torch.Tensor | Taken) -> torch.Tensor:
        return x[:, : self.width] if isinstance(x, torch.Tensor) else x[0]

    def host_form(self) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: x[:, : self.width]


class PartsNormalizer(ObservationNormalizer):
    """Scales the vectors of rows by their running mean and deviation, and leaves images and what follows alone."""

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by ``host``, in acting

    def __init__(self, parts: Parts, *, clip: float = 10.0) -> None:
        super().__init__((parts.vector_size,), clip=clip)
        self.parts = parts

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        return self.parts.floats_of(rows)[..., : self.parts.vector_size]

    def observe(self, rows: np.ndarray) -> None:
        super().observe(self._vectors(rows))

    def fit(self, rows: np.ndarray, *, epsilon: float = 1e-3) -> None:
        super().fit(self._vectors(rows), epsilon=epsilon)

    def vectors(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled vectors (B, V)."""
        return super().forward(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return join(self.vectors(take_apart(x, self.parts)[0]), x, self.parts)

    def host(self, x: np.ndarray) -> np.ndarray:
        if overridden(self):
            with torch.no_grad():
                normalised: np.ndarray = to_host(self(*arrays_to_device(self.mean.device, x)))[0]
                return normalised
        rows: np.ndarray = np.ascontiguousarray(x).copy()
        vectors = self._vectors(rows)
        vectors[...] = super().host(vectors)
        return rows
