"""The networks of DreamerV3 (Hafner et al., 2023): encoder, recurrent state-space model, decoder, and heads that predict in bins."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.kernels import Encode, Fusible, PaintingError, pictures
from rl_training.models.rssm import EPS, RSSM, UNIMIX, Size, State, head, layer

STRIDES = 16  # by which the convolutions shrink a picture
PICTURES = 128  # that go through the convolutions at a time: what they leave behind for the next layer is in the cache
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


def padded(side: int) -> int:
    """The nearest size, at least 32, that the convolutions can halve four times."""
    return max(2 * STRIDES, round(side / STRIDES) * STRIDES)


UNIT = 1 / 255  # of a pixel


def centred(pixels: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A copy of pixels as floats in [-1/2, 1/2], channels last."""
    return pixels.contiguous(memory_format=torch.channels_last).to(dtype, copy=True).mul_(UNIT).sub_(0.5)


class PixelEncoder(Fusible, nn.Module):
    kernel = staticmethod(pictures)

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
        encode = self._encode_fused if self.learns_fused else self._encode
        parts = [encode(x) for x in target.flatten(0, -4).split(PICTURES)]
        return torch.cat(parts).view(*target.shape[:-3], self.width)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.stages(centred(pixels, next(self.parameters()).dtype)).permute(0, 2, 3, 1).flatten(1)

    def _encode_fused(self, pixels: torch.Tensor) -> torch.Tensor:
        return Encode.apply(pixels, self.sizes, EPS, *self.stages.parameters())


class PixelDecoder(Fusible, nn.Module):
    kernel = staticmethod(pictures)

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

    def _decode(self, features: torch.Tensor) -> torch.Tensor:
        x = self.first(features).view(-1, *self.sides, self.width).permute(0, 3, 1, 2)
        return self.last(self.stages(x))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self._decode(x) for x in features.flatten(0, -2).split(PICTURES)])
        return x.view(*features.shape[:-1], *x.shape[1:])

    def loss(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Squared error, summed over pixels and averaged over pictures (..., C, H, W), of features (..., F)."""
        rows, pixels = features.flatten(0, -2), target.flatten(0, -4)
        if self.learns_fused:
            stages = list(self.stages)
            finest_first = [self.last, *(part for i in range(len(stages) - 2, -1, -2) for part in stages[i : i + 2])]
            parameters = [parameter for part in finest_first for parameter in part.parameters()]
            return PaintingError.apply(self.first(rows), pixels, self.sizes, EPS, *parameters)

        def error(features: torch.Tensor, place: slice) -> torch.Tensor:
            return (self._decode(features) - UNIT * pixels[place]).square().sum((-3, -2, -1))

        return AtOnce.apply(error, PICTURES, rows, *self.parameters())


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
