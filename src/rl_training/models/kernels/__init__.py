"""Kernels of our own for Dreamer on a CPU, in C++ that torch's compiler builds for a network's sizes on first use, and caches. Where torch
spends its time on memory, on strides and between calls, they spend it on sums."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

FLAGS = ("-ffp-contract=fast", "-fno-math-errno")  # a product and a sum are one instruction, and so is a root
TOGETHER = 8  # sequences that go through the recurrence together
Sizes = tuple[int, ...]


class Library(NamedTuple):
    """Compiled functions, and how many numbers they deal in, as each kernel has it."""

    functions: Any
    counts: tuple[int, ...]


@cache
def library(kernel: str, sizes: Sizes) -> Library:
    """Built for these sizes; the first call takes some seconds on a machine that has not done it yet."""
    from torch._inductor.codecache import CppCodeCache

    files = resources.files(__name__)
    parts = [files.joinpath(f"{name}.cpp").read_text() for name in ("vectors", kernel)]
    text = "\n".join([f"#define SIZES {', '.join(map(str, sizes))}", *parts])
    functions = CppCodeCache.load(text, device_type="cpu", extra_flags=FLAGS)
    counts = (ctypes.c_long * 3)()
    functions.sizes(counts)
    return Library(functions, tuple(counts))


def pictures(sizes: Sizes) -> Library:
    """Sizes: height, width and channels of the pixels, and the channels after every stage. Counts: what is kept of a
    picture, of two kinds, and its tokens."""
    return library("pictures", sizes)


def recurrence(sizes: Sizes) -> Library:
    """Sizes: blocks; widths of state, hidden layers and embedded action; latents and their classes. Counts: what is kept of a
    step of a sequence, gradients of one, parameters of norms."""
    return library("recurrence", (TOGETHER, *sizes))


class Fusible:
    """A part of a network that can learn through a kernel of our own. Acting is the same whatever the engine."""

    kernel: Callable[[Sizes], Library]
    sizes: Sizes
    fused = False

    @property
    def learns_fused(self) -> bool:
        return self.fused and torch.is_grad_enabled()


def cannot_build(parts: Sequence[Fusible]) -> str | None:
    """Why there are no kernels for them, or None; builds them."""
    try:
        for part in parts:
            part.kernel(part.sizes)
    except Exception as error:  # a compiler can fail in as many ways as there are compilers
        lines = (str(error).strip() or type(error).__name__).splitlines()
        return next((line for line in lines if "error:" in line), lines[0])
    return None


def _at(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _readable(pixels: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """As a kernel reads them: bytes or floats, one after the other, and as many as it was built for."""
    height, width, channels, *_ = sizes
    if pixels.shape[1:] != (channels, height, width):
        raise ValueError(f"built for pictures of {(channels, height, width)}, got {tuple(pixels.shape[1:])}")
    return (pixels if pixels.dtype == torch.uint8 else pixels.float()).contiguous()


def _of_pixels(pixels: torch.Tensor) -> tuple[ctypes.c_void_p, int]:
    return _at(pixels)[0], int(pixels.dtype == torch.uint8)


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
        made, pixels, numbers = pictures(sizes), _readable(pixels, sizes), _flat(parameters)
        z, scales, tokens = (numbers.new_empty(len(pixels), width) for width in made.counts)
        inputs = *_of_pixels(pixels), *_at(numbers), ctypes.c_float(eps)
        made.functions.encode(*inputs, *_at(z, scales, tokens), ctypes.c_long(len(pixels)), torch.get_num_threads())
        ctx.save_for_backward(pixels, numbers, z, scales)
        ctx.sizes, ctx.shapes = sizes, [parameter.shape for parameter in parameters]
        return tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (pixels, numbers, z, scales), made, threads = ctx.saved_tensors, pictures(ctx.sizes), torch.get_num_threads()
        slopes, gradients = slopes.contiguous(), numbers.new_empty(threads, len(numbers))
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
        made, n, threads, numbers = pictures(sizes), len(pixels), torch.get_num_threads(), _flat(parameters)
        inputs, pixels = inputs.contiguous(), _readable(pixels, sizes)
        assert inputs.shape == (n, made.counts[2])
        errors, slopes = inputs.new_empty(n), torch.empty_like(inputs)
        gradients = inputs.new_empty(threads, len(numbers))
        given = *_at(inputs), *_of_pixels(pixels), *_at(numbers), ctypes.c_float(eps), ctypes.c_float(1 / n)
        made.functions.paint(*given, *_at(errors, slopes, gradients), ctypes.c_long(n), threads)
        ctx.save_for_backward(slopes, *_apart(gradients, [parameter.shape for parameter in parameters]))
        return errors.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, *parameters = (slope * saved for saved in ctx.saved_tensors)
        return inputs, None, None, None, *parameters


class Observe(torch.autograd.Function):
    """The recurrence through sequences (T, B, ...): deterministic states, latents and their chances, from an initial state, embedded
    actions and what observations tell, where ``keep`` is not zero; ``luck`` is what chances are multiplied by before the largest is
    taken. ``parameters``: weights of the linear layers after state, latents, state again and hidden layer, the latter's bias; weights
    and biases of the two layers in blocks; gains and biases of the norms of state, latents, inner and hidden layer."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sizes, eps: float, uniform: float, keep: torch.Tensor, luck: torch.Tensor, deter: torch.Tensor,
        stoch: torch.Tensor, embedded: torch.Tensor, told: torch.Tensor, *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        made, numbers, (length, n) = recurrence(sizes), _flat(parameters), keep.shape[:2]
        kept = numbers.new_empty(length, n, made.counts[0])
        deters, stochs = (numbers.new_empty(length, n, x.shape[-1]) for x in (deter, stoch))
        inputs = [x.contiguous() for x in (keep, deter, stoch, embedded, told, luck)]
        given = *_at(numbers), ctypes.c_float(eps), ctypes.c_float(uniform), *_at(*inputs, kept, deters, stochs)
        made.functions.observe(*given, ctypes.c_long(length), ctypes.c_long(n), torch.get_num_threads())
        ctx.save_for_backward(numbers, keep, deter, stoch, deters, stochs, kept)
        ctx.sizes, ctx.uniform, ctx.shapes = sizes, uniform, [parameter.shape for parameter in parameters]
        return deters, stochs, _columns(kept, _kept(sizes))[3]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_deters: torch.Tensor, of_stochs: torch.Tensor, of_chances: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        numbers, keep, deter, stoch, deters, stochs, kept = ctx.saved_tensors
        made, threads, (length, n) = recurrence(ctx.sizes), torch.get_num_threads(), keep.shape[:2]
        blocks = ctx.sizes[0]
        of_chances = of_chances + (1 - ctx.uniform) * of_stochs  # a latent's gradient is that of its chance
        slopes, norms = numbers.new_empty(length, n, made.counts[1]), numbers.new_empty(threads, made.counts[2])
        of_deter, of_stoch = (numbers.new_empty(state.shape) for state in (deter, stoch))
        inputs = [x.contiguous() for x in (keep, of_deters, of_chances, kept)]
        given = *_at(numbers), ctypes.c_float(ctx.uniform), *_at(*inputs, slopes, of_deter, of_stoch, norms)
        made.functions.observe_back(*given, ctypes.c_long(length), ctypes.c_long(n), threads)

        first, second, hidden, logits, inner, gates, action = _columns(slopes, _slopes(ctx.sizes))
        inner_in, inner_out, hidden_out, *_ = _columns(kept, _kept(ctx.sizes))
        before = [torch.cat([start[None], ends[:-1]]) * keep for start, ends in ((deter, deters), (stoch, stochs))]
        linear = zip((first, second, hidden, logits), (*before, deters, hidden_out))
        gradients = [y.flatten(0, 1).t() @ x.flatten(0, 1) for y, x in linear] + [logits.sum((0, 1))]
        for x, y in ((inner_in, inner), (inner_out, gates)):
            x, y = (rows.flatten(0, 1).unflatten(-1, (blocks, -1)).transpose(0, 1) for rows in (x, y))
            gradients += [torch.bmm(x.transpose(1, 2), y), y.sum(1, keepdim=True)]
        gradients += _apart(norms, ctx.shapes[len(gradients) :])
        return *[None] * 5, of_deter, of_stoch, action, hidden, *gradients


def _columns(rows: torch.Tensor, widths: list[int]) -> list[torch.Tensor]:
    return list(rows[..., : sum(widths)].split(widths, -1))


def _kept(sizes: Sizes) -> list[int]:
    """Of what is kept of a step: inputs of the inner layer, outputs of it and of the hidden one, chances."""
    blocks, deter, hidden, embed, latents, classes = sizes
    return [deter + blocks * (2 * hidden + embed), deter, hidden, latents * classes]


def _slopes(sizes: Sizes) -> list[int]:
    """Of the gradients of a step: of what comes out of every product, and of the embedded action."""
    _, deter, hidden, embed, latents, classes = sizes
    return [hidden, hidden, hidden, latents * classes, deter, 3 * deter, embed]
