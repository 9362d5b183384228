"""PPO and the value-based family with a memory: the same losses, on features of sequences.

A network with a memory takes ``Sequences`` where others take observations (``models.memory``). So these learners only
carry its state from act to act, and make sequences of their batches.

The value-based ones learn as R2D2 does (Kapturowski et al., 2019): sequences of replay with the state they were met
with, whose first steps bring that state up to date, in the online and in the target network, without being learned
from. Beyond that paper's scope they are the learners that they are: no rescaling of values, and no priorities.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Learner, Tensors
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.models.memory import Sequences, Warmup, memory_of

__all__ = ["RECURRENT", "CarriedPolicy", "RecurrentPPO", "Remembering", "SequenceValues", "transitions"]


class CarriedPolicy(nn.Module):
    """A deterministic policy with a memory, for export: (obs, carry) to (scores or a box's actions, carry)."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = Sequences(obs, carry)
        best = self.policy(given)
        return best, given.after

    def margin(self, obs: Any, carry: torch.Tensor) -> torch.Tensor:
        """Nothing is chosen on the way to the outputs: infinite, (B,)."""
        return torch.full((len(carry),), torch.inf)


class Remembering(Learner):
    """Acts with a state (N, C) that is carried from step to step, zeros at the start of an episode."""

    PARTS: ClassVar[tuple[str, ...]] = ()
    EAGER: ClassVar[str] = "a graph would be unrolled over time, and made anew for sequences of other lengths"

    def initial_carry(self, n: int) -> np.ndarray:
        return np.zeros((n, self._memory_size), np.float32)

    def _remember(self, network: nn.Module) -> None:
        """Take the size of the state from the network that acts."""
        trunk = memory_of(network)
        if trunk is None:
            raise ValueError(f"{type(network).__name__} has no memory: give it memory=MemorySize(kind, size)")
        self._memory_size = trunk.state_size

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        given: Any = Sequences(obs, self.initial_carry(len(obs)) if carry is None else carry)
        acting = super()._act(given, None, deterministic, rng)
        extras = {name: obs if array is given else array for name, array in acting.extras.items()}
        return Acting(acting.actions, extras, given.after)

    def policy_module(self) -> nn.Module:
        return CarriedPolicy(super().policy_module())


class RecurrentPPO(Remembering, PPO):
    """PPO whose ``policy`` has a memory. A minibatch is rows of sequences, one sequence after the other, with the
    ``lengths`` (P,) of these, on the host, and the ``carry`` (P, C) that each began with."""

    def __init__(self, *, policy: Any, **options: Any) -> None:
        """Further options: see ``PPO``."""
        super().__init__(policy=policy, **options)
        self._remember(policy)

    def values(self, obs: np.ndarray, carry: Any = None) -> np.ndarray:
        """Value of each observation, (N,), met with the state ``carry`` (N, C), which stays as it is."""
        return self.act(obs, carry=carry, deterministic=True).extras["values"]

    def _learn(self, batch: Tensors) -> Tensors:
        given: Any = {**batch, "obs": Sequences(batch["obs"], batch["carry"], batch["lengths"])}
        return super()._learn(given)


def transitions(batch: Tensors, burn_in: int, obs: torch.Tensor) -> dict[str, Any]:
    """The transitions of sequences (T, B, ...) after their first ``burn_in`` rows, as a learner of single ones takes
    them: actions, rewards and dones (M,), and ``Sequences`` for the observations (T, B, ...) and the next ones.

    A row has the reward that arrived with its observation and the action taken at it, so row t and row t + 1 make a
    transition, unless the latter starts an episode.
    """
    count, starts = len(obs) - burn_in, batch["episode_starts"]
    later = starts[burn_in:].cpu().T > 0  # (B, T'), on the host, where sequences are laid out
    first = later.clone()
    first[:, 0] = True
    places = first.flatten().nonzero().squeeze(1)
    lengths = torch.diff(places, append=torch.tensor([first.numel()]))
    goes_on = (places % count == 0) & ~later.flatten()[places]
    source = torch.where(goes_on, places // count, -1).to(obs.device)

    rows = obs[burn_in:].transpose(0, 1).flatten(0, 1)
    before = torch.arange(first.numel()).view(first.shape)[:, :-1][~later[:, 1:]].to(obs.device)
    warmup = Warmup(obs[:burn_in], starts[:burn_in], batch["initial_state"], source)

    def sequences(pick: torch.Tensor) -> Sequences:
        return Sequences(rows, batch["initial_state"], lengths, pick=pick, warmup=warmup)

    flat = {name: batch[name][burn_in:].transpose(0, 1).flatten(0, 1) for name in ("actions", "rewards", "dones")}
    learned = {"actions": flat["actions"][before], "rewards": flat["rewards"][before + 1]}
    return {**learned, "dones": flat["dones"][before + 1], "obs": sequences(before), "next_obs": sequences(before + 1)}


class SequenceValues(Remembering, DQN):
    """A learner of action values that learns from sequences (T, B, ...) with the ``initial_state`` (B, C) of each, of
    which the first ``burn_in`` steps only bring that state up to date."""

    def __init__(self, *, q_network: Any, burn_in: int = 0, **options: Any) -> None:
        """Further options: see the learner without a memory."""
        super().__init__(q_network=q_network, **options)
        self._remember(q_network)
        self._burn_in = burn_in

    def _learn(self, batch: Tensors) -> Tensors:
        obs = batch["obs"]
        if self.normalizer is not None:
            obs = self.normalizer(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        return super()._learn(transitions(batch, self._burn_in, obs))

    def _observations(self, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        return batch["obs"], batch["next_obs"]  # scaled already


class RecurrentDQN(SequenceValues):
    """DQN with a memory."""


class RecurrentQRDQN(SequenceValues, QRDQN):
    """QR-DQN with a memory."""


class RecurrentIQN(SequenceValues, IQN):
    """IQN with a memory."""


class RecurrentFQF(SequenceValues, FQF):
    """FQF with a memory."""


RECURRENT: dict[type[DQN], type[SequenceValues]] = {
    DQN: RecurrentDQN, QRDQN: RecurrentQRDQN, IQN: RecurrentIQN, FQF: RecurrentFQF,
}  # fmt: skip
