"""The recurrent state-space model (RSSM) of DreamerV3 (Hafner et al., 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.kernels import Fusible, observe, recurrence
from rl_training.models.mlp import Linear

__all__ = ["EPS", "RSSM", "UNIMIX", "Size", "State", "TensorModule", "head", "kl_divergence", "layer", "unimixed"]

EPS = 1e-3  # of every layer norm
UNIMIX = 0.01  # share of the uniform distribution in every categorical


@dataclass(frozen=True)
class Size:
    """Widths of the networks: ``latents`` categoricals of ``classes`` each, a recurrent state in ``blocks``, and
    convolutions whose stages have ``depth`` times ``stages`` channels."""

    deter: int
    hidden: int
    latents: int
    classes: int
    units: int
    depth: int
    blocks: int = 8
    embed: int | None = None  # width of an embedded action; None: hidden
    stages: tuple[int, ...] = (1, 2, 4, 8)


class TensorModule(nn.Module):
    """A module that maps a tensor to a tensor."""

    if TYPE_CHECKING:

        def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Layers(TensorModule, nn.Sequential):
    """Layers, one after the other."""


def layer(inputs: int, outputs: int) -> Layers:
    """Linear layer, layer norm and SiLU."""
    return Layers(nn.Linear(inputs, outputs, bias=False), nn.LayerNorm(outputs, EPS), nn.SiLU())


def head(inputs: int, units: int, layers: int, outputs: int, scale: float = 1.0) -> Layers:
    """``layers`` hidden layers and an output layer whose initial weights are scaled."""
    hidden = [layer(inputs if i == 0 else units, units) for i in range(layers)]
    last = Linear(units, outputs)
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(0)
    return Layers(*hidden, last)


class BlockLinear(TensorModule):
    """A block-diagonal linear layer: (B, blocks, in) -> (B, blocks, out)."""

    def __init__(self, blocks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.weight) == 1:
            # squeezed, not indexed: the backward pass of an index fills a whole weight with zeros, at every step
            return torch.addmm(self.bias.squeeze(0), x.squeeze(1), self.weight.squeeze(0)).unsqueeze(1)
        return torch.baddbmm(self.bias, x.transpose(0, 1), self.weight).transpose(0, 1)


class State(NamedTuple):
    """The model state: deterministic h, ``deter`` (B, D), and latents z, ``stoch`` (B, latents x classes), one-hot."""

    deter: torch.Tensor
    stoch: torch.Tensor

    @property
    def features(self) -> torch.Tensor:
        """Both parts side by side, the input of decoder, heads, actor and critic."""
        return torch.cat([self.deter, self.stoch], -1)


def unimixed(probs: torch.Tensor) -> torch.Tensor:
    """Probabilities (..., classes) mixed with 1 % of the uniform distribution."""
    return (1 - UNIMIX) * probs + UNIMIX / probs.shape[-1]


class RSSM(Fusible, nn.Module):
    """A recurrent state h and categorical latents z, with prior p(z given h) and posterior q(z given h, x)."""

    # by the kernel
    REPLACED = ("recur", "posterior", "logprobs", "sample")
    LAYERS = (Layers, nn.Linear, Linear, nn.LayerNorm, nn.SiLU, BlockLinear)
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
        # the posterior's first layer, split by its inputs h and x: the part for x needs no recurrence
        self.of_known, self.of_tokens = (nn.Linear(width, size.hidden, bias=False) for width in (size.deter, tokens))
        self.posterior_net = Layers(
            nn.LayerNorm(size.hidden, EPS), nn.SiLU(), head(size.hidden, size.hidden, 0, self.flat)
        )
        bound = 1 / math.sqrt(size.deter + tokens)
        for part in (self.of_known, self.of_tokens):
            nn.init.uniform_(part.weight, -bound, bound)

    def initial(self, n: int) -> State:
        """States of zeros, as at the start of an episode."""
        weight = self.inner.weight
        return State(weight.new_zeros(n, self.size.deter), weight.new_zeros(n, self.flat))

    def embed(self, actions: torch.Tensor) -> torch.Tensor:
        """Embedded actions, the recurrence's input, of actions (..., A), which are scaled down to at most one."""
        return self.of_action(actions / actions.abs().clamp(min=1))

    def recur(self, state: State, action: torch.Tensor) -> torch.Tensor:
        """The next deterministic state, from a state and an embedded action: a GRU in blocks."""
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
        """Log-probabilities (..., latents, classes), mixed with 1 % of the uniform distribution."""
        return unimixed(logits.view(*logits.shape[:-1], self.size.latents, self.size.classes).softmax(-1)).log()

    def prior(self, deter: torch.Tensor) -> torch.Tensor:
        """log p(z given h), (..., latents, classes)."""
        return self.logprobs(self.prior_net(deter))

    def posterior(self, deter: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        """log q(z given h, x), (..., latents, classes); ``encoded`` is ``of_tokens`` of the encoder's output for x."""
        return self.logprobs(self.posterior_net(self.of_known(deter) + encoded))

    @staticmethod
    def sample(logp: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """One-hot latents (..., latents x classes) with straight-through gradients, by the Gumbel-max trick.

        Without noise, the most probable classes.
        """
        best = (logp if noise is None else logp + noise.to(logp)).argmax(-1)
        one_hot = F.one_hot(best, logp.shape[-1]).to(logp.dtype)
        probs = logp.exp()
        return (one_hot + probs - probs.detach()).flatten(-2)

    def noise(self, *shape: int) -> torch.Tensor:
        """Gumbel noise (..., latents, classes)."""
        uniform = torch.rand(*shape, self.size.latents, self.size.classes, device=self.inner.weight.device)
        return -(-uniform.clamp(1e-20).log()).clamp(min=1e-20).log()

    def imagine(self, state: State, action: torch.Tensor) -> State:
        """The state after an action (B, A), with latents from the prior."""
        deter = self.recur(state, self.embed(action))
        return State(deter, self.sample(self.prior(deter), self.noise(len(deter))))

    def observe(
        self, tokens: torch.Tensor, actions: torch.Tensor, starts: torch.Tensor, state: State, noise: torch.Tensor
    ) -> tuple[State, torch.Tensor]:
        """States (T, B, ...) and log-posteriors (T, B, latents, classes) of sequences.

        ``tokens`` (T, B, E) are the encoder's outputs, ``actions`` (T, B, A) those taken *before* each observation.
        Where ``starts`` (T, B) marks the start of an episode, state and action are reset to zero.
        """
        keep = (1 - starts.to(tokens.dtype))[..., None]
        embedded, encoded = self.embed(actions * keep), self.of_tokens(tokens)
        if self.learns_fused:
            return self._observe_fused(embedded, encoded, keep, state, noise)
        states, logps = [], []
        for kept, action, x, gumbel in zip(*(parts.unbind() for parts in (keep, embedded, encoded, noise))):
            deter = self.recur(State(state.deter * kept, state.stoch * kept), action)
            logps.append(self.posterior(deter, x))
            state = State(deter, self.sample(logps[-1], gumbel))
            states.append(state)
        deters, stochs = (torch.stack(parts) for parts in zip(*states))
        return State(deters, stochs), torch.stack(logps)

    def _observe_fused(
        self, embedded: torch.Tensor, encoded: torch.Tensor, keep: torch.Tensor, state: State, noise: torch.Tensor
    ) -> tuple[State, torch.Tensor]:
        last: Any = self.posterior_net[-1]
        linears: list[Any] = [self.of_deter[0], self.of_stoch[0], self.of_known, last[0]]
        norms: list[Any] = [self.of_deter[1], self.of_stoch[1], self.inner_norm, self.posterior_net[0]]
        parameters = [part.weight for part in linears] + [linears[-1].bias]
        parameters += [x for part in (self.inner, self.gates, *norms) for x in (part.weight, part.bias)]
        inputs = keep, noise.exp(), *state, embedded, encoded
        deters, stochs, probs = observe(self.sizes, EPS, UNIMIX, *inputs, *parameters)
        return State(deters, stochs), unimixed(probs.view(noise.shape)).log()


def kl_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of log-probabilities (..., latents, classes), summed over latents."""
    return (p.exp() * (p - q)).sum((-2, -1))
