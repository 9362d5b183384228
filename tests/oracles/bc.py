"""Behaviour cloning (Pomerleau, 1989): squared error, or the likelihood of the data's actions. Nothing is drawn."""

from __future__ import annotations

from typing import Literal

import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from oracles.actors import Batch, Weights, adam, descend, perceptron


class BC:
    """``kind``: of the policy. ``choices``: how many there are of each, for several choices."""

    def __init__(
        self, weights: Batch, *, learning_rate: float,
        kind: Literal["mse", "likelihood", "discrete", "multi_discrete", "multi_binary"],
        choices: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.weights, self.kind, self.choices = Weights(weights), kind, choices
        self.optimizer = adam(list(self.weights.values()), learning_rate)

    def policies(self, outputs: torch.Tensor) -> list:
        """The distributions over the parts of an action."""
        if self.kind == "likelihood":
            mean, log_std = outputs.chunk(2, -1)
            gaussian = Normal(mean, log_std.clamp(-20, 2).exp())
            return [Independent(TransformedDistribution(gaussian, [TanhTransform()]), 1)]
        if self.kind == "multi_binary":
            return [Independent(Bernoulli(logits=outputs), 1)]
        return [Categorical(logits=part) for part in outputs.split(self.choices, -1)]

    def update(self, batch: Batch) -> dict[str, float]:
        outputs, actions = perceptron(self.weights, "body", batch["obs"]), batch["actions"]
        metrics = {}
        if self.kind == "mse":
            logprobs = -((outputs.tanh() - actions) ** 2).mean(-1)
        else:
            policies = self.policies(outputs)
            parts = actions.unbind(-1) if self.kind == "multi_discrete" else [actions]
            parts = [part.to(outputs.dtype) for part in parts] if self.kind == "multi_binary" else parts
            logprobs = sum(policy.log_prob(part) for policy, part in zip(policies, parts))
            if self.kind != "likelihood":  # the entropy of a squashed Gaussian has no closed form
                metrics["entropy"] = sum(policy.entropy() for policy in policies).mean()
        loss = -logprobs.mean()
        descend((self.optimizer, loss))
        return {"loss": loss, "logprob_mean": logprobs.mean(), **metrics}
