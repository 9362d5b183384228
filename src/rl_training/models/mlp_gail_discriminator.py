"""Tells an expert's choices from the policy's: (observation, action) to a logit, positive for the expert."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from rl_training.models.cnn import features, observation_shape
from rl_training.models.mlp import mlp, orthogonal_
from rl_training.models.normalizer import ObservationNormalizer


class MLPGAILDiscriminator(nn.Module):
    """``actions`` are numbers (B, A) as they are, or choices (B,) out of ``action_dim``, which become one-hot.

    Vectors are scaled by statistics of what it has been shown (``observe``). With ``absorbing``, a row may stand for the time
    after an episode has terminated: a flag is set, and observation and action are nothing.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by ``inputs`` and ``judge``, where there is a gradient penalty

    def __init__(
        self,
        *,
        obs_dim: int | None = None,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (64, 64),
        obs_shape: tuple[int, ...] | None = None,
        features_dim: int = 256,
        normalize: bool = True,
        absorbing: bool = False,
    ) -> None:
        super().__init__()
        shape = observation_shape(obs_dim, obs_shape)
        self.action_dim, self.absorbing = action_dim, absorbing
        self.trunk: nn.Module | None = None
        self.normalizer: ObservationNormalizer | None = None
        width = shape[0]
        if len(shape) == 3:
            self.trunk, width = features(shape, (features_dim,))
        elif normalize:
            self.normalizer = ObservationNormalizer(shape)
        self.body = mlp((width + action_dim + absorbing, *hidden_sizes, 1), nn.Tanh)
        orthogonal_(self.body, 2**0.5)

    def inputs(self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None) -> torch.Tensor:
        """What the perceptron sees, (B, features + A): a gradient penalty takes its gradient here."""
        if self.trunk is not None:
            seen = self.trunk(obs)
        else:
            seen = obs if self.normalizer is None else self.normalizer(obs)
        if actions.ndim == 1:
            actions = F.one_hot(actions.long(), self.action_dim)
        x = torch.cat([seen, actions.to(seen.dtype)], -1)
        if not self.absorbing:
            return x
        flag = torch.zeros_like(x[:, :1]) if absorbed is None else absorbed[:, None].to(x.dtype)
        return torch.cat([x * (1 - flag), flag], -1)

    def judge(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs).squeeze(-1)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor, absorbed: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B,); ``absorbed`` (B,): 1 where a row stands for the time after termination."""
        return self.judge(self.inputs(obs, actions, absorbed))

    def observe(self, obs: torch.Tensor) -> None:
        """Let the statistics see observations (B, ...)."""
        if self.normalizer is not None:
            self.normalizer.observe(obs.cpu().numpy())
