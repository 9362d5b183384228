"""Generative Adversarial Imitation Learning (Ho & Ermon, 2016): the discriminator, its rewards, and cloning as a warm start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from oracles.normalisers import ObservationStatistics
from oracles.policies import Weights
from oracles.ppo import PPO, adam, step


class Discriminator(Weights):
    """D(obs, action), the probability that the expert did it, as sigmoid of a perceptron with tanh between its layers."""

    def __init__(
        self, state: Mapping[str, Tensor], choices: int | None, *, normalize: bool, absorbing: bool = False
    ) -> None:
        """``choices``: the number of discrete actions, which become one-hot; None for boxes."""
        super().__init__({name: value for name, value in state.items() if not name.startswith("normalizer.")})
        self._choices, self._absorbing = choices, absorbing
        self.statistics = ObservationStatistics() if normalize else None

    def inputs(self, obs: Tensor, actions: Tensor, absorbed: Tensor | None = None) -> Tensor:
        """Features of the observation and the action side by side; zeros and a flag of one for an absorbing state."""
        if obs.ndim == 4:
            obs = self.linear("trunk.1", self.convolutions("trunk.0", obs)).clamp(min=0)
        elif self.statistics is not None:
            obs = self.statistics.normalised(obs).to(self.weights["body.0.bias"].dtype)
        if self._choices is not None:
            actions = torch.eye(self._choices)[actions]
        rows = torch.cat([obs, actions.to(obs.dtype)], 1)
        if not self._absorbing:
            return rows
        if absorbed is None:
            absorbed = torch.zeros(len(rows))
        rows[absorbed == 1] = 0
        return torch.cat([rows, absorbed[:, None].to(rows.dtype)], 1)

    def logits(self, inputs: Tensor) -> Tensor:
        layers = sorted({int(name.split(".")[1]) for name in self.weights if name.startswith("body.")})
        for layer in layers[:-1]:
            inputs = self.linear(f"body.{layer}", inputs).tanh()
        return self.linear(f"body.{layers[-1]}", inputs)[:, 0]


class GAIL(PPO):
    """The discriminator says one for the expert and zero for the policy. PPO maximises what it makes of D."""

    def __init__(
        self, network: Any, discriminator: Discriminator, *, discriminator_learning_rate: float, reward_type: str = "softplus",
        label_smoothing: float = 0.0, gradient_penalty: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(network, **options)
        self.discriminator, self._reward_type = discriminator, reward_type
        self.discriminator_optimizer = adam(discriminator, discriminator_learning_rate, eps=1e-8)
        self._smoothing, self._penalty = label_smoothing, gradient_penalty

    def rewards(self, obs: Tensor, actions: Tensor, absorbed: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            d = self.discriminator.logits(self.discriminator.inputs(obs, actions, absorbed)).sigmoid()
        return {"softplus": -(1 - d).log(), "logsigmoid": d.log(), "logit": d.log() - (1 - d).log()}[self._reward_type]

    def update_discriminator(
        self, policy: Mapping[str, Tensor], expert: Mapping[str, Tensor], place: Tensor | None = None
    ) -> dict[str, float]:
        """``place`` (B, 1): where between the expert's and the policy's rows the gradient's norm should be one."""
        network, names = self.discriminator, ("obs", "actions", "absorbed")
        if network.statistics is not None and policy["obs"].ndim == 2:
            network.statistics.observe(torch.cat([expert["obs"], policy["obs"]]))
        theirs, ours = (network.inputs(*(rows[name] for name in names if name in rows)) for rows in (expert, policy))
        expert_logits, policy_logits = network.logits(theirs), network.logits(ours)
        high, low = 1 - self._smoothing, self._smoothing
        expert_loss = -(high * F.logsigmoid(expert_logits) + low * F.logsigmoid(-expert_logits)).mean()
        policy_loss = -(low * F.logsigmoid(policy_logits) + high * F.logsigmoid(-policy_logits)).mean()
        loss = expert_loss + policy_loss
        result = {
            "gail_discriminator_loss": loss.item(), "gail_discriminator_expert_loss": expert_loss.item(),
            "gail_discriminator_policy_loss": policy_loss.item(),
            "gail_discriminator_expert_accuracy": (expert_logits.sigmoid() > 0.5).double().mean().item(),
            "gail_discriminator_policy_accuracy": (policy_logits.sigmoid() < 0.5).double().mean().item(),
            "gail_discriminator_expert_logit_mean": expert_logits.mean().item(),
            "gail_discriminator_policy_logit_mean": policy_logits.mean().item(),
        }  # fmt: skip
        if place is not None:
            between = (place * theirs + (1 - place) * ours).detach().requires_grad_()
            (slope,) = torch.autograd.grad(network.logits(between).sum(), between, create_graph=True)
            penalty = ((slope.square().sum(1).sqrt() - 1) ** 2).mean()
            loss, result["gail_gradient_penalty"] = loss + self._penalty * penalty, penalty.item()
        step(self.discriminator_optimizer, loss, None)
        return result

    def clone(self, obs: Tensor, actions: Tensor) -> dict[str, float]:
        """Maximum likelihood of the expert's actions, by the policy's own optimizer, but for the deviation of boxes."""
        held = {name: value.detach().clone() for name, value in self.network.weights.items() if name == "log_std"}
        loss = -self.network.log_probs(obs, actions).mean()
        step(self.optimizer, loss, self.max_grad_norm)
        for name, value in held.items():
            self.network.weights[name].data.copy_(value)
        return {"clone_loss": loss.item()}

    def end_cloning(self) -> None:
        """What follows starts with an Adam that has seen nothing."""
        self.optimizer.state.clear()
