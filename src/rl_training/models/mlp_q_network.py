"""Action values for discrete actions, from vectors or images."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import nn

from rl_training.base.parts import Parts
from rl_training.models.memory import MemorySize
from rl_training.models.mlp import Linear, mlp
from rl_training.models.noisy import NoisyLinear
from rl_training.models.trunks import encoder, features, observed, remembering

__all__ = ["DuelingHead", "MLPQNetwork", "epsilon_greedy", "q_head"]


class DuelingHead(nn.Module):
    """Value plus advantages minus their mean (Wang et al., 2016), for each of ``atoms`` outputs per action:
    (..., F) -> (..., A * atoms)."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], actions: int, atoms: int, linear: Callable[[int, int], nn.Module]
    ) -> None:
        super().__init__()
        self.value = mlp((inputs, *hidden, atoms), linear=linear)
        self.advantage = mlp((inputs, *hidden, actions * atoms), linear=linear)
        self.actions, self.atoms = actions, atoms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        advantages = self.advantage(x).unflatten(-1, (self.actions, self.atoms))
        values: torch.Tensor = self.value(x).unsqueeze(-2) + advantages - advantages.mean(-2, keepdim=True)
        return values.flatten(-2)


def q_head(inputs: int, hidden: tuple[int, ...], actions: int, atoms: int, *, dueling: bool, noisy: bool) -> nn.Module:
    """Features to ``atoms`` outputs per action, flat: (..., F) -> (..., A * atoms)."""
    linear = NoisyLinear if noisy else Linear
    if dueling:
        return DuelingHead(inputs, hidden, actions, atoms, linear)
    return mlp((inputs, *hidden, actions * atoms), linear=linear)


def epsilon_greedy(q_values: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
    """The best action of each row, or with probability ``epsilon`` a uniformly random one: (B, A) -> (B,)."""
    best = q_values.argmax(-1)
    if epsilon <= 0:
        return best
    random = torch.randint(q_values.shape[-1], best.shape, device=best.device)
    return torch.where(torch.rand(best.shape, device=best.device) < epsilon, random, best)


class MLPQNetwork(nn.Module):
    """Q(s, ·) for every action: (B, A). Images (uint8, channel first) go through the convolutional trunk.

    Dueling: the last hidden layer exists twice, for values and for advantages. Noisy: every linear layer is a
    NoisyLinear. Memory: a recurrent layer before the output (dueling: before the last hidden layer).
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("forward", "act")  # by numpy, in acting

    def __init__(
        self,
        *,
        obs_dim: int | None = None,
        action_dim: int,
        hidden_sizes: tuple[int, ...] = (64, 64),
        obs_shape: tuple[int, ...] | None = None,
        obs_parts: Parts | None = None,
        dueling: bool = False,
        noisy: bool = False,
        atoms: int = 1,
        memory: MemorySize | None = None,
    ) -> None:
        super().__init__()
        shape, hidden = observed(obs_dim, obs_shape, obs_parts), tuple(hidden_sizes)
        linear = NoisyLinear if noisy else Linear
        head_sizes: tuple[int, ...] = ()
        trunk: nn.Module
        if dueling:
            trunk, width, head_sizes = encoder(shape, hidden, linear=linear)
        else:
            trunk, width = features(shape, hidden, linear=linear)
        trunk, width = remembering(trunk, width, memory)
        head = q_head(width, head_sizes, action_dim, atoms, dueling=dueling, noisy=noisy)
        self.body = nn.Sequential(trunk, head)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Q-values (B, A)."""
        values: torch.Tensor = self.body(obs)
        return values

    def act(self, obs: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
        """ε-greedy actions (B,)."""
        return epsilon_greedy(self(obs), epsilon)
