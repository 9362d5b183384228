"""Dreamer's convolutions as one kernel for a CPU: ``pictures.cpp``, which torch's compiler builds for a network's sizes on first use, and
caches. Beside it, torch's own functions spend most of their time on memory and on strides."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch

FLAGS = ("-ffp-contract=fast", "-fno-math-errno")  # a product and a sum are one instruction, and so is a root
Sizes = tuple[int, ...]  # height, width and channels of the pixels, and the channels after every stage


class Library(NamedTuple):
    """The compiled functions, and how many numbers they take: parameters of the encoder; what it keeps of a picture, of two kinds;
    tokens of one; parameters of the decoder."""

    functions: Any
    encoder: int
    z: int
    scales: int
    tokens: int
    decoder: int


@cache
def library(sizes: Sizes) -> Library:
    """Built for these sizes; the first call takes some seconds on a machine that has not done it yet."""
    from torch._inductor.codecache import CppCodeCache

    source = resources.files("rl_training.models").joinpath("pictures.cpp").read_text()
    text = f"#define SIZES {', '.join(map(str, sizes))}\n{source}"
    functions = CppCodeCache.load(text, device_type="cpu", extra_flags=FLAGS)
    counts = (ctypes.c_long * 5)()
    functions.sizes(counts)
    return Library(functions, *counts)


@cache
def cannot_build(sizes: Sizes) -> str | None:
    """Why there is no library, or None; builds it."""
    try:
        library(sizes)
    except Exception as error:  # a compiler can fail in as many ways as there are compilers
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def _at(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _of_pixels(pixels: torch.Tensor) -> tuple[ctypes.c_void_p, int]:
    return *_at(pixels), int(pixels.dtype == torch.uint8)


def _flat(parameters: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def _apart(gradients: torch.Tensor, shapes: list[torch.Size]) -> list[torch.Tensor]:
    """Gradients (threads, numbers), each thread's own, to one for every shape."""
    parts = gradients.sum(0).split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes)]


class Encode(torch.autograd.Function):
    """Tokens (N, T) of pixels (N, C, H, W), bytes or floats up to 255: convolution, norm and SiLU, stage by stage. ``parameters`` are
    each stage's weight, gain and bias, from fine to coarse."""

    @staticmethod
    def forward(ctx: Any, pixels: torch.Tensor, sizes: Sizes, eps: float, *parameters: torch.Tensor) -> torch.Tensor:
        made, pixels, numbers = library(sizes), pixels.contiguous(), _flat(parameters)
        z, scales, tokens = (numbers.new_empty(len(pixels), width) for width in (made.z, made.scales, made.tokens))
        inputs = *_of_pixels(pixels), *_at(numbers), ctypes.c_float(eps)
        made.functions.encode(*inputs, *_at(z, scales, tokens), ctypes.c_long(len(pixels)), torch.get_num_threads())
        ctx.save_for_backward(pixels, numbers, z, scales)
        ctx.sizes, ctx.shapes = sizes, [parameter.shape for parameter in parameters]
        return tokens

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (pixels, numbers, z, scales), made, threads = ctx.saved_tensors, library(ctx.sizes), torch.get_num_threads()
        slopes, gradients = slopes.contiguous(), numbers.new_empty(threads, made.encoder)
        inputs = *_of_pixels(pixels), *_at(numbers, z, scales, slopes)
        made.functions.encode_back(*inputs, *_at(gradients), ctypes.c_long(len(pixels)), threads)
        return None, None, None, *_apart(gradients, ctx.shapes)


class PaintingError(torch.autograd.Function):
    """The squared error, summed over pixels and averaged over pictures, of what is painted from inputs (N, T) to pixels (N, C, H, W).
    Each picture's way back is taken at once, so that nothing of it is kept. ``parameters``: weight and bias of the last convolution,
    and each stage's weight, gain and bias before it, from fine to coarse."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, pixels: torch.Tensor, sizes: Sizes, eps: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
        made, n, threads, numbers = library(sizes), len(pixels), torch.get_num_threads(), _flat(parameters)
        inputs, pixels = inputs.contiguous(), pixels.contiguous()
        errors, slopes = inputs.new_empty(n), torch.empty_like(inputs)
        gradients = inputs.new_empty(threads, made.decoder)
        given = *_at(inputs), *_of_pixels(pixels), *_at(numbers), ctypes.c_float(eps), ctypes.c_float(1 / n)
        made.functions.paint(*given, *_at(errors, slopes, gradients), ctypes.c_long(n), threads)
        ctx.save_for_backward(slopes, *_apart(gradients, [parameter.shape for parameter in parameters]))
        return errors.mean()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, *parameters = (slope * saved for saved in ctx.saved_tensors)
        return inputs, None, None, None, *parameters
