"""The networks of the value-based family from their weights, layer by layer.

Noisy layers (Fortunato et al., 2018) draw ε_in, then ε_out, when they are passed: from torch's generator, seeded alike,
or fed in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

Weights = dict[str, torch.Tensor]
Noise = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]] | None  # inputs, outputs to ε_in, ε_out; None: none


def torchs(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise of torch's generator."""
    return torch.randn(inputs), torch.randn(outputs)


def signed_root(noise: torch.Tensor) -> torch.Tensor:
    return torch.tensor([x.sign() * x.abs() ** 0.5 for x in noise])


def linear(weights: Weights, name: str, x: torch.Tensor, noisy: Noise) -> torch.Tensor:
    w, b = weights[f"{name}.weight"], weights[f"{name}.bias"]
    if noisy is not None and f"{name}.weight_sigma" in weights:
        e_in, e_out = (signed_root(noise) for noise in noisy(w.shape[1], w.shape[0]))
        w = w + weights[f"{name}.weight_sigma"] * torch.outer(e_out, e_in)
        b = b + weights[f"{name}.bias_sigma"] * e_out
    return x @ w.T + b


def perceptron(weights: Weights, name: str, x: torch.Tensor, *, noisy: Noise, last: bool) -> torch.Tensor:
    """All linear layers under a name, with rectifiers between them, and ``last`` one after them too."""
    places = sorted({int(key[len(name) + 1 :].split(".")[0]) for key in weights if key.startswith(f"{name}.")})
    for place in places:
        x = linear(weights, f"{name}.{place}", x, noisy)
        x = x.clamp(min=0) if last or place != places[-1] else x
    return x


def convolved(weights: Weights, name: str, obs: torch.Tensor) -> torch.Tensor:
    """The three convolutions of Mnih et al. (2015) over pixels in [0, 1]."""
    x = obs.to(torch.float32) / 255
    for place, stride in ((1, 4), (3, 2), (5, 1)):
        x = F.conv2d(x, weights[f"{name}.{place}.weight"], weights[f"{name}.{place}.bias"], stride=stride).clamp(min=0)
    return x.flatten(1)


def head(
    weights: Weights, name: str, x: torch.Tensor, actions: int, *, dueling: bool, noisy: Noise
) -> list[torch.Tensor]:
    """For each action its outputs (..., atoms); dueling (Wang et al., 2016): V + A_a - the mean of A over actions.

    Of noisy layers, those of A draw first.
    """
    if not dueling:
        return list(perceptron(weights, name, x, noisy=noisy, last=False).chunk(actions, -1))
    advantages = perceptron(weights, f"{name}.advantage", x, noisy=noisy, last=False).chunk(actions, -1)
    value = perceptron(weights, f"{name}.value", x, noisy=noisy, last=False)
    return [value + advantage - sum(advantages) / actions for advantage in advantages]


def encoded(weights: Weights, name: str, obs: torch.Tensor, noisy: Noise) -> torch.Tensor:
    return convolved(weights, name, obs) if obs.ndim == 4 else perceptron(weights, name, obs, noisy=noisy, last=True)


def q_values(weights: Weights, obs: torch.Tensor, actions: int, *, dueling: bool, noisy: Noise) -> torch.Tensor:
    """Outputs (B, A, atoms) of the network of DQN and QR-DQN."""
    if obs.ndim == 4 and not dueling:
        x = linear(weights, "body.0.1", convolved(weights, "body.0.0", obs), noisy).clamp(min=0)
    else:
        x = encoded(weights, "body.0", obs, noisy)
    return torch.stack(head(weights, "body.1", x, actions, dueling=dueling, noisy=noisy), 1)


def quantiles(
    weights: Weights, obs: torch.Tensor, taus: torch.Tensor, actions: int, *, dueling: bool, noisy: Noise
) -> torch.Tensor:
    """Quantiles (B, A, N) of IQN and FQF: a head of ψ(s) ⊙ φ(τ), φ_j(τ) = ReLU(Σ_i cos(π i τ) w_ij + b_j), i from 0."""
    features = encoded(weights, "encoder", obs, noisy)
    count = weights["embedding.0.weight"].shape[1]
    cosines = torch.stack([torch.cos(torch.pi * i * taus) for i in range(count)], -1)
    embedded = linear(weights, "embedding.0", cosines, None).clamp(min=0)
    columns = head(weights, "head", features[:, None] * embedded, actions, dueling=dueling, noisy=noisy)
    return torch.cat([column.transpose(1, 2) for column in columns], 1)
