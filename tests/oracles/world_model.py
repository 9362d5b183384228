"""DreamerV3's world model (Hafner et al., 2023, arXiv:2301.04104) once more: every layer written out, by the names of the weights."""

from __future__ import annotations

import bisect
import math
from itertools import product

import numpy as np
import torch
from torch.distributions import Categorical
from torch.nn import functional as F

BINS = [math.copysign(math.expm1(abs(x)), x) for x in np.linspace(-20, 20, 255)]
Weights = dict[str, torch.Tensor]


def normalised(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """Layer normalisation over the last axis, then SiLU."""
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-3).sqrt()
    x = x * w[f"{name}.weight"] + w[f"{name}.bias"]
    return x * x.sigmoid()


def layer(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return normalised(w, f"{name}.1", x @ w[f"{name}.0.weight"].T)


def head(w: Weights, name: str, layers: int, x: torch.Tensor) -> torch.Tensor:
    for i in range(layers):
        x = layer(w, f"{name}.{i}", x)
    return x @ w[f"{name}.{layers}.weight"].T + w[f"{name}.{layers}.bias"]


def mixed(logits: torch.Tensor) -> Categorical:
    """A categorical with 1 % of the uniform one in it."""
    return Categorical(probs=0.99 * logits.softmax(-1) + 0.01 / logits.shape[-1])


def two_hot(x: torch.Tensor) -> torch.Tensor:
    """Numbers (...) as weights (..., 255) of the two bins around each."""
    code = torch.zeros(*x.shape, len(BINS))
    for place in product(*map(range, x.shape)):
        value = min(max(float(x[place]), BINS[0]), BINS[-1])
        k = min(bisect.bisect_right(BINS, value) - 1, len(BINS) - 2)
        code[(*place, k + 1)] = (value - BINS[k]) / (BINS[k + 1] - BINS[k])
        code[(*place, k)] = 1 - code[(*place, k + 1)]
    return code


def cross_entropy(logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -(two_hot(x.detach()) * logits.log_softmax(-1)).sum(-1)


def expected(logits: torch.Tensor) -> torch.Tensor:
    return (logits.softmax(-1) * torch.tensor(BINS)).sum(-1)


def symlog(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, -(1 - x.clamp(max=0)).log(), (1 + x.clamp(min=0)).log())


class WorldModelNetworks:
    """The networks of a world model whose weights are ``w``: encoder, decoder and RSSM with ``latents`` categoricals and a state in
    ``blocks``."""

    w: Weights
    blocks: int
    latents: int

    def encode(self, target: torch.Tensor) -> torch.Tensor:
        if "encoder.stages.0.0.weight" in self.w:
            for i in range(3):
                target = layer(self.w, f"encoder.stages.{i}", target)
            return target
        x = target / 255 - 0.5
        for i in range(4):
            x = F.conv2d(x, self.w[f"encoder.stages.{2 * i}.weight"], stride=2, padding=1)
            x = normalised(self.w, f"encoder.stages.{2 * i + 1}", x.movedim(1, -1)).movedim(-1, 1)
        return x.movedim(1, -1).flatten(1)

    def reconstruction_error(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if "decoder.first.0.weight" not in self.w:
            return (head(self.w, "decoder.net", 3, features) - target).square().sum(-1)
        x = layer(self.w, "decoder.first", features)
        sides = [side // 16 for side in target.shape[-2:]]
        x = x.view(len(x), *sides, -1).movedim(-1, 1)
        for i in range(3):
            x = F.conv_transpose2d(x, self.w[f"decoder.stages.{2 * i}.weight"], stride=2, padding=1)
            x = normalised(self.w, f"decoder.stages.{2 * i + 1}", x.movedim(1, -1)).movedim(-1, 1)
        x = F.conv_transpose2d(x, self.w["decoder.last.weight"], self.w["decoder.last.bias"], stride=2, padding=1)
        return (x - target / 255).square().sum((1, 2, 3))

    def recur(self, h: torch.Tensor, z: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """A GRU whose state is cut into blocks, each of which sees all of the latents and the action."""
        w, width = self.w, h.shape[1] // self.blocks
        parts = (("of_deter", h), ("of_stoch", z), ("of_action", action / action.abs().clamp(min=1)))
        seen = torch.cat([layer(w, f"rssm.{name}", x) for name, x in parts], -1)
        x = [torch.cat([part, seen], -1) for part in h.split(width, -1)]
        x = [x[b] @ w["rssm.inner.weight"][b] + w["rssm.inner.bias"][b] for b in range(self.blocks)]
        x = normalised(w, "rssm.inner_norm", torch.cat(x, -1)).split(width, -1)
        new = []
        for b, old in enumerate(h.split(width, -1)):
            reset, candidate, update = (x[b] @ w["rssm.gates.weight"][b] + w["rssm.gates.bias"][b]).split(width, -1)
            update = (update - 1).sigmoid()
            new.append(update * (reset.sigmoid() * candidate).tanh() + (1 - update) * old)
        return torch.cat(new, -1)

    def posterior(self, h: torch.Tensor, tokens: torch.Tensor) -> Categorical:
        x = h @ self.w["rssm.of_known.weight"].T + tokens @ self.w["rssm.of_tokens.weight"].T
        x = normalised(self.w, "rssm.posterior_net.0", x)
        return mixed(head(self.w, "rssm.posterior_net.2", 0, x).view(len(h), self.latents, -1))

    def prior(self, h: torch.Tensor) -> Categorical:
        return mixed(head(self.w, "rssm.prior_net", 2, h).view(len(h), self.latents, -1))

    @staticmethod
    def latent(q: Categorical, gumbel: torch.Tensor) -> torch.Tensor:
        """One-hot, with the gradient of the probabilities (straight-through)."""
        probs = q.probs
        one_hot = F.one_hot((probs.log() + gumbel).argmax(-1), probs.shape[-1])
        return (one_hot + probs - probs.detach()).flatten(1)

    def gumbel(self, *shape: int) -> torch.Tensor:
        return -(-torch.rand(*shape, self.latents, self.w["rssm.prior_net.2.bias"].numel() // self.latents).log()).log()
