"""Masks of actions at the end of rows of observations: which scores of choices count."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.base.parts import Parts
from rl_training.models.heads import FORBIDDEN
from rl_training.models.parts import BYTES, Taken

__all__ = ["ActionMasks", "keeping_to_masks"]


class ActionMasks:
    """Reads the masks of rows, and keeps what they forbid from being chosen: no gradient passes its scores."""

    def __init__(self, parts: Parts) -> None:
        if parts.mask is None:
            raise ValueError(f"observations of {parts.describe()} have no mask of actions")
        self._parts, self.size = parts, parts.mask.size

    @classmethod
    def of(cls, seen: Any) -> ActionMasks | None:
        """The masks of what a network observes; None where it has none."""
        return cls(seen) if isinstance(seen, Parts) and seen.mask is not None else None

    def allowed(self, x: torch.Tensor | Taken) -> torch.Tensor:
        """Which actions are allowed, (B, A), in rows (B, width) or in parts that were taken apart."""
        if not isinstance(x, torch.Tensor):
            return x[-1] > 0
        parts = self._parts
        floats = x[:, : BYTES * parts.floats].view(torch.float32) if x.dtype == torch.uint8 else x
        return floats[:, parts.floats - self.size : parts.floats] > 0

    def logits(self, outputs: torch.Tensor, x: torch.Tensor | Taken) -> torch.Tensor:
        """Logits (B, A) of allowed actions alone."""
        return torch.where(self.allowed(x), outputs, FORBIDDEN)

    def values(self, values: torch.Tensor, x: torch.Tensor | Taken) -> torch.Tensor:
        """Action values (B, A) whose maximum is that of an allowed action."""
        return torch.where(self.allowed(x), values, -torch.inf)

    def logits_on_host(self, outputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """``logits`` of arrays."""
        return np.where(self.allowed_on_host(rows), outputs, np.float32(FORBIDDEN))

    def require(self, actions: np.ndarray, rows: np.ndarray, model: Any) -> None:
        """Refuse actions (N, ...) of a model of somebody's own that has not kept to the masks."""
        sizes = getattr(model.head, "sizes", [self.size])
        indices, allowed = actions.reshape(len(actions), -1) + np.cumsum([0, *sizes[:-1]]), self.allowed_on_host(rows)
        if not np.take_along_axis(allowed, indices, 1)[allowed.any(1)].all():  # rows of a server may be empty
            raise ValueError(f"{type(model).__name__} chose an action that the environment's mask forbids")

    def allowed_on_host(self, rows: np.ndarray) -> np.ndarray:
        """Which actions are allowed, (N, A)."""
        return self._parts.allowed(rows)


def keeping_to_masks(policy: Any, own: str) -> Any:
    """The policy, if it reads masks; ``own``: the class of this package that does."""
    if getattr(policy, "masks", None) is None:
        raise ValueError(
            f"{type(policy).__name__} has no masks, and the environment gives masks of actions: subclass {own}, or set "
            "env_kwargs.action_masks: false"
        )
    return policy
