"""Counters and random streams of a run: what a checkpoint keeps of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.base.saved import Saved, within
from rl_training.base.state import Rng, Stateful
from rl_training.data.offline_dataset import REFERENCES

__all__ = ["Counters", "TorchRng", "reference_returns"]


class TorchRng:
    """Torch's global generators, as a part that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("cpu", "cuda"))
        torch.set_rng_state(torch.from_numpy(saved.array("cpu", np.uint8, tuple(torch.get_rng_state().shape))))
        for device, one in zip(range(torch.cuda.device_count()), saved.items("cuda")):
            torch.cuda.set_rng_state(one, device)


def reference_returns(state: dict[str, Any]) -> dict[str, float]:
    """The returns of a random and an expert policy that a run's saved state has; none if it has none."""
    with within("references"):
        saved = state.get("references", {})
        references = Saved(saved, (), REFERENCES)
        return {name: references.number(name) for name in saved}


class Counters(Stateful):
    """Steps, updates, epochs and named counts of a run, its reference returns and its random streams."""

    STATE = ("step", "update_count", "gradient_steps", "epoch", "counters", "references")

    def __init__(self, seed: int) -> None:
        self.step = self.update_count = self.gradient_steps = self.epoch = 0
        self.counters: dict[str, int] = {}
        self.references: dict[str, float] = {}  # returns of a random and an expert policy, where they are known
        self.torch_rng = TorchRng()
        self._seed = seed
        torch.manual_seed(seed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with within("counters"):
            counters = Saved(state["counters"], state["counters"])
            for name in state["counters"]:
                counters.count(name)
        reference_returns(state)
        super().load_state_dict(state)

    def rng(self, name: str) -> Rng:
        """A random stream of its own for each purpose."""
        return Rng(self._seed, name)

    def count(self, name: str) -> int:
        """Add one to a named counter; returns how many there are now."""
        self.counters[name] = self.counters.get(name, 0) + 1
        return self.counters[name]

    def set_reference_returns(self, meta: Mapping[str, Any]) -> None:
        """Take a random and an expert policy's return from a dataset's facts, to score evaluations between them."""
        self.references = {name: float(meta[name]) for name in REFERENCES if meta.get(name) is not None}

    @property
    def untrained(self) -> bool:
        """Whether no update of any kind has been made yet."""
        return self.update_count == 0 and self.gradient_steps == 0

    def totals(self) -> dict[str, int]:
        """The counts that every line of metrics has."""
        return {"gradient_steps": self.gradient_steps, "update_count": self.update_count, "epoch": self.epoch}
