"""Actor and critic for on-policy learning: two equal towers for vectors, one shared trunk for images and parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.base.devices import arrays_to_device, to_host
from rl_training.base.parts import Parts
from rl_training.models.heads import Categorical, DiagonalGaussian, Head
from rl_training.models.host import MOST_ROWS, HostFunction, numpy_layers, overridden, through, with_arrays
from rl_training.models.memory import MemorySize, RecurrentTrunk
from rl_training.models.mlp import ensemble_mlp, mlp, orthogonal_
from rl_training.models.trunks import Observed, features, observed

__all__ = ["MLPActorCritic", "PolicyOutput", "Towers"]


class PolicyOutput(NamedTuple):
    """Actions, their log-probabilities, values and entropies: each (B,), but for actions of several dimensions."""

    actions: torch.Tensor
    logprobs: torch.Tensor
    values: torch.Tensor
    entropy: torch.Tensor


class Towers(nn.Module):
    """Networks of the same shape that do not share weights: (B, ...) -> (number of them, B, W)."""

    def __init__(self, towers: list[nn.Sequential]) -> None:
        super().__init__()
        self.towers = nn.ModuleList(towers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(x) for tower in self.towers])


class MLPActorCritic(nn.Module):
    """Policy and value from one pass.

    For vectors, policy and value network do not share weights but have the same shape, so both towers run as one
    batched product. For images and rows of several parts, they share the trunk. ``head`` is the action distribution:
    Categorical over ``action_dim`` by default, a Gaussian with a state-independent deviation with ``continuous=True``.
    """

    # replaced by numpy in acting
    REPLACED: ClassVar[tuple[str, ...]] = ("forward", "features", "outputs", "act", "evaluate_actions")

    def __init__(
        self,
        *,
        obs_dim: int | None = None,
        action_dim: int | None = None,
        hidden_sizes: tuple[int, ...] = (64, 64),
        continuous: bool = False,
        head: Head | None = None,
        obs_shape: tuple[int, ...] | None = None,
        obs_parts: Parts | None = None,
        initial_log_std: float = 0.0,
        towers: int | None = None,
        head_sizes: tuple[int, ...] = (),
        memory: MemorySize | None = None,
    ) -> None:
        """``towers``: 1 trunk for both, or 2 of them (None: 2 for vectors, 1 for images); ``head_sizes``: layers
        between the features of images and the outputs; ``memory``: a recurrent layer at the end of every trunk, whose
        network takes ``Sequences`` in place of observations."""
        super().__init__()
        if head is None:
            if action_dim is None:
                raise ValueError("MLPActorCritic needs action_dim or head")
            head = DiagonalGaussian(action_dim) if continuous else Categorical(action_dim)
        shape = observed(obs_dim, obs_shape, obs_parts)
        self.head = head
        self.trunk: nn.Module
        both = False
        if isinstance(shape, Parts) or len(shape) == 3:
            self.trunk, width = _shared_trunk(shape, hidden_sizes, head_sizes, towers or 1)
        else:
            sizes = (shape[0], *hidden_sizes)
            both, width = towers != 1, sizes[-1]
            self.trunk = (ensemble_mlp(2, sizes, nn.Tanh, activate_last=True) if both
                          else mlp(sizes, nn.Tanh, activate_last=True))  # fmt: skip
        orthogonal_(self.trunk, 2**0.5)
        if memory is not None:
            self.trunk, width = RecurrentTrunk(self.trunk, width, memory, towers=1 + both), memory.size
        dim = head.dim if isinstance(head, DiagonalGaussian) else None
        self.policy_head = nn.Linear(width, head.size if dim is None else dim)
        self.value_head = nn.Linear(width, 1)
        orthogonal_(self.policy_head, 0.01)  # nearly uniform at first: exploration, and small first steps
        orthogonal_(self.value_head, 1.0)
        self.log_std = None if dim is None else nn.Parameter(torch.full((dim,), float(initial_log_std)))

    def features(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs of the policy head and of the value head, each (B, W)."""
        features = self.trunk(obs)
        return (features, features) if features.ndim == 2 else (features[0], features[1])

    def outputs(self, features: torch.Tensor) -> torch.Tensor:
        """The parameters (B, head.size) of the action distribution."""
        outputs = self.policy_head(features)
        return outputs if self.log_std is None else torch.cat([outputs, self.log_std.expand_as(outputs)], -1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Distribution outputs (B, head.size) and values (B,)."""
        policy, value = self.features(obs)
        return self.outputs(policy), self.value_head(value).squeeze(-1)

    def host(self) -> HostFunction:
        """``forward`` on arrays, for acting: observations (N, ...) to outputs (N, head.size) and values (N,)."""
        return HostFunction(self, _numpy_forward, _torch_forward)

    def act(self, obs: torch.Tensor, *, deterministic: bool = False) -> PolicyOutput:
        """Sample actions, or take the most likely ones."""
        with torch.no_grad():
            outputs, _ = self(obs)
            rng = np.random.default_rng(int(torch.randint(2**62, ())))
            actions, _ = self.head.sample(to_host(outputs)[0], rng, deterministic)
        return self.evaluate_actions(obs, *arrays_to_device(obs.device, actions))

    def evaluate_actions(self, obs: torch.Tensor, actions: torch.Tensor) -> PolicyOutput:
        """Log-probabilities of given actions, values and entropies, with gradient."""
        outputs, values = self(obs)
        logprobs, entropy = self.head.evaluate(outputs, actions)
        return PolicyOutput(actions, logprobs, values, entropy)


def _shared_trunk(
    shape: Observed, hidden_sizes: tuple[int, ...], head_sizes: tuple[int, ...], towers: int
) -> tuple[nn.Module, int]:
    """One trunk for images or several parts, or several side by side, and how many features come out of it."""
    last = tuple(hidden_sizes) if isinstance(shape, Parts) else tuple(hidden_sizes[-1:]) or (512,)
    trunks = []
    for _ in range(towers):
        layers, number = features(shape, last)
        trunks.append(nn.Sequential(*layers, *mlp((number, *head_sizes), nn.ReLU, activate_last=True)))
    return trunks[0] if towers == 1 else Towers(trunks), (number, *head_sizes)[-1]


def _torch_forward(model: MLPActorCritic, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outputs, values = with_arrays(model, model, obs)
    return outputs, values


def _numpy_forward(model: MLPActorCritic) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
    if overridden(model, "forward", "features", "outputs") or model.log_std is not model._parameters.get("log_std"):
        return None
    trunk, policy_head, value_head = map(numpy_layers, (model.trunk, model.policy_head, model.value_head))
    if trunk is None or policy_head is None or value_head is None:
        return None
    log_std = None if model.log_std is None else model.log_std.detach().numpy()

    def forward(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(obs) > MOST_ROWS:
            return _torch_forward(model, obs)
        features = through(trunk, obs)
        policy, value = (features, features) if features.ndim == 2 else features
        outputs = through(policy_head, policy)
        if log_std is not None:
            outputs = np.concatenate([outputs, np.broadcast_to(log_std, outputs.shape)], -1)
        return outputs, through(value_head, value)[:, 0]

    return forward
