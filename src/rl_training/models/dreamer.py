"""The networks of DreamerV3 (Hafner et al., 2023): world model (encoder, RSSM, decoder, heads), actor and critic."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.heads import BoundedNormal, Categorical
from rl_training.models.kernels import Fusible, convolutions, decoder_loss, encode
from rl_training.models.rssm import EPS, RSSM, Layers, Size, State, TensorModule, head, layer, unimixed

__all__ = [
    "SIZES",
    "Actor",
    "Critic",
    "GreedyDreamer",
    "PixelDecoder",
    "PixelEncoder",
    "TwoHot",
    "VectorDecoder",
    "VectorEncoder",
    "WorldModel",
    "chunked_mean",
    "padded",
    "symexp",
    "symlog",
]

DOWNSCALING = 16  # of the four strided convolutions together
IMAGES = 128  # that go through the convolutions at a time, so that activations stay in the cache
UNIT = 1 / 255  # of a pixel
LATER = (2, 3, 4, 4)  # stages in the later versions of the paper
SIZES = {
    "nano": Size(deter=32, hidden=16, latents=4, classes=4, units=16, depth=2, blocks=1),
    "tiny": Size(deter=256, hidden=128, latents=16, classes=16, units=128, depth=8, blocks=1),
    "small": Size(deter=512, hidden=256, latents=32, classes=16, units=256, depth=16, blocks=1),
    "1m": Size(deter=512, hidden=64, latents=32, classes=4, units=64, depth=4, stages=LATER),
    "12m": Size(deter=2048, hidden=256, latents=32, classes=16, units=256, depth=16, stages=LATER),
}


def symlog(x: torch.Tensor) -> torch.Tensor:
    """sign(x) log(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: torch.Tensor) -> torch.Tensor:
    """The inverse of symlog."""
    return x.sign() * x.abs().expm1()


