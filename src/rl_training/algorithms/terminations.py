"""Terminations of imagined episodes: by a known function of transitions, or by a learned classifier."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Learner
from rl_training.base.devices import arrays_to_device, to_host
from rl_training.base.state import Stateful
from rl_training.models.mlp_mopo import TerminationNetwork
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["LearnedTerminations", "TerminationClassifier", "Terminations", "deciding"]

Terminations = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # rows of obs, actions in [-1, 1], next_obs

TOLERATED = 1e-3  # share of transitions that a known function may get wrong: rounding at its thresholds


class TerminationClassifier(Learner):
    """Learns from data which transitions terminate an episode, for environments whose terminations are not known."""

    UPDATES, ROWS = 500, 256

    def __init__(self, *, obs_dim: int, action_dim: int, device: torch.device, learning_rate: float = 1e-3) -> None:
        self.network = TerminationNetwork(obs_dim=obs_dim, action_dim=action_dim).to(device)
        self.optimizer = FlatAdam(self.network.parameters(), lr=learning_rate)

    def fit(self, data: dict[str, np.ndarray], rng: np.random.Generator) -> bool:
        """Fit to transitions with ``dones``, in batches half terminated; False, without a fit, if none has
        terminated."""
        terminal = np.flatnonzero(data["dones"] > 0)
        rest = np.flatnonzero(data["dones"] == 0)
        if not len(terminal) or not len(rest):
            return False
        network, device = self.network, self.optimizer.flat.device
        inputs = np.concatenate([data["obs"], data["actions"], data["next_obs"]], 1).astype(np.float32)
        std = inputs.std(0)
        scale = np.where(std < 1e-6, 1, 1 / np.maximum(std, 1e-6)).astype(np.float32)
        for buffer, values in zip(
            (network.input_mean, network.input_scale), arrays_to_device(device, inputs.mean(0), scale)
        ):
            buffer.copy_(values)
        network.prior.fill_(math.log(len(terminal) / len(rest)))
        network.fitted.fill_(True)
        labels = torch.cat([make(self.ROWS // 2, device=device) for make in (torch.ones, torch.zeros)])
        for _ in range(self.UPDATES):
            index = np.concatenate([rng.choice(kind, self.ROWS // 2) for kind in (terminal, rest)])
            logits = network(*arrays_to_device(device, inputs[index]))
            descend((self.optimizer, F.binary_cross_entropy_with_logits(logits, labels)))
        return True

    @property
    def fitted(self) -> bool:
        return bool(self.network.fitted)

    @torch.no_grad()
    def __call__(self, obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        """Which transitions are more likely than not to terminate; none before the first fit."""
        if not self.fitted:
            return np.zeros(len(obs), bool)
        inputs = np.concatenate([obs, actions, next_obs], 1).astype(np.float32)
        logits = self.network(*arrays_to_device(self.optimizer.flat.device, inputs)) + self.network.prior
        return to_host(logits > 0)[0]


class LearnedTerminations(Stateful):
    """What terminates imagined episodes: a known function while the data agrees with it, else a learned termination
    classifier.

    The classifier decides once the data shows a termination. ``known`` without a function: episodes never terminate. A
    learner has this under a public name, so that it is saved with the agent, and a loaded agent's plans terminate where
    they did before.
    """

    STATE = ("distrusted",)

    def __init__(
        self, function: Terminations | None, *, known: bool, obs_dim: int, action_dim: int, device: torch.device
    ) -> None:
        self._function, self._known = function, known
        self.distrusted = False  # whether the data has contradicted what is known
        self.classifier = TerminationClassifier(obs_dim=obs_dim, action_dim=action_dim, device=device)

    @property
    def known(self) -> bool:
        """Whether terminations are known, rather than learned."""
        return self._known and not self.distrusted

    @property
    def function(self) -> Terminations | None:
        """What decides at present; None: nothing terminates."""
        if self.known:
            return self._function
        return self.classifier if self.classifier.fitted else None

    def contradictions(self, data: dict[str, np.ndarray]) -> int:
        """Count the transitions that contradict the known function; above a share of ``TOLERATED``, its use ends."""
        terminal = data["dones"] > 0
        if self._function is None:
            wrong = int(terminal.sum())
        else:
            known = np.asarray(self._function(data["obs"], data["actions"], data["next_obs"]), bool)
            wrong = int((known != terminal).sum())
        self.distrusted = wrong > TOLERATED * len(terminal)
        return wrong

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is not None:  # None: an agent saved alone by an older version, whose classifier stayed with the run
            super().load_state_dict(state)


def deciding(terminated: Terminations | LearnedTerminations | None) -> Terminations | None:
    """The function that decides at present, of either kind."""
    return terminated.function if isinstance(terminated, LearnedTerminations) else terminated
