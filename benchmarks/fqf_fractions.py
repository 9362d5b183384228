"""Do FQF's learned fractions help? A one-step bandit with two arms: one pays Exp(1), the other 0.9.

    python benchmarks/fqf_fractions.py [--updates 4000] [--seeds 1 2 3 4 5]

For QR-DQN and FQF with 8 quantiles: the 1-Wasserstein distance between Exp(1) and the quantiles learned for the first arm,
each with its mass; the smallest fraction; and the arm that is taken. The best that equal fractions can reach is 0.15106, the
best that any fractions can reach 0.11778. Recorded in benchmarks/results/fqf_fractions.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.models import MLPFQFNetwork, MLPQRQNetwork

RESULTS = Path(__file__).parent / "results" / "fqf_fractions.json"
QUANTILES = 8
NETWORK = {"obs_dim": 1, "action_dim": 2, "num_quantiles": QUANTILES, "hidden_sizes": (64, 64)}
LEARNER = {
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "target_update_interval": 100,
    "num_quantiles": QUANTILES,
    "kappa": 0.02,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "qr_dqn": {},
    "fqf, published (rate 2.5e-9, no scaling)": {
        "fraction_learning_rate": 2.5e-9,
        "fraction_scaling": "none",
        "train_at_fractions": False,
    },
    "fqf, rate 0.001, quantiles trained at the middles alone": {
        "fraction_learning_rate": 1e-3,
        "train_at_fractions": False,
    },
    **{f"fqf, rate {rate:g}": {"fraction_learning_rate": rate} for rate in (1e-4, 1e-3, 3e-3, 1e-2)},
    "fqf, rate 0.01, entropy 0.01": {"fraction_learning_rate": 1e-2, "entropy_coef": 1e-2},
}


def wasserstein(values: np.ndarray, mass: np.ndarray, points: int = 200_000) -> float:
    """Between Exp(1) and the given values with the given mass: the mean distance of their quantile functions."""
    order = np.argsort(values)
    t = (np.arange(points) + 0.5) / points
    steps = values[order][np.minimum(np.searchsorted(np.cumsum(mass[order]), t), len(values) - 1)]
    return float(np.abs(-np.log1p(-t) - steps).mean())


def learn(name: str, changes: dict[str, Any], seed: int, updates: int) -> dict[str, float]:
    torch.manual_seed(seed)
    fqf = name.startswith("fqf")
    agent: Any = (
        FQF(q_network=MLPFQFNetwork(**NETWORK), **LEARNER, **changes)
        if fqf
        else QRDQN(q_network=MLPQRQNetwork(**NETWORK), **LEARNER)
    )
    agent.use_compiled()
    rows = 128
    zeros = torch.zeros(rows, 1)
    for update in range(updates):
        for optimizer in agent.optimizers():
            optimizer.scale_lr(1 - update / updates)
        actions = torch.randint(2, (rows,))
        rewards = torch.where(actions == 0, torch.empty(rows).exponential_(), torch.full((rows,), 0.9))
        batch = {"obs": zeros, "actions": actions, "rewards": rewards, "next_obs": zeros, "dones": torch.ones(rows)}
        agent.update(batch, global_step=update)
    with torch.no_grad():
        out = agent.q_network(zeros[:1])
    values, mass = out, torch.full((QUANTILES,), 1 / QUANTILES)
    if fqf:
        values, mass = out.quantile_hats, (out.taus[0, 1:] - out.taus[0, :-1])
    return {
        "wasserstein": wasserstein(values[0, 0].double().numpy(), mass.double().numpy()),
        "smallest_fraction": float(mass.min()),
        "arm": int(agent.act(np.zeros((1, 1), np.float32), deterministic=True).actions[0]),
    }


def main() -> None:
    from rl_training.experiment.runs import provenance

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4000, help="of 128 rewards each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = provenance()
    facts.pop("command")
    rows = {}
    for name, changes in SETTINGS.items():
        if args.only not in name:
            continue
        runs = [{"seed": seed, **learn(name, changes, seed, args.updates)} for seed in args.seeds]
        mean = statistics.fmean(run["wasserstein"] for run in runs)
        rows[name] = {"wasserstein": mean, "runs": runs}
        base = rows["qr_dqn"]["wasserstein"] if "qr_dqn" in rows else mean
        smallest, arms = min(run["smallest_fraction"] for run in runs), [run["arm"] for run in runs]
        print(
            f"{name:45} W1 {mean:.4f} ({1 - mean / base:+.1%} nearer) smallest {smallest:.4f} arms {arms}", flush=True
        )
    if not args.no_record:
        RESULTS.write_text(json.dumps({**facts, "updates": args.updates, "settings": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
