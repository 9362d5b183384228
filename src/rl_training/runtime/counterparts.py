"""Which parts of one algorithm's agent mean the same as parts of another's: what ``init_from`` may take.

Algorithms of a family name their parts alike, and parts of the same name mean the same. Between other algorithms a
``Route`` declares what is taken. A policy is then seen in one form, whatever network it is a part of: its hidden
layers, the outputs that choose the action (scores of choices, or the mean of a box's action), and the outputs that give
its deviation, as views of the networks' tensors that can be written to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["CRITICS_FORM", "FAMILIES", "PolicyTensors", "Route", "partners_of", "policy_of", "route"]

PartTensors = Mapping[str, torch.Tensor]
AgentParts = Mapping[str, PartTensors]  # the parts of an agent by name (model.actor), each as its tensors
LayerTensors = list[tuple[torch.Tensor, torch.Tensor]]  # weight (out, in, ...) and bias (out,) of each

SOFT = ("sac", "cql", "rlpd", "mbpo", "mopo")  # an actor with a squashed Gaussian, and critics
OFFLINE = ("iql", "td3_bc")  # an actor whose mean is a tanh, and critics without entropy
ON_POLICY = ("ppo", "ppg", "gail")

# algorithms whose parts of the same name mean the same
FAMILIES = (SOFT, ("ppo", "ppg"), ("iqn", "fqf"), ("dqn", "cql"))

DEVIATION = ("model.log_std",)
CRITICS = ("model.critics", "target_model.critics")
CRITICS_FORM = ("num_critics", "layer_norm")  # options of those that have them
STARTING_STD = 0.3  # of a Gaussian policy that takes the place of one without a deviation like its own


@dataclass(frozen=True)
class Route:
    """What agents of ``sources`` give to those of ``targets``: the policy, and the parts that ``units`` names."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    units: tuple[str, ...] = ()
    note: str = ""  # how what is taken differs from what it becomes


ROUTES = (
    Route(("bc",), (*SOFT, *OFFLINE)),
    Route(
        ("bc",),
        ON_POLICY,
        note="where actions are boxes, the outputs before the tanh become the mean, which is clipped instead",
    ),
    Route(("iql",), (*SOFT, "td3_bc"), units=CRITICS, note="the critics' values are r + γ V, without entropy"),
    Route(("td3_bc",), (*SOFT, "iql"), units=CRITICS, note="the critics' values are without entropy"),
    Route(("ppo", "ppg"), ("gail",), units=DEVIATION, note="the values are new, because the rewards are others"),
    Route(("gail",), ("ppo", "ppg"), units=DEVIATION, note="the values are new, because the rewards are others"),
)


def route(source: str, target: str) -> Route | None:
    """What is taken from an agent of ``source``; None where parts of the same name are."""
    return next((one for one in ROUTES if source in one.sources and target in one.targets), None)


def partners_of(target: str) -> list[str]:
    """The algorithms whose agents an agent of ``target`` can start from, itself first."""
    alike = [name for family in FAMILIES if target in family for name in family]
    routed = [name for one in ROUTES if target in one.targets for name in one.sources]
    return list(dict.fromkeys((target, *alike, *routed)))


class PolicyTensors(NamedTuple):
    """A policy network, as views of its tensors, and the names of the parts that it consists of."""

    hidden: LayerTensors
    best: tuple[torch.Tensor, torch.Tensor]  # the outputs that choose the action: weight (A, in) and bias (A,)
    deviation: tuple[torch.Tensor, torch.Tensor] | None  # the outputs of log-deviations of a squashed Gaussian, alike
    units: tuple[str, ...]
    beside: str = ""  # what else these parts hold, which is not taken with it

    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(weight.shape) for weight, _ in (*self.hidden, self.best)]

    def take(self, other: PolicyTensors) -> bool:
        """Copy another policy of the same shapes; whether its deviation was taken too. Where there is none to take, the
        deviation starts at the same small value everywhere: drawn weights on trained features could give any."""
        for (weight, bias), (from_weight, from_bias) in zip((*self.hidden, self.best), (*other.hidden, other.best)):
            weight.copy_(from_weight)
            bias.copy_(from_bias)
        if self.deviation is None:
            return True
        weight, bias = self.deviation
        if other.deviation is None:
            weight.zero_()
            bias.fill_(math.log(STARTING_STD))
            return False
        weight.copy_(other.deviation[0])
        bias.copy_(other.deviation[1])
        return True


def policy_of(algo: str, options: Mapping[str, Any], units: AgentParts) -> PolicyTensors | None:
    """The policy of an agent; None if its network is not this package's own."""
    try:
        if algo in ON_POLICY:
            return _of_actor_critic(units)
        name = "policy.body" if algo == "bc" else "policy.model.actor" if algo in ("mbpo", "mopo") else "model.actor"
        *hidden, last = _layers(units[name])
    except (KeyError, ValueError):
        return None
    gaussian = algo in SOFT or (algo == "bc" and options.get("loss") == "likelihood")
    if not gaussian:
        return PolicyTensors(hidden, last, None, (name,))
    (mean, log_std), (mean_bias, log_std_bias) = (part.chunk(2) for part in last)
    return PolicyTensors(hidden, (mean, mean_bias), (log_std, log_std_bias), (name,))


def _of_actor_critic(units: AgentParts) -> PolicyTensors:
    """Of the two towers for vectors, the first is the policy's."""
    layers, beside = _layers(units["model.trunk"]), ""
    if layers and all(weight.ndim == 3 for weight, _ in layers):
        layers, beside = [(weight[0].t(), bias[0, 0]) for weight, bias in layers], "the values' half of model.trunk"
    [head] = _layers({f"0.{name}": tensor for name, tensor in units["model.policy_head"].items()})
    return PolicyTensors(layers, head, None, ("model.trunk", "model.policy_head"), beside)


def _layers(tensors: PartTensors) -> LayerTensors:
    """Weights and biases by the order of their layers; a ``ValueError`` for a module of other things."""
    if not tensors or {name.rpartition(".")[2] for name in tensors} != {"weight", "bias"}:
        raise ValueError("not a stack of layers")
    order = {tuple(map(int, name.split(".")[:-1])): name.rpartition(".")[0] for name in tensors}
    return [(tensors[f"{order[place]}.weight"], tensors[f"{order[place]}.bias"]) for place in sorted(order)]
