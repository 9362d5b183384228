"""Compare what every algorithm learns in two states of the source: the way to show that a refactoring changed nothing.

    PYTHONPATH=OLD/src:OLD/tests python scripts/same_tensors.py write before.json
    PYTHONPATH=src:tests         python scripts/same_tensors.py write after.json
    python scripts/same_tensors.py compare before.json after.json

Each run is tiny (tests/toys.py), eager and on one thread. A run is described by the digests of all tensors of its last
checkpoint, whatever their names, and by its metrics, so that parts may be renamed or moved while numbers stay the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # beside every algorithm's own entry in tests/toys.py
    "ppo, boxes, normalised": (
        "ppo",
        {"env_id": "Pendulum-v1", "num_envs": 2, "normalize_observations": True, "normalize_rewards": True},
    ),
    "ppo, clipped values, schedules": (
        "ppo",
        {"clip_values": True, "learning_rate_schedule": "linear", "clip_coef_schedule": "linear"},
    ),
    "dqn, everything": (
        "dqn",
        {"double": True, "dueling": True, "noisy": True, "prioritized": True, "n_step": 3, "num_envs": 2},
    ),
    "qr_dqn, n-step": ("qr_dqn", {"n_step": 3}),
    "sac, fixed temperature, normalised": ("sac", {"alpha": 0.1, "normalize_observations": True, "num_envs": 2}),
    "cql, choices": ("cql", {"env_id": "CartPole-v1"}),
    "cql, lagrange": ("cql", {"lagrange": 5.0, "bc_updates": 3}),
    "bc, choices": ("bc", {"env_id": "CartPole-v1"}),
    "dreamer, boxes, laprop": ("dreamer", {"env_id": "Pendulum-v1", "optimizer": "laprop"}),
    "gail, absorbing": ("gail", {"absorbing": True, "bc_updates": 5}),
    "pets, ts1, icem": ("pets", {"propagation": "ts1", "planner": "icem"}),
}


def digests(state: Any) -> Counter[str]:
    """How often each tensor, by shape, type and bytes, appears in a nested state."""
    import torch

    if isinstance(state, torch.Tensor):
        content = state.detach().contiguous().numpy().tobytes()
        return Counter([f"{tuple(state.shape)} {state.dtype} {hashlib.sha256(content).hexdigest()[:16]}"])
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum((digests(part) for part in parts), Counter())


def described(algo: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One tiny run: its tensors and metrics."""
    from rl_training.experiment.checkpointing import load_checkpoint
    from rl_training.experiment.registry import get_algorithm_spec
    from toys import tiny_config

    with tempfile.TemporaryDirectory() as folder:
        config = tiny_config(algo, Path(folder), compile=False, **changes)
        result = get_algorithm_spec(algo).train(config)
        state = load_checkpoint(result.checkpoint_path)
        return {
            "agent": digests(state.algorithm_state),
            "rest": digests(state.buffer_state),
            "metrics": {name: repr(value) for name, value in sorted(result.metrics.items())},
        }


def write(path: Path) -> None:
    import torch

    import rl_training
    from toys import SMOKE

    torch.set_num_threads(1)
    print(f"source: {Path(rl_training.__file__).parent}")
    runs: dict[str, tuple[str, dict[str, Any]]] = {algo: (algo, {}) for algo in SMOKE} | VARIANTS
    content = {}
    for name, (algo, changes) in runs.items():
        content[name] = described(algo, changes)
        print(f"{name}: {sum(content[name]['agent'].values())} tensors", flush=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    different = 0
    for name in sorted({*old, *new}):
        first, second = old.get(name), new.get(name)
        if first is None or second is None:
            different += 1
            print(f"{name}: only in {after if first is None else before}")
            continue
        parts = {
            part: (len(first[part].items() - second[part].items()), len(second[part].items() - first[part].items()))
            for part in ("agent", "rest", "metrics")
        }
        same = not any(map(any, parts.values()))
        different += not same
        gone = ", ".join(f"{part} -{lost} +{new}" for part, (lost, new) in parts.items() if lost or new)
        print(f"{name}: {'the same' if same else 'DIFFERS: ' + gone}")
    return 1 if different else 0


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "write":
        write(Path(arguments[1]))
        return 0
    if len(arguments) == 3 and arguments[0] == "compare":
        return compare(Path(arguments[1]), Path(arguments[2]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
