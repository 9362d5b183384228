"""A classifier of transitions that terminate, once more: torch's Adam, and a loss that is written out.

``rng``, numpy's, draws the rows of a batch: first those that terminated, then the others.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn


class ClassifierReference:
    """A copy of the body of the classifier's network, with statistics of the data."""

    def __init__(self, body: nn.Module, learning_rate: float = 1e-3) -> None:
        self.body: Any = copy.deepcopy(body)
        self.optimizer = torch.optim.Adam(self.body.parameters(), lr=learning_rate)

    def fit(self, data: dict[str, np.ndarray], rng: np.random.Generator, updates: int, rows: int) -> None:
        """Batches are half terminated, whatever share of the data is; the log-odds of that share are added afterwards."""
        inputs = np.concatenate([data["obs"], data["actions"], data["next_obs"]], 1)
        self.mean, std = inputs.mean(0), inputs.std(0)
        self.std = np.where(std < 1e-6, 1.0, std)
        kinds = [[i for i in range(len(inputs)) if (data["dones"][i] > 0) == over] for over in (True, False)]
        self.prior = math.log(len(kinds[0]) / len(kinds[1]))
        for _ in range(updates):
            terminated, others = (rng.choice(kind, rows // 2) for kind in kinds)
            over, on = self.logits(inputs[terminated]).sigmoid(), self.logits(inputs[others]).sigmoid()
            loss = -(over.log().sum() + (1 - on).log().sum()) / rows
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def logits(self, inputs: np.ndarray) -> torch.Tensor:
        scaled = torch.from_numpy((inputs - self.mean) / self.std).float()
        logits: torch.Tensor = self.body(scaled)[:, 0]
        return logits

    def __call__(self, obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            probability = (self.logits(np.concatenate([obs, actions, next_obs], 1)) + self.prior).sigmoid()
        over: np.ndarray = probability.numpy() > 0.5
        return over
