"""The discriminator of GAIL: observation and action to a logit, positive for the expert's and negative for the
policy's."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.base.devices import to_host
from rl_training.base.parts import Parts
from rl_training.models.mlp import mlp, orthogonal_
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.parts import PartsNormalizer
from rl_training.models.trunks import features, observed

__all__ = ["MLPGAILDiscriminator"]


class MLPGAILDiscriminator(nn.Module):
    """A perceptron of observation and action; images go through the convolutional trunk first, and so do mixed parts.

    ``actions`` are numbers (B, A), or choices (B,) out of ``action_dim``, which become one-hot. Vectors are
    scaled by running statistics (``observe``). With ``absorbing``, a row may stand for the time after a termination:
    then a flag is set, and observation and action are zero.
    """

    REPLACED: ClassVar[tuple[str, ...]] = (
        "forward",
    )  # by ``inputs`` and ``logits``, where there is a gradient penalty

    def __init__(
        self,
        *,
        action_dim: int,
        obs_dim: int | None = None,
        obs_shape: tuple[int, ...] | None = None,
        obs_parts: Parts | None = None,
        hidden_sizes: tuple[int, ...] = (64, 64),
        features_dim: int = 256,
        normalize: bool = True,
        absorbing: bool = False,
    ) -> None:
        super().__init__()
        shape = observed(obs_dim, obs_shape, obs_parts)
        self.action_dim, self.absorbing = action_dim, absorbing
        self.trunk: nn.Module | None = None
        self.normalizer: ObservationNormalizer | None = None
        if isinstance(shape, Parts) or len(shape) == 3:
            self.trunk, width = features(shape, (features_dim,))
        else:
            width = shape[0]
        if isinstance(shape, Parts):
            self.normalizer = PartsNormalizer(shape) if normalize and shape.vector_size else None
        elif len(shape) == 1 and normalize:
            self.normalizer = ObservationNormalizer(shape)
        self.body = mlp((width + action_dim + absorbing, *hidden_sizes, 1), nn.Tanh)
        orthogonal_(self.body, 2**0.5)

    def inputs(self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None) -> torch.Tensor:
        """The perceptron's inputs, (B, features + A): a gradient penalty takes its gradient with respect to them."""
        scaled = obs if self.normalizer is None else self.normalizer(obs)
        seen = scaled if self.trunk is None else self.trunk(scaled)
        if actions.ndim == 1:
            actions = F.one_hot(actions.long(), self.action_dim)
        x = torch.cat([seen, actions.to(seen.dtype)], -1)
        if not self.absorbing:
            return x
        flag = torch.zeros_like(x[:, :1]) if absorbed is None else absorbed[:, None].to(x.dtype)
        return torch.cat([x * (1 - flag), flag], -1)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits (B,) of the perceptron's inputs."""
        logits: torch.Tensor = self.body(inputs)
        return logits.squeeze(-1)

    def gradient_penalty(self, expert: torch.Tensor, policy: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Mean squared distance from one of the norm of the logits' gradient, taken between inputs (B, F) of expert and
        policy at ``place`` (B, 1) in [0, 1] (Gulrajani et al., 2017)."""
        between = (place * expert + (1 - place) * policy).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.logits(between).sum(), between, create_graph=True)
        norms: torch.Tensor = gradient.norm(dim=-1)
        return (norms - 1).square().mean()

    def forward(self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B,); ``absorbed`` (B,): 1 where a row stands for the time after termination."""
        return self.logits(self.inputs(obs, actions, absorbed))

    def observe(self, obs: torch.Tensor) -> None:
        """Update the running statistics by observations (B, ...)."""
        if self.normalizer is not None:
            self.normalizer.observe(*to_host(obs))
