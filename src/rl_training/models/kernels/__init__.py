"""Kernels of our own for Dreamer on a CPU, in C++ that torch's compiler builds for a network's sizes on first use, and caches. Where torch
spends its time on memory, on strides and between calls, they spend it on sums.

They are built for the processor at hand; the environment variable ``RL_TRAINING_KERNEL_ISA`` sets the widest vectors that they may use on
an x86: ``native`` (the default), ``avx2`` or ``plain`` (no AVX at all). All three compute the same up to rounding. Every tensor that a
kernel gets is checked first (``border``); under ``torch.autocast`` they compute in float32.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from rl_training.models.kernels import border
from rl_training.models.kernels.border import Sizes

FLAGS = ("-ffp-contract=fast", "-fno-math-errno")  # a product and a sum are one instruction, and so is a root
TOGETHER = 8  # sequences that go through the recurrence together
ISA = "RL_TRAINING_KERNEL_ISA"
BUILDS: dict[str, tuple[int | None, tuple[str, ...]]] = {  # bits of a vector for torch's flags, flags after those
    "native": (None, ()),
    "avx2": (256, ("-mno-avx512f",)),
    "plain": (1, ("-mno-avx",)),
}
in_float32: Any = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
outside_autocast: Any = torch.amp.custom_bwd(device_type="cpu")


class Library(NamedTuple):
    """Compiled functions, how many numbers they deal in, as each kernel has it, and how many of them are in a vector."""

    functions: Any
    counts: tuple[int, ...]
    lanes: int

    def call(self, name: str, axes: Mapping[str, int], **arguments: Any) -> None:
        border.call(self.functions, name, axes, **arguments)


def chosen_isa() -> str:
    """The build that the environment asks for."""
    isa = os.environ.get(ISA) or "native"
    if isa not in BUILDS:
        raise ValueError(f"{ISA} must be one of {', '.join(BUILDS)}; got {isa!r}")
    return isa


def library(kernel: str, sizes: Sizes) -> Library:
    """Built for these sizes; the first call takes some seconds on a machine that has not done it yet."""
    return _library(kernel, sizes, chosen_isa())


@cache
def _library(kernel: str, sizes: Sizes, isa: str) -> Library:
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache

    files = resources.files(__name__)
    parts = [files.joinpath(f"{name}.cpp").read_text() for name in ("vectors", kernel)]
    text = "\n".join([f"#define SIZES {', '.join(map(str, sizes))}", *parts])
    bits, narrower = BUILDS[isa] if platform.machine() in ("x86_64", "AMD64") else BUILDS["native"]
    with config.patch({"cpp.simdlen": bits}):
        functions = CppCodeCache.load(text, device_type="cpu", extra_flags=(*FLAGS, *narrower))
    counts = (ctypes.c_long * 4)()
    functions.sizes(counts)
    return Library(functions, tuple(counts[:3]), counts[3])


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
    chosen_isa()  # a typo there is an error, not a reason to go on without
    try:
        for part in parts:
            part.kernel(part.sizes)
    except Exception as error:  # a compiler can fail in as many ways as there are compilers
        lines = (str(error).strip() or type(error).__name__).splitlines()
        return next((line for line in lines if "error:" in line), lines[0])
    return None


def _as_pixels(pixels: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Pixels as a kernel reads them: bytes or floats, one after the other, and as many as it was built for."""
    height, width, channels, *_ = sizes
    if pixels.shape[1:] != (channels, height, width):
        raise ValueError(f"built for pictures of {(channels, height, width)}, got {tuple(pixels.shape[1:])}")
    return (pixels if pixels.dtype == torch.uint8 else pixels.float()).contiguous()


