"""The recurrent state-space model of DreamerV3 (Hafner et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.kernels import Fusible, Observe, recurrence
from rl_training.models.mlp import Linear

EPS = 1e-3  # of every norm
UNIMIX = 0.01  # share of the uniform distribution in every categorical


@dataclass(frozen=True)
class Size:
    """How large the networks are. ``latents`` categoricals of ``classes`` each; the recurrent state is in ``blocks``; the stages of
    the convolutions have ``depth`` times ``stages`` channels."""

    deter: int
    hidden: int
    latents: int
    classes: int
    units: int
    depth: int
    blocks: int = 8
    embed: int | None = None  # width of an embedded action; None: hidden
    stages: tuple[int, ...] = (1, 2, 4, 8)


def layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs, bias=False), nn.LayerNorm(outputs, EPS), nn.SiLU())


def head(inputs: int, units: int, layers: int, outputs: int, scale: float = 1.0) -> nn.Sequential:
    """``layers`` hidden layers and an output layer whose weights are scaled."""
    hidden = [layer(inputs if i == 0 else units, units) for i in range(layers)]
    last = Linear(units, outputs)
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(0)
    return nn.Sequential(*hidden, last)


class BlockLinear(nn.Module):
    """A linear layer of ``blocks`` that do not see each other: (B, blocks, in) -> (B, blocks, out)."""

    def __init__(self, blocks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.weight) == 1:
            # squeezed, not indexed: the way back of an index fills a whole weight with zeros, at every step of a sequence
            return torch.addmm(self.bias.squeeze(0), x.squeeze(1), self.weight.squeeze(0)).unsqueeze(1)
        return torch.baddbmm(self.bias, x.transpose(0, 1), self.weight).transpose(0, 1)


class State(NamedTuple):
    """``deter`` (B, D) and ``stoch`` (B, latents x classes), one-hot in each latent."""

    deter: torch.Tensor
    stoch: torch.Tensor


def unimixed(chances: torch.Tensor) -> torch.Tensor:
    """Chances (..., classes) with a little of the uniform distribution."""
    return (1 - UNIMIX) * chances + UNIMIX / chances.shape[-1]


class RSSM(Fusible, nn.Module):
    """A recurrent state, and categorical latents that are predicted from it alone or told by an observation too."""

    kernel = staticmethod(recurrence)

    def __init__(self, size: Size, action_dim: int, tokens: int) -> None:
        super().__init__()
        self.size, self.flat = size, size.latents * size.classes
        self.of_deter, self.of_stoch = layer(size.deter, size.hidden), layer(self.flat, size.hidden)
        embed = size.embed or size.hidden
        self.sizes = (size.blocks, size.deter, size.hidden, embed, size.latents, size.classes)
        self.of_action = layer(action_dim, embed)
        width = size.deter // size.blocks
        self.inner = BlockLinear(size.blocks, width + 2 * size.hidden + embed, width)
        self.inner_norm = nn.LayerNorm(size.deter, EPS)
        self.gates = BlockLinear(size.blocks, width, 3 * width)
        self.prior_net = head(size.deter, size.hidden, 2, self.flat)
        # the first layer of the posterior is in two: what an observation tells is known before the recurrence
        self.of_known, self.of_tokens = (nn.Linear(width, size.hidden, bias=False) for width in (size.deter, tokens))
        self.posterior_net = nn.Sequential(
            nn.LayerNorm(size.hidden, EPS), nn.SiLU(), head(size.hidden, size.hidden, 0, self.flat)
        )
        bound = 1 / math.sqrt(size.deter + tokens)
        for share in (self.of_known, self.of_tokens):
            nn.init.uniform_(share.weight, -bound, bound)

    def initial(self, n: int) -> State:
        some = self.inner.weight
        return State(some.new_zeros(n, self.size.deter), some.new_zeros(n, self.flat))

    def embed(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions (..., A), never larger than one, to what the recurrence takes of them."""
        return self.of_action(actions / actions.abs().clamp(min=1))

    def recur(self, state: State, action: torch.Tensor) -> torch.Tensor:
        """The next deterministic state, from a state and an embedded action."""
        size, n = self.size, action.shape[0]
        width = size.deter // size.blocks
        mixed = torch.cat([self.of_deter(state.deter), self.of_stoch(state.stoch), action], -1)
        x = torch.cat([state.deter.view(n, size.blocks, width), mixed[:, None].expand(-1, size.blocks, -1)], -1)
        x = F.silu(self.inner_norm(self.inner(x).reshape(n, size.deter)))
        reset, candidate, update = self.gates(x.view(n, size.blocks, width)).chunk(3, -1)
        candidate = (reset.sigmoid() * candidate).tanh().reshape(n, size.deter)
        update = (update - 1).sigmoid().reshape(n, size.deter)
        return update * candidate + (1 - update) * state.deter

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (..., latents, classes), with a little of the uniform distribution."""
        return unimixed(logits.view(*logits.shape[:-1], self.size.latents, self.size.classes).softmax(-1)).log()

    def prior(self, deter: torch.Tensor) -> torch.Tensor:
        return self.logprobs(self.prior_net(deter))

    def posterior(self, deter: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        """From a state and what an observation tells of it, ``of_tokens``."""
        return self.logprobs(self.posterior_net(self.of_known(deter) + told))

    @staticmethod
    def draw(logp: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """One-hot latents, flat: the largest of log-probability and Gumbel noise (None: the likeliest); the gradient is that of the
        probabilities."""
        best = (logp if noise is None else logp + noise).argmax(-1)
        hot = F.one_hot(best, logp.shape[-1]).to(logp.dtype)
        p = logp.exp()
        return (hot + p - p.detach()).flatten(-2)

    def noise(self, *shape: int) -> torch.Tensor:
        """Gumbel noise (..., latents, classes)."""
        uniform = torch.rand(*shape, self.size.latents, self.size.classes, device=self.inner.weight.device)
        return -(-uniform.clamp(1e-20).log()).clamp(min=1e-20).log()

    def observe(
        self, tokens: torch.Tensor, actions: torch.Tensor, starts: torch.Tensor, state: State, noise: torch.Tensor
    ) -> tuple[State, torch.Tensor]:
        """States (T, B, ...) and posteriors (T, B, latents, classes) of sequences: tokens (T, B, E), the actions (T, B, A) taken
        *before* each observation, and where episodes start, which forgets state and action."""
        keep = (1 - starts.to(tokens.dtype))[..., None]
        embedded, told = self.embed(actions * keep), self.of_tokens(tokens)
        if self.learns_fused:
            return self._observe_fused(embedded, told, keep, state, noise)
        deters, stochs, logps = [], [], []
        deter, stoch = state
        for kept, action, hint, chance in zip(*(x.unbind() for x in (keep, embedded, told, noise))):
            deter = self.recur(State(deter * kept, stoch * kept), action)
            logp = self.posterior(deter, hint)
            stoch = self.draw(logp, chance)
            deters.append(deter)
            stochs.append(stoch)
            logps.append(logp)
        return State(torch.stack(deters), torch.stack(stochs)), torch.stack(logps)

    def _observe_fused(
        self, embedded: torch.Tensor, told: torch.Tensor, keep: torch.Tensor, state: State, noise: torch.Tensor
    ) -> tuple[State, torch.Tensor]:
        last: Any = self.posterior_net[-1]
        linears: list[Any] = [self.of_deter[0], self.of_stoch[0], self.of_known, last[0]]
        norms: list[Any] = [self.of_deter[1], self.of_stoch[1], self.inner_norm, self.posterior_net[0]]
        parameters = [part.weight for part in linears] + [linears[-1].bias]
        parameters += [x for part in (self.inner, self.gates, *norms) for x in (part.weight, part.bias)]
        inputs = keep, noise.exp(), *state, embedded, told
        deters, stochs, chances = Observe.apply(self.sizes, EPS, UNIMIX, *inputs, *parameters)
        return State(deters, stochs), unimixed(chances.unflatten(-1, noise.shape[-2:])).log()


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of log-probabilities (..., latents, classes), summed over latents."""
    return (p.exp() * (p - q)).sum((-2, -1))
