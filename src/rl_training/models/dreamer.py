"""The networks of DreamerV3 (Hafner et al., 2023): encoder, recurrent state-space model, decoder, and heads that predict in bins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.mlp import Linear
from rl_training.models.pictures import Encode, PaintingError

EPS = 1e-3  # of every norm
UNIMIX = 0.01  # share of the uniform distribution in every categorical
STRIDES = 16  # by which the convolutions shrink a picture
PICTURES = (
    128  # that go through the convolutions at a time: what they leave behind for the next layer is still in the cache
)


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


LATER = (2, 3, 4, 4)  # stages in the later versions of the paper
SIZES = {
    "nano": Size(deter=32, hidden=16, latents=4, classes=4, units=16, depth=2, blocks=1),
    "tiny": Size(deter=256, hidden=128, latents=16, classes=16, units=128, depth=8, blocks=1),
    "small": Size(deter=512, hidden=256, latents=32, classes=16, units=256, depth=16, blocks=1),
    "1m": Size(deter=512, hidden=64, latents=32, classes=4, units=64, depth=4, stages=LATER),
    "12m": Size(deter=2048, hidden=256, latents=32, classes=16, units=256, depth=16, stages=LATER),
}


def symlog(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * x.abs().log1p()


def symexp(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * x.abs().expm1()


class TwoHot(nn.Module):
    """A number as a distribution over bins that are evenly spaced in symlog."""

    bins: torch.Tensor

    def __init__(self, count: int = 255, reach: float = 20.0) -> None:
        super().__init__()
        half = symexp(torch.linspace(-reach, 0, count // 2 + 1, dtype=torch.float64)).float()
        self.register_buffer("bins", torch.cat([half, -half[:-1].flip(0)]))

    def mean(self, logits: torch.Tensor) -> torch.Tensor:
        """(..., bins) -> (...). Summed from both ends to the middle: equal chances on both sides cancel exactly."""
        p, middle = logits.softmax(-1), len(self.bins) // 2
        low, high = p[..., :middle], p[..., middle + 1 :].flip(-1)
        return ((high - low) * -self.bins[:middle]).sum(-1)

    def neighbours(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(...) -> (..., 2): the two bins around x, and weights on them of which x is the mean."""
        x = x.clamp(self.bins[0], self.bins[-1])
        below = (torch.searchsorted(self.bins, x.contiguous(), right=True) - 1).clamp(0, len(self.bins) - 2)
        left, right = self.bins[below], self.bins[below + 1]
        weight = (x - left) / (right - left)
        return torch.stack([below, below + 1], -1), torch.stack([1 - weight, weight], -1)

    def loss(self, logp: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Cross-entropy (...) of log-probabilities (..., bins) to the numbers x (...)."""
        places, weights = self.neighbours(x)
        return -(logp.gather(-1, places) * weights).sum(-1)


class PictureNorm(nn.LayerNorm):
    """Layer normalisation over the channels of pictures (B, C, H, W), and SiLU after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.permute(0, 2, 3, 1)  # as it lies in memory already, channels last
        return F.silu(super().forward(rows)).permute(0, 3, 1, 2)


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


class RSSM(nn.Module):
    """A recurrent state, and categorical latents that are predicted from it alone or told by an observation too."""

    def __init__(self, size: Size, action_dim: int, tokens: int) -> None:
        super().__init__()
        self.size, self.flat = size, size.latents * size.classes
        self.of_deter, self.of_stoch = layer(size.deter, size.hidden), layer(self.flat, size.hidden)
        embed = size.embed or size.hidden
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
        p = logits.view(*logits.shape[:-1], self.size.latents, self.size.classes).softmax(-1)
        return ((1 - UNIMIX) * p + UNIMIX / self.size.classes).log()

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
        keep = (1 - starts)[..., None]
        embedded, told = self.embed(actions * keep), self.of_tokens(tokens)
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


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of log-probabilities (..., latents, classes), summed over latents."""
    return (p.exp() * (p - q)).sum((-2, -1))


def padded(side: int) -> int:
    """The nearest size, at least 32, that the convolutions can halve four times."""
    return max(2 * STRIDES, round(side / STRIDES) * STRIDES)


UNIT = 1 / 255  # of a pixel


def centred(pixels: torch.Tensor) -> torch.Tensor:
    """A copy of pixels as floats in [-1/2, 1/2], channels last."""
    return pixels.contiguous(memory_format=torch.channels_last).to(torch.float32, copy=True).mul_(UNIT).sub_(0.5)


def learns_fused(module: Any) -> bool:
    """Whether a kernel of our own is to be used: not in acting, which is the same whatever the engine."""
    return module.fused and torch.is_grad_enabled()


class PixelEncoder(nn.Module):
    fused = False  # whether learning goes through ``Encode``

    def __init__(self, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        channels, stages = shape[0], []
        self.sides = (padded(shape[1]), padded(shape[2]))
        self.sizes = (*self.sides, channels, *(multiple * size.depth for multiple in size.stages))
        for multiple in size.stages:
            width = multiple * size.depth
            stages += [nn.Conv2d(channels, width, 4, 2, 1, bias=False), PictureNorm(width, EPS)]
            channels = width
        self.stages = nn.Sequential(*stages)
        self.width = channels * (self.sides[0] // STRIDES) * (self.sides[1] // STRIDES)

    def target(self, obs: torch.Tensor) -> torch.Tensor:
        """Pixels (..., C, H, W), of the size that is learned; bytes stay bytes until a portion is at work."""
        if obs.shape[-2:] == self.sides:
            return obs
        return F.interpolate(obs.flatten(0, -4).float(), self.sides, mode="area").view(*obs.shape[:-2], *self.sides)

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        encode = self._encode_fused if learns_fused(self) else self._encode
        parts = [encode(x) for x in target.flatten(0, -4).split(PICTURES)]
        return torch.cat(parts).view(*target.shape[:-3], self.width)

    def _encode(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.stages(centred(pictures)).permute(0, 2, 3, 1).flatten(1)

    def _encode_fused(self, pictures: torch.Tensor) -> torch.Tensor:
        return Encode.apply(pictures, self.sizes, EPS, *self.stages.parameters())


class PixelDecoder(nn.Module):
    """The last convolution makes pictures in blocks of 2 x 2 pixels, and there they are compared: strided, into three channels, it
    would take longer than all others, and to put the blocks together as long again."""

    places: torch.Tensor
    inside: torch.Tensor
    fused = False  # whether learning goes through ``PaintingError``

    def __init__(self, features: int, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        sides = (padded(shape[1]), padded(shape[2]))
        self.sizes = (*sides, shape[0], *(multiple * size.depth for multiple in size.stages))
        self.sides = (sides[0] // STRIDES, sides[1] // STRIDES)
        self.width = size.stages[-1] * size.depth
        self.first = layer(features, self.width * self.sides[0] * self.sides[1])
        stages: list[nn.Module] = []
        channels = self.width
        for multiple in size.stages[-2::-1]:
            width = multiple * size.depth
            stages += [nn.ConvTranspose2d(channels, width, 4, 2, 1, bias=False), PictureNorm(width, EPS)]
            channels = width
        self.stages = nn.Sequential(*stages)
        self.last = nn.ConvTranspose2d(channels, shape[0], 4, 2, 1)
        assert self.last.bias is not None
        nn.init.constant_(self.last.bias, 0.5)  # grey
        # of every number in the blocks, its place in a picture; there is a rim around it
        numbered = torch.arange(1.0, shape[0] * sides[0] * sides[1] + 1).view(1, shape[0], *sides)
        places = F.pixel_unshuffle(F.pad(numbered, (1, 1, 1, 1)), 2).permute(0, 2, 3, 1).flatten()
        self.register_buffer("places", (places - 1).clamp(min=0).long(), persistent=False)
        self.register_buffer("inside", (places > 0).float(), persistent=False)

    def blocks(self, features: torch.Tensor) -> torch.Tensor:
        """Pictures in blocks (B, 4C, H / 2 + 1, W / 2 + 1), of features (B, F): a strided transposed convolution of 4 x 4 is one
        of 2 x 2 without strides into all four pixels of a block."""
        x = self.stages(self.first(features).view(-1, *self.sides, self.width).permute(0, 3, 1, 2))
        weight = self.last.weight.unflatten(2, (2, 2)).unflatten(4, (2, 2)).flip(2, 4)
        weight = weight.permute(1, 3, 5, 0, 2, 4).flatten(0, 2)
        bias = None if self.last.bias is None else self.last.bias.repeat_interleave(4)
        return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), bias, padding=1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        parts = [F.pixel_shuffle(self.blocks(x), 2) for x in features.flatten(0, -2).split(PICTURES)]
        x = torch.cat(parts)[:, :, 1:-1, 1:-1]
        return x.view(*features.shape[:-1], *x.shape[1:])

    def loss(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Squared error, summed over pixels and averaged over pictures (..., C, H, W), of features (..., F)."""
        if learns_fused(self):
            pairs = zip(self.stages[-2::-2], self.stages[-1::-2])  # of convolution and norm, from fine to coarse
            parameters = [p for pair in ((self.last,), *pairs) for part in pair for p in part.parameters()]
            inputs = self.first(features.flatten(0, -2))
            return PaintingError.apply(inputs, target.flatten(0, -4), self.sizes, EPS, *parameters)
        pictures = target.flatten(0, -4).flatten(1)

        def error(features: torch.Tensor, place: slice) -> torch.Tensor:
            rows = self.blocks(features).permute(0, 2, 3, 1).flatten(1)
            return SquaredError.apply(rows, pictures[place].float().index_select(1, self.places), self.inside)

        return AtOnce.apply(error, PICTURES, features.flatten(0, -2), *self.parameters())


class AtOnce(torch.autograd.Function):
    """The mean of ``loss(rows, place)``, ``size`` rows at a time, ``place`` being the slice they are of, and each with its way back
    at once: what it needs for that is still in the cache then, and none of it is kept. ``shared`` are the parameters of the loss."""

    @staticmethod
    def forward(ctx: Any, loss: Any, size: int, rows: torch.Tensor, *shared: torch.Tensor) -> torch.Tensor:
        mean, sums = rows.new_zeros(()), [torch.zeros_like(x) for x in shared]
        parts: list[torch.Tensor] = []
        for start in range(0, len(rows), size):
            place = slice(start, start + size)
            x = rows.detach()[place].requires_grad_(ctx.needs_input_grad[2])
            with torch.enable_grad():
                part = loss(x, place).sum() / len(rows)
            leaves = (x, *shared) if x.requires_grad else shared
            grads = torch.autograd.grad(part, leaves)
            mean += part.detach()
            parts += grads[: len(leaves) - len(shared)]
            torch._foreach_add_(sums, grads[-len(shared) :])
        ctx.save_for_backward(*([torch.cat(parts)] if parts else []), *sums)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        moved = [grad * x for x in ctx.saved_tensors]
        return None, None, *([] if ctx.needs_input_grad[2] else [None]), *moved


class SquaredError(torch.autograd.Function):
    """Of rows (B, N) to pixels, weighted by 0 or 1 (N,) and summed to (B,): as autograd would have it, in half the passes. The copy of
    the pixels, which becomes the error and then the gradient, is used up."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, pixels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        error = pixels.mul_(-UNIT).add_(rows).mul_(weights)
        ctx.save_for_backward(error)
        return torch.linalg.vecdot(error, error)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (error,) = ctx.saved_tensors
        return error.mul_(2 * grad[:, None]), None, None


class VectorEncoder(nn.Module):
    def __init__(self, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        self.width = size.units
        self.stages = nn.Sequential(
            layer(shape[0], size.units), layer(size.units, size.units), layer(size.units, size.units)
        )

    def target(self, obs: torch.Tensor) -> torch.Tensor:
        return symlog(obs.float())

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return self.stages(target)


class VectorDecoder(nn.Module):
    def __init__(self, features: int, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        self.net = head(features, size.units, 3, shape[0])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def loss(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self(features) - target).square().sum(-1).mean()


class WorldModel(nn.Module):
    """What follows from what: observations in, and out of the state observations, rewards and whether it goes on."""

    def __init__(self, *, obs_shape: tuple[int, ...], action_dim: int, size: Size) -> None:
        super().__init__()
        image = len(obs_shape) == 3
        self.encoder: Any = (PixelEncoder if image else VectorEncoder)(obs_shape, size)
        self.rssm = RSSM(size, action_dim, self.encoder.width)
        self.width = size.deter + self.rssm.flat
        self.decoder: Any = (PixelDecoder if image else VectorDecoder)(self.width, obs_shape, size)
        self.bins = TwoHot()
        self.reward = head(self.width, size.units, 1, len(self.bins.bins), scale=0.0)
        self.goes_on = head(self.width, size.units, 1, 1)

    @staticmethod
    def features(state: State) -> torch.Tensor:
        return torch.cat([state.deter, state.stoch], -1)

    def believe(self, state: State, action: torch.Tensor, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The deterministic state after an action (B, A), and the posterior (B, latents, classes) that the observation tells."""
        deter = self.rssm.recur(state, self.rssm.embed(action))
        return deter, self.rssm.posterior(deter, self.rssm.of_tokens(self.encoder(self.encoder.target(obs))))


class Critic(nn.Module):
    """The value of a state's features, as a distribution over bins."""

    def __init__(self, width: int, size: Size) -> None:
        super().__init__()
        self.bins = TwoHot()
        self.net = head(width, size.units, 3, len(self.bins.bins), scale=0.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        return self.bins.mean(self(features))


class Actor(nn.Module):
    """Outputs (..., size) for an action distribution; a categorical has a little of the uniform one."""

    def __init__(self, width: int, size: Size, outputs: int, categorical: bool) -> None:
        super().__init__()
        self.categorical = categorical
        self.net = head(width, size.units, 3, outputs, scale=0.01)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs = self.net(features)
        if not self.categorical:
            return outputs
        return ((1 - UNIMIX) * outputs.softmax(-1) + UNIMIX / outputs.shape[-1]).log()


class GreedyDreamer(nn.Module):
    """Acting without chance: (obs, carry) to (scores of choices or a box's actions, carry). ``sizes`` are those of a carry's parts:
    deterministic state, latents, last action."""

    def __init__(self, world_model: WorldModel, actor: Actor, head: Any, sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.world_model, self.actor, self.head, self.sizes = world_model, actor, head, sizes

    def _believe(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        deter, stoch, last = carry.split(self.sizes, -1)
        return self.world_model.believe(State(deter, stoch), last, obs)

    def forward(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        deter, logp = self._believe(obs, carry)
        stoch = self.world_model.rssm.draw(logp, None)
        best = self.head.best(self.actor(torch.cat([deter, stoch], -1)))
        choice = self.actor.categorical
        action = F.one_hot(best.argmax(-1), self.sizes[-1]).to(best.dtype) if choice else best
        return best, torch.cat([deter, stoch, action], -1)

    def margin(self, obs: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
        """How far the latents' likeliest classes are from the next ones, (B,)."""
        first, second = self._believe(obs, carry)[1].topk(2).values.unbind(-1)
        return (first - second).amin(-1)
