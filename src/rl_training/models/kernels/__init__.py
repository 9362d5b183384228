"""Our own C++ kernels for Dreamer's updates on a CPU: convolutions and recurrence, forward and backward pass.

Torch's compiler builds them for a network's sizes on first use, and caches them. They are built for the processor at
hand; the environment variable ``RL_TRAINING_KERNEL_ISA`` sets the widest vectors that they may use on an x86:
``native`` (the default), ``avx2`` or ``plain`` (no AVX at all). All three compute the same up to rounding. Every
tensor that a kernel reads or writes is checked first (``border``); under ``torch.autocast`` the kernels compute in
float32.
"""

from __future__ import annotations

import math
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from rl_training.models.kernels import border
from rl_training.models.kernels.border import KernelSizes, Library
from rl_training.models.overrides import ordinary, redefined

__all__ = [
    "Fusible",
    "cannot_build",
    "convolutions",
    "decoder_loss",
    "encode",
    "fuse",
    "fusible",
    "observe",
    "recurrence",
]

FLAGS = ("-ffp-contract=fast", "-fno-math-errno")  # fused multiply-add, and a root as one instruction
TOGETHER = 8  # sequences that the recurrence computes together
ISA = "RL_TRAINING_KERNEL_ISA"
BUILDS: dict[str, tuple[int | None, tuple[str, ...]]] = {  # bits of a vector for torch's flags, flags after those
    "native": (None, ()),
    "avx2": (256, ("-mno-avx512f",)),
    "plain": (1, ("-mno-avx",)),
}


def chosen_isa() -> str:
    """The build that the environment variable names."""
    isa = os.environ.get(ISA) or "native"
    if isa not in BUILDS:
        raise ValueError(f"{ISA} must be one of {', '.join(BUILDS)}; got {isa!r}")
    return isa


@cache
def _library(kernel: str, sizes: KernelSizes, isa: str) -> Library:
    """A kernel built for these sizes; the first call takes some seconds on a machine that has not built it yet."""
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache

    files = resources.files(__name__)
    shared, own = (files.joinpath(f"{name}.cpp").read_text() for name in ("vectors", kernel))
    text = "\n".join([shared, border.header(), f"#define SIZES {', '.join(map(str, sizes))}", own])
    bits, narrower = BUILDS[isa] if platform.machine() in ("x86_64", "AMD64") else BUILDS["native"]
    with config.patch({"cpp.simdlen": bits}):
        functions = CppCodeCache.load(text, device_type="cpu", extra_flags=(*FLAGS, *narrower))
    return Library(functions, kernel, sizes)


def convolutions(sizes: KernelSizes) -> Library:
    """Encoder and decoder loss; sizes: height, width and channels of the pixels, and the channels after every stage."""
    return _library("convolutions", sizes, chosen_isa())


def recurrence(sizes: KernelSizes) -> Library:
    """The RSSM's posterior pass; sizes: blocks, widths of state, hidden layers and action, latents, classes."""
    return _library("recurrence", (TOGETHER, *sizes), chosen_isa())


class Fusible:
    """A module that can learn through one of these kernels (``fused``). Acting never uses them, so a module of which a
    method in ``REPLACED`` is redefined, or a layer altered or of a class not in ``LAYERS``, learns without them too."""

    REPLACED: ClassVar[tuple[str, ...]] = ()
    LAYERS: ClassVar[tuple[type[nn.Module], ...]] = ()
    kernel: Callable[[KernelSizes], Library]
    sizes: KernelSizes
    fused = False

    @property
    def learns_fused(self) -> bool:
        return self.fused and torch.is_grad_enabled() and self.as_built

    @property
    def as_built(self) -> bool:
        """Whether the module computes what its kernel does."""
        _, *layers = cast(nn.Module, self).modules()  # the first is the module itself
        return not redefined(self) and all(ordinary(layer, *self.LAYERS) for layer in layers)


def fusible(network: nn.Module) -> list[Fusible]:
    """The modules of a network that have a kernel on its device."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in network.parameters())
    return [module for module in network.modules() if isinstance(module, Fusible) and on_cpu]


def fuse(network: nn.Module) -> None:
    """Let a network's modules learn through kernels, which are built here; where that fails, warn and stay eager."""
    modules = fusible(network)
    if modules and (obstacle := cannot_build(modules)):
        warnings.warn(f"updates run eagerly: compiling failed ({obstacle})", stacklevel=3)
        return
    for module in modules:
        module.fused = True


def cannot_build(modules: Sequence[Fusible]) -> str | None:
    """Build the kernels of these modules; the reason why that failed, or None."""
    chosen_isa()  # a typo there is an error, not a reason to go on without kernels
    try:
        for module in modules:
            module.kernel(module.sizes)
    except Exception as error:  # a compiler can fail in as many ways as there are compilers
        lines = (str(error).strip() or type(error).__name__).splitlines()
        return next((line for line in lines if "error:" in line), lines[0])
    return None


