"""Deep Q-learning (Mnih et al., 2015), double (van Hasselt et al., 2016), row by row.

The other value-based oracles differ in ``regression``. Random numbers (noisy layers, IQN's fractions) come from torch's
generator: seed it alike before both updates, which draw in the same order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


def huber(u: torch.Tensor, kappa: float = 1.0) -> torch.Tensor:
    """½ u² up to κ, and from there on the line of the same slope."""
    return 0.5 * u**2 if u.abs() <= kappa else kappa * (u.abs() - 0.5 * kappa)


def mean(numbers: Iterable[torch.Tensor]) -> torch.Tensor:
    numbers = list(numbers)
    return torch.stack(numbers).sum() / len(numbers)


class DQN:
    """Regression of Q(s, a) on r + γ Q'(s', a*), one Adam step each, and a copy to Q' every so many updates."""

    def __init__(
        self, network: nn.Module, *, learning_rate: float, gamma: float, target_update_interval: int,
        double_q: bool = False, max_grad_norm: float | None = None, adam_epsilon: float = 1e-8,
    ) -> None:  # fmt: skip
        self.network, self.target, self.updates = network, copy.deepcopy(network), 0
        self.learned = [p for name, p in network.named_parameters() if not name.startswith("fraction_head")]
        self.optimizer = torch.optim.Adam(self.learned, lr=learning_rate, eps=adam_epsilon)
        self.gamma, self.interval, self.double, self.max_norm = gamma, target_update_interval, double_q, max_grad_norm
        self.td_errors = torch.empty(0)

    def update(self, batch: Batch) -> dict[str, float]:
        losses, self.td_errors, metrics = self.regression(batch)
        metrics["loss"] = self.objective(batch, losses, metrics)
        metrics["td_error_mean"] = mean(self.td_errors.abs())
        self.optimizer.zero_grad()
        metrics["loss"].backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.learned, self.max_norm)
        self.step()
        self.updates += 1
        if self.updates % self.interval == 0:
            self.target.load_state_dict(self.network.state_dict())
        return {name: float(value.detach()) for name, value in metrics.items()}

    def step(self) -> None:
        self.optimizer.step()

    def objective(self, batch: Batch, losses: list[torch.Tensor], metrics: dict[str, Any]) -> torch.Tensor:
        """The mean over rows, each by its importance weight (Schaul et al., 2016)."""
        return mean(loss * batch["weights"][b] if "weights" in batch else loss for b, loss in enumerate(losses))

    def discount(self, batch: Batch, b: int) -> torch.Tensor:
        """What the next value of row b is multiplied by: γ to the number of steps, or nothing after a termination."""
        return (batch["discounts"][b] if "discounts" in batch else self.gamma) * (1 - batch["dones"][b])

    def regression(self, batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, Any]]:
        """Each row's loss and error, and what is reported."""
        with torch.no_grad():
            evaluating = self.target(batch["next_obs"])
            choosing = self.network(batch["next_obs"]) if self.double else evaluating
        q = self.network(batch["obs"])
        losses, errors, chosen, targets = [], [], [], []
        for b, action in enumerate(batch["actions"]):
            best = int(choosing[b].argmax())
            targets.append(batch["rewards"][b] + self.discount(batch, b) * evaluating[b, best])
            chosen.append(q[b, action])
            errors.append(targets[-1] - chosen[-1].detach())
            losses.append(huber(targets[-1] - chosen[-1]))
        self.q_values = q  # for what a variant adds
        return losses, torch.stack(errors), {"q_value_mean": mean(chosen), "target_mean": mean(targets)}
