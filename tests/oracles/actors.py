"""What the references of actors and critics share: networks as functions of named weights, and steps on losses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributions import Normal, TanhTransform
from torch.nn import functional as F

Batch = Mapping[str, torch.Tensor]


class Weights(dict[str, torch.Tensor]):
    """Copies of a network's parameters, by the names of its ``state_dict``."""

    def __init__(self, state: Batch) -> None:
        super().__init__({name: value.detach().clone().requires_grad_() for name, value in state.items()})

    def of(self, *parts: str) -> list[torch.Tensor]:
        """The parameters whose names begin with one of these words."""
        return [value for name, value in self.items() if name.split(".")[0] in parts]

    def state_dict(self) -> Batch:
        return self


def adam(parameters: list[torch.Tensor], learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=learning_rate)


def perceptron(weights: Weights, part: str, x: torch.Tensor) -> torch.Tensor:
    """Linear layers with rectifiers between them."""
    places = sorted({name.rsplit(".", 1)[0] for name in weights if name.startswith(f"{part}.")})
    for place in places:
        x = x @ weights[f"{place}.weight"].T + weights[f"{place}.bias"]
        x = x if place == places[-1] else x.relu()
    return x


def critics(weights: Weights, obs: torch.Tensor, actions: torch.Tensor, layer_norm: bool = False) -> list[torch.Tensor]:
    """The values (B,) of every critic by itself; with ``layer_norm``, linear layer, normalisation, rectifier."""
    places = sorted({name.rsplit(".", 1)[0] for name in weights if name.startswith("critics.")})
    values = []
    for k in range(len(weights["critics.0.weight"])):
        x = torch.cat([obs, actions], -1)
        for number, place in enumerate(places):
            weight, bias = weights[f"{place}.weight"][k], weights[f"{place}.bias"][k, 0]
            normalises = layer_norm and number % 2 == 1
            x = F.layer_norm(x, bias.shape, weight[0], bias) if normalises else x @ weight + bias
            x = x.relu() if place != places[-1] and normalises == layer_norm else x
        values.append(x[:, 0])
    return values


def squashed(outputs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tanh of a Gaussian, whose mean and log-deviation are the ``outputs``, at given ``noise``, and its log-density."""
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    u, squash = mean + log_std.exp() * noise, TanhTransform()
    actions = squash(u)
    return actions, (Normal(0.0, 1.0).log_prob(noise) - log_std - squash.log_abs_det_jacobian(u, actions)).sum(-1)


def descend(*steps: tuple[torch.optim.Optimizer, torch.Tensor]) -> None:
    """A step of each optimizer on its loss; all gradients are taken first."""
    for optimizer, loss in steps:
        for parameter in optimizer.param_groups[0]["params"]:
            (parameter.grad,) = torch.autograd.grad(loss, parameter, retain_graph=True)
    for optimizer, _ in steps:
        optimizer.step()


def follow(target: Weights, online: Weights, tau: float, *parts: str) -> None:
    """θ' ← (1 - τ) θ' + τ θ, for the parameters of these parts."""
    for slow, fast in zip(target.of(*parts), online.of(*parts)):
        slow.data = (1 - tau) * slow.data + tau * fast.data


def smallest(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(values).min(0).values


def discounted(batch: Batch, gamma: float) -> torch.Tensor:
    """What the value of the next state is multiplied by; rows over several steps have a power of γ of their own."""
    return batch.get("discounts", gamma) * (1 - batch["dones"])