def _apart(gradients: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Gradients (threads, numbers), each thread's own, to one for every shape."""
    parts = gradients.sum(0).split([math.prod(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes)]


class Encode(torch.autograd.Function):
    """Tokens (N, T) of pixels (N, C, H, W), bytes or floats up to 255: convolution, norm and SiLU, stage by stage. ``parameters`` are
    each stage's weight, gain and bias, from fine to coarse."""

    @staticmethod
    @in_float32
    def forward(ctx: Any, pixels: torch.Tensor, sizes: Sizes, eps: float, *parameters: torch.Tensor) -> torch.Tensor:
        made, pixels = pictures(sizes), _as_pixels(pixels, sizes)
        numbers = border.flat("encode", parameters, border.encoder_parameters(sizes))
        n, threads = len(pixels), torch.get_num_threads()
        z, scales, tokens = (numbers.new_empty(n, width) for width in made.counts)
        made.call(
            "encode", _of_pictures(sizes, made, numbers, n, threads), pixels=pixels, bytes=pixels.dtype == torch.uint8,
            numbers=numbers, eps=eps, z=z, scales=scales, tokens=tokens, n=n, threads=threads,
        )  # fmt: skip
        ctx.save_for_backward(pixels, numbers, z, scales)
        ctx.sizes = sizes
        return tokens

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(ctx: Any, of_tokens: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (pixels, numbers, z, scales), made = ctx.saved_tensors, pictures(ctx.sizes)
        n, threads = len(pixels), torch.get_num_threads()
        of_numbers = numbers.new_empty(threads, len(numbers))
        made.call(
            "encode_back", _of_pictures(ctx.sizes, made, numbers, n, threads), pixels=pixels,
            bytes=pixels.dtype == torch.uint8, numbers=numbers, z=z, scales=scales, of_tokens=of_tokens.contiguous(),
            of_numbers=of_numbers, n=n, threads=threads,
        )  # fmt: skip
        return None, None, None, *_apart(of_numbers, border.encoder_parameters(ctx.sizes))


class PaintingError(torch.autograd.Function):
    """The squared error, summed over pixels and averaged over pictures, of what is painted from inputs (N, T) to pixels (N, C, H, W).
    Each picture's way back is taken at once, so that nothing of it is kept. ``parameters``: weight and bias of the last convolution,
    and each stage's weight, gain and bias before it, from fine to coarse."""

    @staticmethod
    @in_float32
    def forward(
        ctx: Any, inputs: torch.Tensor, pixels: torch.Tensor, sizes: Sizes, eps: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
        made, inputs, pixels, shapes = (
            pictures(sizes),
            inputs.contiguous(),
            _as_pixels(pixels, sizes),
            border.painter_parameters(sizes),
        )
        numbers, n, threads = border.flat("paint", parameters, shapes), len(pixels), torch.get_num_threads()
        errors, of_inputs = numbers.new_empty(n), numbers.new_empty(inputs.shape)
        of_numbers = numbers.new_empty(threads, len(numbers))
        made.call(
            "paint", _of_pictures(sizes, made, numbers, n, threads), inputs=inputs, pixels=pixels,
            bytes=pixels.dtype == torch.uint8, numbers=numbers, eps=eps, weight=1 / n, errors=errors,
            of_inputs=of_inputs, of_numbers=of_numbers, n=n, threads=threads,
        )  # fmt: skip
        ctx.save_for_backward(of_inputs, *_apart(of_numbers, shapes))
        return errors.mean()

    @staticmethod
    @outside_autocast
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
    @in_float32
    def forward(
        ctx: Any, sizes: Sizes, eps: float, uniform: float, keep: torch.Tensor, luck: torch.Tensor, deter: torch.Tensor,
        stoch: torch.Tensor, embedded: torch.Tensor, told: torch.Tensor, *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        made, (steps, n), threads = recurrence(sizes), keep.shape[:2], torch.get_num_threads()
        numbers = border.flat("observe", parameters, border.recurrence_parameters(sizes))
        keep, luck, deter, stoch, embedded, told = (x.contiguous() for x in (keep, luck, deter, stoch, embedded, told))
        axes = _of_sequences(sizes, made, numbers, steps, n, threads)
        kept, deters, stochs = (numbers.new_empty(steps, n, axes[name]) for name in ("kept", "deter", "stoch"))
        made.call(
            "observe", axes, numbers=numbers, eps=eps, uniform=uniform, keep=keep, deter=deter, stoch=stoch,
            embedded=embedded, told=told, luck=luck, kept=kept, deters=deters, stochs=stochs,
            steps=steps, n=n, threads=threads,
        )  # fmt: skip
        ctx.save_for_backward(numbers, keep, deter, stoch, deters, stochs, kept)
        ctx.sizes, ctx.uniform = sizes, uniform
        return deters, stochs, _columns(kept, _kept(sizes))[3]

    @staticmethod
    @outside_autocast
    @once_differentiable
    def backward(
        ctx: Any, of_deters: torch.Tensor, of_stochs: torch.Tensor, of_chances: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        numbers, keep, deter, stoch, deters, stochs, kept = ctx.saved_tensors
        made, threads, (steps, n) = recurrence(ctx.sizes), torch.get_num_threads(), keep.shape[:2]
        blocks, shapes = ctx.sizes[0], border.recurrence_parameters(ctx.sizes)
        of_chances = of_chances + (1 - ctx.uniform) * of_stochs  # a latent's gradient is that of its chance
        axes = _of_sequences(ctx.sizes, made, numbers, steps, n, threads)
        slopes, of_norms = numbers.new_empty(steps, n, axes["slopes"]), numbers.new_empty(threads, axes["norms"])
        of_deter, of_stoch = (numbers.new_empty(state.shape) for state in (deter, stoch))
        made.call(
            "observe_back", axes, numbers=numbers, uniform=ctx.uniform, keep=keep, of_deters=of_deters.contiguous(),
            of_chances=of_chances.contiguous(), kept=kept, slopes=slopes, of_deter=of_deter, of_stoch=of_stoch,
            of_norms=of_norms, steps=steps, n=n, threads=threads,
        )  # fmt: skip

        first, second, hidden, logits, inner, gates, action = _columns(slopes, _slopes(ctx.sizes))
        inner_in, inner_out, hidden_out, *_ = _columns(kept, _kept(ctx.sizes))
        before = [torch.cat([start[None], ends[:-1]]) * keep for start, ends in ((deter, deters), (stoch, stochs))]
        linear = zip((first, second, hidden, logits), (*before, deters, hidden_out))
        gradients = [y.flatten(0, 1).t() @ x.flatten(0, 1) for y, x in linear] + [logits.sum((0, 1))]
        for x, y in ((inner_in, inner), (inner_out, gates)):
            x, y = (rows.flatten(0, 1).unflatten(-1, (blocks, -1)).transpose(0, 1) for rows in (x, y))
            gradients += [torch.bmm(x.transpose(1, 2), y), y.sum(1, keepdim=True)]
        gradients += _apart(of_norms, shapes[len(gradients) :])
        return *[None] * 5, of_deter, of_stoch, action, hidden, *gradients


def _of_pictures(sizes: Sizes, made: Library, numbers: torch.Tensor, n: int, threads: int) -> dict[str, int]:
    """Lengths of the axes of what ``encode``, ``encode_back`` and ``paint`` take."""
    (height, width, channels, *_), (z, scales, tokens) = sizes, made.counts
    return {
        "pictures": n, "channels": channels, "height": height, "width": width, "threads": threads,
        "numbers": len(numbers), "z": z, "scales": scales, "tokens": tokens,
    }  # fmt: skip


def _of_sequences(
    sizes: Sizes, made: Library, numbers: torch.Tensor, steps: int, n: int, threads: int
) -> dict[str, int]:
    """Lengths of the axes of what ``observe`` and ``observe_back`` take."""
    (_, deter, hidden, embed, latents, classes), (kept, slopes, norms) = sizes, made.counts
    return {
        "steps": steps, "sequences": n, "one": 1, "threads": threads, "deter": deter, "stoch": latents * classes,
        "latents": latents, "classes": classes, "hidden": hidden, "embed": embed,
        "numbers": len(numbers), "kept": kept, "slopes": slopes, "norms": norms,
    }  # fmt: skip


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
