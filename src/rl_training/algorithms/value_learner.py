"""What learners of action values share: acting by epsilon, a target network, targets that know where episodes end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Greedy, Learner, Tensors, UpdateResult, stream
from rl_training.models.host import redefined, with_arrays
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatAdam, FlatOptimizer, Target


def td_target(batch: Tensors, next_values: torch.Tensor, gamma: torch.Tensor | float) -> torch.Tensor:
    """r + γ V(s') where the episode goes on; nothing after a termination. ``next_values``: (B,), or (B, M) for M of them.

    Rows over several steps bring their own power of γ as ``discounts``.
    """
    factor = batch.get("discounts", gamma) * (1 - batch["dones"])
    if next_values.ndim == 1:
        return batch["rewards"] + factor * next_values
    return batch["rewards"][:, None] + factor[:, None] * next_values


def weighted_mean(losses: torch.Tensor, batch: Tensors) -> torch.Tensor:
    """The batch's loss from each row's (B,), by importance ``weights`` if there are any."""
    return (losses * batch["weights"] if "weights" in batch else losses).mean()


def of_actions(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The part that belongs to each row's action: (B, A) -> (B,), (B, A, N) -> (B, N)."""
    index = actions.long().view(-1, *([1] * (values.ndim - 1)))
    return values.gather(1, index.expand(-1, 1, *values.shape[2:])).squeeze(1)


class ValueLearner(Learner):
    """A subclass says how its network's action values are had, on arrays (``_values``) and on tensors (``_greedy_values``), and
    learned (``_learn``). A network of ours whose ``act`` is overridden chooses the greedy action by it."""

    STATE = ("updates",)
    CONTROLS = ("epsilon",)
    COMPILE_THRESHOLD = 40_000

    def __init__(
        self,
        *,
        q_network: Any,
        learning_rate: float,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        max_grad_norm: float | None = None,
        adam_epsilon: float = 1e-8,
        normalizer: ObservationNormalizer | None = None,
        parameters: Callable[[Any], Iterable[nn.Parameter]] = nn.Module.parameters,
    ) -> None:
        self.target_network = copy.deepcopy(q_network)
        self.q_network, self.normalizer, self.updates = q_network, normalizer, 0
        self.last_td_errors: torch.Tensor | None = None
        self._own_act = redefined(q_network, "act")
        self._targets: list[tuple[FlatOptimizer, Target]] = []
        self.optimizer = FlatAdam(
            parameters(q_network), lr=learning_rate, eps=adam_epsilon, max_grad_norm=max_grad_norm
        )
        self._follow(self.optimizer, parameters)
        self._gamma = torch.tensor(gamma, device=self.optimizer.flat.device)
        self._target_update_interval, self._double, self._epsilon = target_update_interval, double_q, 0.0

    def _follow(self, optimizer: FlatOptimizer, parameters: Callable[[Any], Iterable[nn.Parameter]]) -> None:
        """Let the target network copy what this optimizer changes."""
        self._targets.append((optimizer, Target(self.q_network, self.target_network, parameters)))

    def _values(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        """Action values (N, A) of observations (N, ...), on the host."""
        raise NotImplementedError

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        rng = None if deterministic else stream(rng)
        q_values = self._values(obs, deterministic, rng)
        actions = q_values.argmax(-1)
        if self._own_act:
            actions = with_arrays(self.q_network, self.q_network.act, obs)
        if rng is not None and self._epsilon > 0:
            for i, chance in enumerate(rng.random(len(actions)).tolist()):
                if chance < self._epsilon:
                    actions[i] = rng.integers(q_values.shape[-1])
        return Acting(actions)

    def _greedy_values(self) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        """Action values (B, A) for acting without chance, as a function of (network, obs) alone."""
        raise NotImplementedError

    def policy_module(self) -> nn.Module:
        values = self._greedy_values()
        if not self._own_act:
            return Greedy(self.q_network, values)

        def chosen(network: Any, obs: torch.Tensor) -> torch.Tensor:
            choices = torch.arange(values(network, obs).shape[-1], device=obs.device)
            return (choices == network.act(obs)[:, None]).float()

        return Greedy(self.q_network, chosen)

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        metrics, rest = self.learn(batch)
        self.last_td_errors = rest["td_errors"]
        self.updates += 1
        if self.updates % self._target_update_interval == 0:
            for optimizer, target in self._targets:
                target.flat.copy_(optimizer.flat)
                target.copy_buffers()
        return UpdateResult(metrics, num_gradient_steps=1)
