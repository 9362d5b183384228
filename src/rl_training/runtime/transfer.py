"""Starting a new run with the networks of an agent that was trained before (``init_from``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_training.algorithms.actor_critic import LogCoefficient
from rl_training.algorithms.base import Learner
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import agent_state, checksum_of, raise_on_mismatch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import find_checkpoint
from rl_training.optim.flat import FlatOptimizer

__all__ = ["FAMILIES", "Origin", "start_from"]

# algorithms whose networks of the same name mean the same; any other pair is refused
FAMILIES = (("sac", "cql", "rlpd", "mbpo", "mopo"), ("ppo", "ppg", "gail"), ("iqn", "fqf"))


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a run started from, and what became of its networks."""

    path: Path
    sha256: str
    step: int  # environment steps that its agent had been trained for
    taken: tuple[str, ...]
    left: tuple[str, ...]  # of the checkpoint, without a counterpart here, or not among ``init_parts``
    new: tuple[str, ...]  # of this run, without a counterpart there, or not among ``init_parts``

    def facts(self) -> dict[str, Any]:
        """What a run's metadata says of its parent."""
        return {"path": str(self.path.resolve()), "sha256": self.sha256, "step": self.step}

    def __str__(self) -> str:
        rest = [
            f"; {what}: {', '.join(names)}" for what, names in (("left out", self.left), ("new", self.new)) if names
        ]
        return f"weights from {self.path}, trained for {self.step:,} steps: {', '.join(self.taken)}{''.join(rest)}"


def start_from(agent: Learner, config: TrainConfig) -> Origin:
    """Copy the networks of the checkpoint that ``config.init_from`` names into a new agent.

    Networks, target networks, the normaliser of observations and tuned coefficients are copied; optimizers, buffers
    and counters start anew. ``config.init_parts`` restricts it to parts of these names.
    """
    path, state = find_checkpoint(config.init_from or "", buffers=False)
    source = str(state.config.get("algo"))
    if source != config.algo and not any({source, config.algo} <= set(family) for family in FAMILIES):
        partners = [name for family in FAMILIES if config.algo in family for name in family]
        raise _refused(
            f"an agent of {source} does not fit {config.algo}, which takes {' or '.join(partners or [config.algo])}"
        )
    with raise_on_mismatch():
        saved = agent_state(state)
    _check_normalizer(agent, saved)
    here, there = dict(_units(agent)), dict(_saved_units(saved))
    for name in config.init_parts:
        if not any(name in unit.split(".") for unit in here):
            raise ConfigError([(("init_parts",), f"{name!r} is no part of this agent, which has {', '.join(here)}")])
    requested = {name for name in here if _named(name, config.init_parts)}
    pairs = {name: _counterpart(name, there) for name in requested}
    taken = {name: other for name, other in pairs.items() if other is not None}
    for name, other in taken.items():
        _require_fit(name, here[name], there[other], source)
    if not taken:
        raise _refused(f"nothing of {path} fits: it has {', '.join(there)}; this agent has {', '.join(here)}")
    with torch.no_grad():
        for name, other in taken.items():
            for key, tensor in here[name].items():
                tensor.copy_(there[other][key])
    left = tuple(name for name in there if name not in taken.values())
    step = state.trainer_state.get("step", 0)
    facts = {
        "taken": tuple(n for n in here if n in taken),
        "left": left,
        "new": tuple(n for n in here if n not in taken),
    }
    return Origin(path, checksum_of(path), step if isinstance(step, int) else 0, **facts)


Unit = Mapping[str, torch.Tensor]  # what is taken over whole or not at all: tensors by name


def _units(learner: Learner, prefix: str = "") -> Iterator[tuple[str, Unit]]:
    """The parts of a learner's networks by name (``model.actor``), each as its tensors, which can be written to."""
    parts = learner._parts()
    tuned = {id(p) for part in parts.values() if isinstance(part, FlatOptimizer) for p in part.params}
    for name, part in parts.items():
        if isinstance(part, Learner):
            yield from _units(part, f"{prefix}{name}.")
        elif isinstance(part, nn.Module):
            yield from _grouped(f"{prefix}{name}", part.state_dict())
        elif isinstance(part, LogCoefficient) and id(part.value) in tuned:
            yield f"{prefix}{name}", {"": part.state_dict()}


def _saved_units(saved: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Unit]]:
    """The same of a saved agent, without its optimizers."""
    for name, part in saved.items():
        if isinstance(part, torch.Tensor):
            yield f"{prefix}{name}", {"": part}
        elif isinstance(part, dict) and not name.endswith("optimizer"):
            if part and all(isinstance(value, torch.Tensor) for value in part.values()):
                yield from _grouped(f"{prefix}{name}", part)
            else:
                yield from _saved_units(part, f"{prefix}{name}.")


def _grouped(name: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, Unit]]:
    """A module's tensors by the child that they belong to."""
    children: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        child, _, rest = key.partition(".")
        children.setdefault(f"{name}.{child}", {})[rest] = tensor
    yield from children.items()


def _named(unit: str, names: Sequence[str]) -> bool:
    """Whether a part is to be taken; the normaliser belongs to every network that sees observations."""
    return not names or bool({"normalizer", *names} & set(unit.split(".")))


def _counterpart(unit: str, there: Mapping[str, Any]) -> str | None:
    """The saved part of the same name; a model-based agent's policy is another's whole agent."""
    candidates = (unit, f"policy.{unit}", unit.removeprefix("policy."))
    return next((name for name in candidates if name in there), None)


def _require_fit(unit: str, here: Unit, there: Unit, source: str) -> None:
    """Refuse a part whose tensors have other names, types or shapes."""

    def described(tensors: Unit) -> dict[str, Any]:
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}

    ours, theirs = described(here), described(there)
    if ours == theirs:
        return
    name = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
    sizes = [f"{kind[0]}" if (kind := side.get(name)) else "none" for side in (theirs, ours)]
    at = f"{unit}.{name}".rstrip(".")
    raise _refused(
        f"{at} of the {source} agent has the shape {sizes[0]}, here it is {sizes[1]}; make the networks alike, or name "
        "the parts to take in init_parts"
    )


def _check_normalizer(agent: Learner, saved: Mapping[str, Any]) -> None:
    """Networks mean nothing for observations that are scaled otherwise."""
    scaled = isinstance(saved.get("normalizer"), dict)
    if scaled != (agent.normalizer is not None):
        raise _refused(
            f"its agent {'scales' if scaled else 'does not scale'} observations and this one "
            f"{'does not' if scaled else 'does'}; set normalize_observations to {str(scaled).lower()}"
        )


def _refused(problem: str) -> ConfigError:
    return ConfigError([(("init_from",), problem)])
