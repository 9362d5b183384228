"""How far apart two float32 computations of one thing may lie, from an analysis of their errors and from no machine.

A sum of products in float32 is off by at most n eps sum|terms|, and typically by less than eps sum|terms|, whatever the order of the
terms and the width of the vectors; an elementwise function is off by a few eps of its value. What such errors grow to on their way through
a network, forward and backward, depends on the network: a layer normalisation over two channels, say, has a gradient that cancels almost to
nothing, and leaves mostly errors. So that is computed: in float64, every product and every step of a normalisation gets an error of
random sign and of that size, in what comes out and in its gradients, and the spread of the results is the scale of the tolerance.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.dreamer import ImageNorm
from rl_training.models.rssm import BlockLinear

EPS = torch.finfo(torch.float32).eps
DRAWS = 4  # of errors, of which the largest result counts
SAFETY = 8.0  # a difference of this many times it is a mistake; mistakes worth the name are a thousand times as large
PRODUCTS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, BlockLinear)
Run = Callable[[Any], list[torch.Tensor]]


class Rounded(torch.autograd.Function):
    """``function`` of tensors with errors of eps times the sum of the absolute values of its terms, which is ``function`` of absolute
    values where ``products``, and else the value itself; the same for its gradients."""

    @staticmethod
    def forward(ctx: Any, function: Any, products: bool, generator: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.function, ctx.products, ctx.generator = function, products, generator
        value = function(*tensors)
        return _erring(value, function(*(x.abs() for x in tensors)) if products else value, generator)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        def gradients(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
            leaves = [change(x.detach()).requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(ctx.function(*leaves), leaves, change(grad))

        exact = gradients(torch.clone)
        sizes = gradients(torch.abs) if ctx.products else exact
        return None, None, None, *(_erring(x, size, ctx.generator) for x, size in zip(exact, sizes))


def _erring(x: torch.Tensor, size: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + EPS * size.abs() * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def rounding(module: nn.Module, seed: int) -> nn.Module:
    """A copy of a module in float64 that errs as float32 does."""
    module, generator = copy.deepcopy(module).double(), torch.Generator().manual_seed(seed)

    def rounded(function: Any, *tensors: torch.Tensor, products: bool = False) -> torch.Tensor:
        return Rounded.apply(function, products, generator, *tensors)

    def product(part: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        names, plain = [name for name, _ in part.named_parameters()], type(part).forward

        def function(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(stand_in, dict(zip(names, parameters)), (x,))

        stand_in = copy.deepcopy(part)
        assert type(stand_in).forward is plain
        return lambda x: rounded(function, x, *part.parameters(), products=True)

    def normalised(part: nn.LayerNorm) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            mean = rounded(lambda x: x.mean(-1, keepdim=True), x, products=True)
            d = rounded(lambda x, mean: x - mean, x, mean)
            scale = rounded(lambda d: (d.square().mean(-1, keepdim=True) + part.eps).rsqrt(), d)
            z = rounded(torch.mul, d, scale)
            return rounded(lambda z, a, b: z * a + b, z, part.weight, part.bias, products=True)

        if not isinstance(part, ImageNorm):
            return forward
        return lambda x: rounded(F.silu, forward(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)

    for part in list(module.modules()):
        if isinstance(part, PRODUCTS):
            part.forward = product(part)  # type: ignore[method-assign]
        elif isinstance(part, nn.LayerNorm):
            part.forward = normalised(part)  # type: ignore[method-assign]
    return module


def exact_and_tolerances(run: Run, module: Any, terms: int = 1) -> tuple[list[torch.Tensor], list[float]]:
    """What ``run`` makes of a module in float64, and how far from it float32 may be, for the largest number in each.

    A result without axes is a loss: a sum, outside of all modules, of so many ``terms`` of one sign, which errs by about
    sqrt(terms) eps of itself, if it is taken term by term.
    """
    exact = run(copy.deepcopy(module).double())
    draws = [run(rounding(module, seed)) for seed in range(DRAWS)]
    spreads = [max((one - x).abs().max().item() for one in each) for x, *each in zip(exact, *draws)]
    sums = [EPS * x.abs().max().item() * (terms**0.5 if x.ndim == 0 else 1) for x in exact]
    return exact, [SAFETY * (spread + own) for spread, own in zip(spreads, sums)]


def errors(results: list[torch.Tensor], exact: list[torch.Tensor], tolerances: list[float]) -> list[float]:
    """The largest error of each result, in tolerances: above one is a mistake."""
    return [(x.double() - y).abs().max().item() / most for x, y, most in zip(results, exact, tolerances, strict=True)]