class TwoHot(nn.Module):
    """Numbers as categorical distributions over bins that are evenly spaced in symlog."""

    bins: torch.Tensor

    def __init__(self, count: int = 255, reach: float = 20.0) -> None:
        super().__init__()
        half = symexp(torch.linspace(-reach, 0, count // 2 + 1, dtype=torch.float64)).float()
        self.register_buffer("bins", torch.cat([half, -half[:-1].flip(0)]))

    def mean(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (..., bins) to means (...), summed from both ends: equal probabilities there cancel exactly."""
        p, middle = logits.softmax(-1), len(self.bins) // 2
        low, high = p[..., :middle], p[..., middle + 1 :].flip(-1)
        return ((high - low) * -self.bins[:middle]).sum(-1)

    def neighbours(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two bins around x (...), and their weights, with x as the mean: each (..., 2)."""
        x = x.clamp(self.bins[0], self.bins[-1])
        below = (torch.searchsorted(self.bins, x.contiguous(), right=True) - 1).clamp(0, len(self.bins) - 2)
        left, right = self.bins[below], self.bins[below + 1]
        weight = (x - left) / (right - left)
        return torch.stack([below, below + 1], -1), torch.stack([1 - weight, weight], -1)

    def loss(self, logp: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Cross-entropy (...) between the two-hot code of x (...) and log-probabilities (..., bins)."""
        bins, weights = self.neighbours(x)
        return -(logp.gather(-1, bins) * weights).sum(-1)


class ImageNorm(nn.LayerNorm):
    """Layer normalisation over the channels of images (B, C, H, W), then SiLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.permute(0, 2, 3, 1)  # a view without gaps: memory is channels last
        return F.silu(super().forward(rows)).permute(0, 3, 1, 2)


def padded(side: int) -> int:
    """The nearest side, at least 32, that the convolutions can halve four times."""
    return max(2 * DOWNSCALING, round(side / DOWNSCALING) * DOWNSCALING)


def centred(pixels: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A copy of pixels as floats in [-1/2, 1/2], channels last."""
    return pixels.contiguous(memory_format=torch.channels_last).to(dtype, copy=True).mul_(UNIT).sub_(0.5)


class PixelEncoder(Fusible, TensorModule):
    """Tokens (..., width) of images (..., C, H, W): four strided convolutions."""

    REPLACED, LAYERS = (), (Layers, nn.Conv2d, ImageNorm)  # by the kernel
    kernel = staticmethod(convolutions)

    def __init__(self, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        channels = shape[0]
        stages: list[nn.Module] = []
        self.sides = (padded(shape[1]), padded(shape[2]))
        self.sizes = (*self.sides, channels, *(multiple * size.depth for multiple in size.stages))
        for multiple in size.stages:
            width = multiple * size.depth
            stages += [nn.Conv2d(channels, width, 4, 2, 1, bias=False), ImageNorm(width, EPS)]
            channels = width
        self.stages = Layers(*stages)
        self.width = channels * (self.sides[0] // DOWNSCALING) * (self.sides[1] // DOWNSCALING)

    def target(self, obs: torch.Tensor) -> torch.Tensor:
        """Images (..., C, H, W) at the size that is reconstructed; bytes stay bytes until they are encoded."""
        if obs.shape[-2:] == self.sides:
            return obs
        return F.interpolate(obs.flatten(0, -4).float(), self.sides, mode="area").view(*obs.shape[:-2], *self.sides)

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        chunks = torch.split(target.flatten(0, -4), IMAGES)
        return torch.cat([self._encode(pixels) for pixels in chunks]).view(*target.shape[:-3], self.width)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.learns_fused:
            return encode(pixels, self.sizes, EPS, *self.stages.parameters())
        return self.stages(centred(pixels, next(self.parameters()).dtype)).permute(0, 2, 3, 1).flatten(1)


class PixelDecoder(Fusible, TensorModule):
    """Images (..., C, H, W), with pixels around [0, 1], of features (..., F): four transposed convolutions."""

    # by the kernel
    REPLACED, LAYERS = ("_decode",), (Layers, nn.Linear, nn.LayerNorm, nn.SiLU, nn.ConvTranspose2d, ImageNorm)
    kernel = staticmethod(convolutions)

    def __init__(self, features: int, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        sides = (padded(shape[1]), padded(shape[2]))
        self.sizes = (*sides, shape[0], *(multiple * size.depth for multiple in size.stages))
        self.sides = (sides[0] // DOWNSCALING, sides[1] // DOWNSCALING)
        self.width = size.stages[-1] * size.depth
        self.first = layer(features, self.width * self.sides[0] * self.sides[1])
        stages: list[nn.Module] = []
        channels = self.width
        for multiple in size.stages[-2::-1]:
            width = multiple * size.depth
            stages += [nn.ConvTranspose2d(channels, width, 4, 2, 1, bias=False), ImageNorm(width, EPS)]
            channels = width
        self.stages = Layers(*stages)
        self.last = nn.ConvTranspose2d(channels, shape[0], 4, 2, 1)
        assert self.last.bias is not None
        nn.init.constant_(self.last.bias, 0.5)  # grey

    def _decode(self, features: torch.Tensor) -> torch.Tensor:
        x = self.first(features).view(-1, *self.sides, self.width).permute(0, 3, 1, 2)
        images: torch.Tensor = self.last(self.stages(x))
        return images

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self._decode(rows) for rows in torch.split(features.flatten(0, -2), IMAGES)])
        return x.view(*features.shape[:-1], *x.shape[1:])

    def loss(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Squared error of the reconstruction, summed over pixels, averaged over images (..., C, H, W)."""
        rows, pixels = features.flatten(0, -2), target.flatten(0, -4)
        if self.learns_fused:
            stages = list(self.stages)
            finest_first = [self.last, *(part for i in range(len(stages) - 2, -1, -2) for part in stages[i : i + 2])]
            parameters = [parameter for part in finest_first for parameter in part.parameters()]
            return decoder_loss(self.first(rows), pixels, self.sizes, EPS, *parameters)

        def error(features: torch.Tensor, rows: slice) -> torch.Tensor:
            return (self._decode(features) - UNIT * pixels[rows]).square().sum((-3, -2, -1))

        return chunked_mean(error, IMAGES, rows, *self.parameters())


class ChunkedMean(torch.autograd.Function):
    """The mean of ``loss(inputs[rows], rows)`` over all rows, which backpropagates chunk by chunk to bound memory.

    ``rows`` are slices of ``size`` rows; gradients are computed in the forward pass, while a chunk's activations are in
    the cache. ``parameters`` are those of the loss.
    """

    @staticmethod
    def forward(ctx: Any, loss: Any, size: int, inputs: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        mean, sums = inputs.new_zeros(()), [torch.zeros_like(x) for x in parameters]
        of_inputs: list[torch.Tensor] = []
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            x = inputs.detach()[rows].requires_grad_(ctx.needs_input_grad[2])
            with torch.enable_grad():
                part = loss(x, rows).sum() / len(inputs)
            leaves = (x, *parameters) if x.requires_grad else parameters
            gradients = torch.autograd.grad(part, leaves)
            mean += part.detach()
            of_inputs += gradients[: len(leaves) - len(parameters)]
            torch._foreach_add_(sums, gradients[-len(parameters) :])
        ctx.save_for_backward(*([torch.cat(of_inputs)] if of_inputs else []), *sums)
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [gradient * x for x in ctx.saved_tensors]
        return None, None, *([] if ctx.needs_input_grad[2] else [None]), *gradients


chunked_mean: Callable[..., torch.Tensor] = ChunkedMean.apply


class VectorEncoder(TensorModule):
    """Tokens (..., width) of vectors in symlog: three layers."""

    def __init__(self, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        self.width = size.units
        self.stages = Layers(layer(shape[0], size.units), layer(size.units, size.units), layer(size.units, size.units))

    def target(self, obs: torch.Tensor) -> torch.Tensor:
        """Observations in symlog, as they are encoded and reconstructed."""
        return symlog(obs.float())

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return self.stages(target)


class VectorDecoder(TensorModule):
    """Vectors in symlog of features (..., F)."""

    def __init__(self, features: int, shape: tuple[int, ...], size: Size) -> None:
        super().__init__()
        self.net = head(features, size.units, 3, shape[0])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def loss(self, features: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Squared error of the reconstruction, summed over entries and averaged over vectors (..., D)."""
        return (self(features) - target).square().sum(-1).mean()


class WorldModel(nn.Module):
    """Encoder, RSSM, decoder, reward head and continue head."""

    def __init__(self, *, obs_shape: tuple[int, ...], action_dim: int, size: Size) -> None:
        super().__init__()
        image = len(obs_shape) == 3
        self.encoder = PixelEncoder(obs_shape, size) if image else VectorEncoder(obs_shape, size)
        self.rssm = RSSM(size, action_dim, self.encoder.width)
        self.width = size.deter + self.rssm.flat
        self.decoder = (PixelDecoder if image else VectorDecoder)(self.width, obs_shape, size)
        self.bins = TwoHot()
        self.reward = head(self.width, size.units, 1, len(self.bins.bins), scale=0.0)
        self.goes_on = head(self.width, size.units, 1, 1)  # the continue head; checkpoints have it under this name

    def rewards(self, features: torch.Tensor) -> torch.Tensor:
        """Predicted rewards (...) of features (..., F)."""
        return self.bins.mean(self.reward(features))

    def continue_logits(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (...) of the discounted probability that the episode continues."""
        return self.goes_on(features).squeeze(-1)

    def reward_loss(self, features: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        """Cross-entropy (...) of the reward head to rewards (...)."""
        return self.bins.loss(self.reward(features).log_softmax(-1), rewards)

    def continue_loss(self, features: torch.Tensor, discounts: torch.Tensor) -> torch.Tensor:
        """Cross-entropy (...) of the continue head to discounts (...): γ, or zero after a termination."""
        return F.binary_cross_entropy_with_logits(self.continue_logits(features), discounts, reduction="none")

    def posterior(self, state: State, action: torch.Tensor, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The deterministic state h after an action (B, A), and log q(z given h, x) for the observation x after it."""
        deter = self.rssm.recur(state, self.rssm.embed(action))
        return deter, self.rssm.posterior(deter, self.rssm.of_tokens(self.encoder(self.encoder.target(obs))))


class Critic(TensorModule):
    """Logits (..., bins) of the value of features (..., F)."""

    def __init__(self, width: int, size: Size) -> None:
        super().__init__()
        self.bins = TwoHot()
        self.net = head(width, size.units, 3, len(self.bins.bins), scale=0.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """Expected values (...)."""
        return self.bins.mean(self(features))


class Actor(TensorModule):
    """Outputs (..., size) that parametrise the action distribution; a categorical has 1 % of the uniform one."""

    def __init__(self, width: int, size: Size, distribution: Categorical | BoundedNormal) -> None:
        super().__init__()
        self.head, self.categorical = distribution, isinstance(distribution, Categorical)
        self.net = head(width, size.units, 3, distribution.size, scale=0.01)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs = self.net(features)
        if not self.categorical:
            return outputs
        return unimixed(outputs.softmax(-1)).log()

    def sample(self, features: torch.Tensor) -> torch.Tensor:
        """Actions drawn with torch's random numbers, without a gradient; of a box, they may lie out of bounds."""
        outputs = self(features).detach()
        if isinstance(self.head, Categorical):
            return torch.multinomial(outputs.exp(), 1).squeeze(-1)
        return self.head.draw(outputs)

    def as_inputs(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions as inputs of the world model: one-hot, or within the bounds of a box."""
        if self.categorical:
            return F.one_hot(actions.long(), self.head.size).float()
        return actions.float().clamp(-1, 1)


class GreedyDreamer(nn.Module):
    """The deterministic policy, for export: (obs, carry) to (scores of choices or a box's actions, carry).

    ``sizes`` are the widths of a carry's parts: deterministic state, latents, last action. The world model is copied
    without the parts that only learning needs.
    """

    def __init__(self, world_model: WorldModel, actor: Actor, sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.world_model = copy.deepcopy(world_model)
        for unused in ("decoder", "reward", "goes_on", "bins"):
            delattr(self.world_model, unused)
        del self.world_model.rssm.prior_net
        for module in self.world_model.modules():
            if isinstance(module, Fusible):
                module.fused = False
        self.actor, self.sizes = actor, sizes

    def _posterior(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        deter, stoch, last_action = torch.split(carry, list(self.sizes), -1)
        return self.world_model.posterior(State(deter, stoch), last_action, obs)

    def forward(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        deter, logp = self._posterior(obs, carry)
        state = State(deter, self.world_model.rssm.sample(logp, None))
        best = self.actor.head.best(self.actor(state.features))
        choice = self.actor.categorical
        action = F.one_hot(best.argmax(-1), self.sizes[-1]).to(best.dtype) if choice else best
        return best, torch.cat([*state, action], -1)

    def margin(self, obs: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
        """The smallest gap, in log-probability, between a latent's two most probable classes, (B,)."""
        first, second = self._posterior(obs, carry)[1].topk(2).values.unbind(-1)
        return (first - second).amin(-1)
