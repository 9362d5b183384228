"""The hidden layers of networks, for whatever they observe: vectors, images, or rows of several parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rl_training.base.parts import Parts
from rl_training.models.cnn import convolutional_layers
from rl_training.models.memory import MemorySize, RecurrentTrunk
from rl_training.models.mlp import Linear, mlp
from rl_training.models.parts import PartsEncoder

__all__ = ["Observed", "encoder", "features", "observed", "remembering"]

Observed = tuple[int, ...] | Parts  # the shape of vectors or images, or the parts of rows


def observed(obs_dim: int | None, obs_shape: tuple[int, ...] | None, obs_parts: Parts | None = None) -> Observed:
    """What a network observes, from its arguments: ``obs_dim`` for vectors, ``obs_shape`` for vectors and images,
    ``obs_parts`` for rows of several parts."""
    if obs_parts is not None:
        return obs_parts
    if obs_shape is not None:
        return tuple(obs_shape)
    if obs_dim is None:
        raise ValueError("give obs_dim (vectors), obs_shape or obs_parts")
    return (obs_dim,)


def encoder(
    seen: Observed,
    hidden_sizes: tuple[int, ...],
    activation: type[nn.Module] = nn.ReLU,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> tuple[nn.Module, int, tuple[int, ...]]:
    """The layers before the last hidden one: the convolutions for images, the other hidden layers (at least one) for
    vectors, the encoders of several parts; the number of features they give; and the widths that remain for the
    head."""
    if isinstance(seen, Parts):
        parts = PartsEncoder(seen)
        return parts, parts.width, hidden_sizes
    if len(seen) == 3:
        layers, width = convolutional_layers(seen)
        return layers, width, hidden_sizes[-1:] or (512,)
    here = hidden_sizes[:-1] or hidden_sizes
    sizes = (seen[0], *here)
    return mlp(sizes, activation, activate_last=True, linear=linear), sizes[-1], hidden_sizes[len(here) :]


def features(
    seen: Observed,
    hidden_sizes: tuple[int, ...],
    activation: type[nn.Module] = nn.ReLU,
    linear: Callable[[int, int], nn.Module] = Linear,
) -> tuple[nn.Sequential, int]:
    """All hidden layers (vectors: a perceptron; images: convolutions and one more; parts: their
    encoders and a perceptron), and their number of features."""
    if isinstance(seen, Parts):
        parts = PartsEncoder(seen)
        sizes = (parts.width, *hidden_sizes)
        return nn.Sequential(parts, *mlp(sizes, activation, activate_last=True, linear=linear)), sizes[-1]
    if len(seen) == 3:
        layers, width, hidden = encoder(seen, hidden_sizes)
        return nn.Sequential(layers, linear(width, hidden[0]), nn.ReLU()), hidden[0]
    sizes = (seen[0], *hidden_sizes)
    return mlp(sizes, activation, activate_last=True, linear=linear), sizes[-1]


def remembering(trunk: nn.Module, width: int, memory: MemorySize | None) -> tuple[nn.Module, int]:
    """A trunk with a recurrent layer at its end, if there is to be one, and its number of features."""
    return (trunk, width) if memory is None else (RecurrentTrunk(trunk, width, memory), memory.size)
