"""The distribution of actions that mix choices and numbers: independent parts side by side in one flat array."""

from __future__ import annotations

import numpy as np
import torch

from rl_training.models.heads import DiagonalGaussian, MultiCategorical

__all__ = ["JointHead"]


class JointHead:
    """A Categorical for each number that is a choice and a Gaussian for each other one.

    ``columns`` says of each number of an action how many choices it has, 0 for one of a box. Outputs are the logits of
    all choices, the means of all others, and their log-deviations. Log-probabilities, entropies and divergences are
    sums over the parts.
    """

    def __init__(self, columns: tuple[int, ...]) -> None:
        self.chosen = [i for i, n in enumerate(columns) if n]
        self.free = [i for i, n in enumerate(columns) if not n]
        self.choices = MultiCategorical(tuple(n for n in columns if n))
        self.boxes = DiagonalGaussian(len(self.free))
        self.dim, self.size = self.boxes.dim, self.choices.size + self.boxes.size
        self.action_shape, self.action_dtype = (len(columns),), np.dtype(np.float32)
        self._back = np.argsort([*self.chosen, *self.free]).tolist()

    def sample(
        self, outputs: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        at = self.choices.size
        chosen, logp = self.choices.sample(outputs[:, :at], rng, deterministic)
        free, density = self.boxes.sample(outputs[:, at:], rng, deterministic)
        actions = np.concatenate([chosen.astype(np.float32), free], -1)[:, self._back]
        return actions, logp + density

    def evaluate(self, outputs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, numbers = outputs[:, : self.choices.size], outputs[:, self.choices.size :]
        logp, entropy = self.choices.evaluate(scores, actions[:, self.chosen].long())
        density, spread = self.boxes.evaluate(numbers, actions[:, self.free])
        return logp + density, entropy + spread

    def divergence(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        at = self.choices.size
        return self.choices.divergence(p[:, :at], q[:, :at]) + self.boxes.divergence(p[:, at:], q[:, at:])

    def best(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits of all choices, and the means of all others."""
        return outputs[:, : self.choices.size + self.dim]

    def scores(self, actions: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.choices.scores(actions[:, self.chosen].long()), actions[:, self.free]], -1)