F = TypeVar("F", bound=Callable[..., Any])


def in_float32(forward: F) -> F:
    """A decorator of ``Function.forward``: autocast is off inside, and floating-point inputs are float32."""
    return cast(F, torch.amp.custom_fwd(forward, device_type="cpu", cast_inputs=torch.float32))


def first_order(backward: F) -> F:
    """A decorator of ``Function.backward``: autocast is off inside, and there are no second derivatives."""
    once: Any = once_differentiable
    return cast(F, torch.amp.custom_bwd(once(backward), device_type="cpu"))


def _as_pixels(pixels: torch.Tensor, sizes: KernelSizes) -> torch.Tensor:
    """Images (N, C, H, W) as a kernel reads them: bytes or float32, contiguous, of the size that it was built for."""
    height, width, channels, *_ = sizes
    if pixels.shape[1:] != (channels, height, width):
        raise ValueError(f"built for images of {(channels, height, width)}, got {tuple(pixels.shape[1:])}")
    return (pixels if pixels.dtype == torch.uint8 else pixels.float()).contiguous()


def _split(gradients: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Flat gradients (threads, numbers), summed over threads, as one tensor for every shape."""
    parts = torch.split(gradients.sum(0), [math.prod(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes)]


class Encode(torch.autograd.Function):
    """Tokens (N, T) of images (N, C, H, W), bytes or floats up to 255: stages of convolution, layer norm and SiLU.

    ``parameters`` are each stage's weight, gain and bias, from fine to coarse.
    """

    @staticmethod
    @in_float32
    def forward(
        ctx: Any, pixels: torch.Tensor, sizes: KernelSizes, eps: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
        library, pixels = convolutions(sizes), _as_pixels(pixels, sizes)
        flat = border.flat("encode", parameters, border.encoder_parameters(sizes))
        n, threads = len(pixels), torch.get_num_threads()
        z, scales, tokens = (flat.new_empty(n, library.axes[name]) for name in ("z", "scales", "tokens"))
        library.call(
            "encode", pixels=pixels, parameters=flat, eps=eps, z=z, scales=scales, tokens=tokens, n=n, threads=threads
        )
        ctx.save_for_backward(pixels, flat, z, scales)
        ctx.sizes = sizes
        return tokens

    @staticmethod
    @first_order
    def backward(ctx: Any, tokens_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pixels, flat, z, scales = ctx.saved_tensors
        threads = torch.get_num_threads()
        gradient = flat.new_empty(threads, len(flat))
        convolutions(ctx.sizes).call(
            "encode_backward", pixels=pixels, parameters=flat, z=z, scales=scales,
            tokens_gradient=tokens_gradient.contiguous(), parameters_gradient=gradient, n=len(pixels), threads=threads,
        )  # fmt: skip
        return None, None, None, *_split(gradient, border.encoder_parameters(ctx.sizes))


class DecoderLoss(torch.autograd.Function):
    """Squared error, summed over pixels, averaged over images (N, C, H, W), of their reconstruction from inputs (N, T).

    The backward pass of every image follows its forward pass directly, so that no activations are saved.
    ``parameters``: weight and bias of the last convolution, and each earlier stage's weight, gain and bias, from fine
    to coarse.
    """

    @staticmethod
    @in_float32
    def forward(
        ctx: Any, inputs: torch.Tensor, pixels: torch.Tensor, sizes: KernelSizes, eps: float, *parameters: torch.Tensor
    ) -> torch.Tensor:
        library, pixels, shapes = convolutions(sizes), _as_pixels(pixels, sizes), border.decoder_parameters(sizes)
        flat, n, threads = border.flat("decoder_loss", parameters, shapes), len(pixels), torch.get_num_threads()
        errors, inputs_gradient = flat.new_empty(n), flat.new_empty(inputs.shape)
        gradient = flat.new_empty(threads, len(flat))
        library.call(
            "decoder_loss", inputs=inputs.contiguous(), pixels=pixels, parameters=flat, eps=eps, weight=1 / n,
            errors=errors, inputs_gradient=inputs_gradient, parameters_gradient=gradient, n=n, threads=threads,
        )  # fmt: skip
        ctx.save_for_backward(inputs_gradient, *_split(gradient, shapes))
        return errors.mean()

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, *parameters = (gradient * saved for saved in ctx.saved_tensors)
        return inputs, None, None, None, *parameters


class Observe(torch.autograd.Function):
    """The RSSM's posterior pass over sequences (T, B, ...): deterministic states, one-hot latents, their probabilities.

    Inputs are the initial state, embedded actions and the encoder's part of the posterior's hidden layer; state and
    latents count where ``keep`` is not zero. A latent is the class whose probability times ``exp_noise`` is largest.
    ``parameters``: weights of the linear layers from state, from latents, from state to the posterior, and to its
    logits, the latter's bias; weights and biases of the two block layers; gains and biases of the norms of state,
    latents, inner and posterior's hidden layer.
    """

    @staticmethod
    @in_float32
    def forward(
        ctx: Any, sizes: KernelSizes, eps: float, uniform: float,
        keep: torch.Tensor, exp_noise: torch.Tensor, deter: torch.Tensor, stoch: torch.Tensor,
        embedded: torch.Tensor, encoded: torch.Tensor, *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        library, (steps, n) = recurrence(sizes), keep.shape[:2]
        flat = border.flat("observe", parameters, border.recurrence_parameters(sizes))
        keep, deter, stoch = keep.contiguous(), deter.contiguous(), stoch.contiguous()
        axes = ("activations", "deter", "stoch")
        activations, deters, stochs = (flat.new_empty(steps, n, library.axes[axis]) for axis in axes)
        library.call(
            "observe", parameters=flat, eps=eps, uniform=uniform, keep=keep, deter=deter, stoch=stoch,
            embedded=embedded.contiguous(), encoded=encoded.contiguous(), exp_noise=exp_noise.contiguous(),
            activations=activations, deters=deters, stochs=stochs, steps=steps, n=n, threads=torch.get_num_threads(),
        )  # fmt: skip
        ctx.save_for_backward(flat, keep, deter, stoch, deters, stochs, activations)
        ctx.sizes, ctx.uniform = sizes, uniform
        return deters, stochs, _activations(activations, sizes)[3]

    @staticmethod
    @first_order
    def backward(
        ctx: Any, deters_gradient: torch.Tensor, stochs_gradient: torch.Tensor, probs_gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        flat, keep, deter, stoch, deters, stochs, activations = ctx.saved_tensors
        library, threads, (steps, n) = recurrence(ctx.sizes), torch.get_num_threads(), keep.shape[:2]
        probs_gradient = probs_gradient + (1 - ctx.uniform) * stochs_gradient  # straight-through
        gradients = flat.new_empty(steps, n, library.axes["activation_gradients"])
        norms_gradient = flat.new_empty(threads, library.axes["norms"])
        deter_gradient, stoch_gradient = flat.new_empty(deter.shape), flat.new_empty(stoch.shape)
        library.call(
            "observe_backward", parameters=flat, uniform=ctx.uniform, keep=keep,
            deters_gradient=deters_gradient.contiguous(), probs_gradient=probs_gradient.contiguous(),
            activations=activations, activation_gradients=gradients, deter_gradient=deter_gradient,
            stoch_gradient=stoch_gradient, norms_gradient=norms_gradient, steps=steps, n=n, threads=threads,
        )  # fmt: skip

        # gradients of the weights: products over all steps at once
        of_deter, of_stoch, hidden, logits, inner, gates, embedded = _activation_gradients(gradients, ctx.sizes)
        inner_in, inner_out, hidden_out, _ = _activations(activations, ctx.sizes)
        before = [torch.cat([first[None], rest[:-1]]) * keep for first, rest in ((deter, deters), (stoch, stochs))]
        linear = zip((of_deter, of_stoch, hidden, logits), (*before, deters, hidden_out))
        weights = [y.flatten(0, 1).t() @ x.flatten(0, 1) for y, x in linear] + [logits.sum((0, 1))]
        for x, y in ((inner_in, inner), (inner_out, gates)):
            x, y = (rows.reshape(steps * n, ctx.sizes[0], -1).transpose(0, 1) for rows in (x, y))
            weights += [torch.bmm(x.transpose(1, 2), y), y.sum(1, keepdim=True)]
        weights += _split(norms_gradient, border.recurrence_parameters(ctx.sizes)[len(weights) :])
        return *[None] * 5, deter_gradient, stoch_gradient, embedded, hidden, *weights


def _activations(rows: torch.Tensor, sizes: KernelSizes) -> tuple[torch.Tensor, ...]:
    """Saved activations: inputs and outputs of the inner layer, posterior's hidden layer, probabilities of latents."""
    blocks, deter, hidden, embed, latents, classes = sizes
    widths = [deter + blocks * (2 * hidden + embed), deter, hidden, latents * classes]
    return torch.split(rows[..., : sum(widths)], widths, -1)


def _activation_gradients(rows: torch.Tensor, sizes: KernelSizes) -> tuple[torch.Tensor, ...]:
    """Gradients of the outputs of every product, and of the embedded action."""
    _, deter, hidden, embed, latents, classes = sizes
    return torch.split(rows, [hidden, hidden, hidden, latents * classes, deter, 3 * deter, embed], -1)


encode: Callable[..., torch.Tensor] = Encode.apply
decoder_loss: Callable[..., torch.Tensor] = DecoderLoss.apply
observe: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = Observe.apply
