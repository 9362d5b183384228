"""What comparisons of the value-based family with their oracles share: batches, options, and updates of both."""

from __future__ import annotations

import copy
from typing import Any

import torch

from oracles.comparing import FLOAT64, assert_changed, assert_same_metrics, assert_same_parameters

OPTIONS: dict[str, Any] = {"learning_rate": 0.01, "gamma": 0.9, "target_update_interval": 2}
ACTIONS = 3
SHAPE: dict[str, Any] = {"obs_dim": 3, "action_dim": ACTIONS, "hidden_sizes": (8, 6)}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one hidden layer": {"hidden_sizes": (8,)},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True},
    "dueling and noisy": {"dueling": True, "noisy": True},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"double_q": True},
    "clipped gradients": {"max_grad_norm": 0.05},
    "gradients below the limit": {"max_grad_norm": 1e3},
    "another epsilon of Adam": {"adam_epsilon": 0.1, "double_q": True},
    "no discount": {"gamma": 1.0},
    "copies after every update": {"target_update_interval": 1, "double_q": True},
}
BATCHES: dict[str, tuple[str, ...]] = {
    "importance weights": ("weights",),
    "several steps": ("discounts",),
    "several steps and importance weights": ("discounts", "weights"),
}


def batch(seed: int, *extra: str, rows: int = 5) -> dict[str, torch.Tensor]:
    """Transitions of which some terminate, with errors on both sides of Huber's threshold."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    columns = {
        "obs": 2 * uniform(rows, 3) - 1, "actions": torch.randint(ACTIONS, (rows,), generator=generator),
        "rewards": 6 * uniform(rows) - 3, "next_obs": 2 * uniform(rows, 3) - 1, "dones": (uniform(rows) < 0.3) * 1.0,
        "weights": uniform(rows), "discounts": 0.9 ** torch.randint(1, 4, (rows,), generator=generator),
    }  # fmt: skip
    return {name: column for name, column in columns.items() if name not in ("weights", "discounts") or name in extra}


def scatter(network: torch.nn.Module, size: float = 0.3) -> torch.nn.Module:
    """Weights far from their initial values, so that actions and fractions differ from each other."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += size * torch.randn_like(parameter)
    return network


def assert_updates_agree(
    learner: Any, oracle: Any, batches: list[dict[str, torch.Tensor]], *, rates: tuple[float, ...] = (),
    tolerance: float = FLOAT64,
) -> None:  # fmt: skip
    """Every parameter of both networks, the errors and the metrics after each of some updates; ``rates`` scale the
    learning rates."""
    before, base = copy.deepcopy(oracle.network.state_dict()), {}
    optimizers = [o for o in (oracle.optimizer, getattr(oracle, "fraction_optimizer", None)) if o is not None]
    for number, rows in enumerate(batches):
        for optimizer in optimizers if rates else ():
            group = optimizer.param_groups[0]
            group["lr"] = base.setdefault(id(optimizer), group["lr"]) * rates[number]
        for optimizer in learner.optimizers() if rates else ():
            optimizer.scale_lr(rates[number])
        torch.manual_seed(number)
        expected = oracle.update({name: column.clone() for name, column in rows.items()})
        torch.manual_seed(number)
        result = learner.update(rows, global_step=number)
        assert result.num_gradient_steps == 1
        assert_same_metrics(result.metrics, expected, tolerance=max(tolerance, 1e-6))  # metrics are float32
        torch.testing.assert_close(learner.last_td_errors, oracle.td_errors, rtol=tolerance, atol=tolerance)
        assert_same_parameters(learner.q_network, oracle.network, tolerance=tolerance, name="online")
        assert_same_parameters(learner.target_network, oracle.target, tolerance=tolerance, name="target")
    assert_changed(before, learner.q_network)
