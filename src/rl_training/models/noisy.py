"""Linear layers that explore by noise on their weights (Fortunato et al., 2018)."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["NoisyLinear", "signed_root"]


def signed_root(x: torch.Tensor) -> torch.Tensor:
    """sgn(x) √|x|, the paper's f: it gives the product of two standard normal numbers lighter tails."""
    return x.sign() * x.abs().sqrt()


class NoisyLinear(nn.Module):
    """y = (W + S ∘ f(e_out) f(e_in)ᵀ) x + b + s ∘ f(e_out): factorised noise, drawn anew by every forward pass in
    training mode and absent in evaluation mode. W, b, S and s are learned."""

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight, self.bias)
        if not self.training:
            return y
        noise_in = signed_root(torch.randn(self.weight.shape[1], device=x.device))
        noise_out = signed_root(torch.randn(self.weight.shape[0], device=x.device))
        return y + noise_out * F.linear(x * noise_in, self.weight_sigma, self.bias_sigma)
