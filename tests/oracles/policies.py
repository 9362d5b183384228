"""Actor-critic networks and action distributions of on-policy learning, in plain torch: weights by name, layers one by one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, kl_divergence
from torch.nn import functional as F


class Weights:
    """A copy of a network's weights, by the names of its state dict."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.weights = {name: value.detach().clone().requires_grad_() for name, value in state.items()}

    def parameters(self) -> list[Tensor]:
        return list(self.weights.values())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.weights.items()}

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def convolutions(self, name: str, images: Tensor) -> Tensor:
        """The three convolutions of Mnih et al. (2015), of strides four, two and one."""
        x = images.to(self.weights[f"{name}.1.weight"].dtype) / 255
        for layer, stride in ((1, 4), (3, 2), (5, 1)):
            x = F.conv2d(x, self.weights[f"{name}.{layer}.weight"], self.weights[f"{name}.{layer}.bias"], stride)
            x = x.clamp(min=0)
        return x.flatten(1)


class ActorCritic(Weights):
    """Policy and value of an observation. ``detached``: the value is computed from features that get no gradient of it."""

    def __init__(
        self, state: Mapping[str, Tensor], actions: str, choices: tuple[int, ...] = (), *, detached: bool = False
    ) -> None:
        """``actions``: discrete, multi_discrete (of ``choices``), multi_binary or box."""
        super().__init__(state)
        self._actions, self._choices, self._detached = actions, choices, detached

    def features(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What the policy and the value are computed from."""
        if obs.ndim == 4:
            shared = "trunk.0.1.weight" in self.weights
            policy, value = (
                self._pixels(trunk, obs)
                for trunk in ((("trunk",) * 2) if shared else ("trunk.towers.0", "trunk.towers.1"))
            )
        elif self.weights["trunk.0.weight"].ndim == 2:
            policy = value = self._tower(obs, None)
        else:
            policy, value = self._tower(obs, 0), self._tower(obs, 1)
        return policy, value.detach() if self._detached else value

    def _tower(self, x: Tensor, member: int | None) -> Tensor:
        """Layers of tanh: of one network, or of one of the two whose weights (2, in, out) lie side by side."""
        for layer in range(0, 20, 2):
            name = f"trunk.{layer}"
            if f"{name}.weight" in self.weights:
                if member is None:
                    x = self.linear(name, x).tanh()
                else:
                    x = (x @ self.weights[f"{name}.weight"][member] + self.weights[f"{name}.bias"][member]).tanh()
        return x

    def _pixels(self, trunk: str, images: Tensor) -> Tensor:
        x = self.convolutions(f"{trunk}.0", images)
        for layer in range(1, 20):
            if f"{trunk}.{layer}.weight" in self.weights:
                x = self.linear(f"{trunk}.{layer}", x).clamp(min=0)
        return x

    def policies(self, obs: Tensor) -> list[Distribution]:
        """Independent distributions, one for each part of an action."""
        outputs = self.linear("policy_head", self.features(obs)[0])
        if self._actions == "discrete":
            return [Categorical(logits=outputs)]
        if self._actions == "multi_discrete":
            return [Categorical(logits=part) for part in outputs.split(self._choices, -1)]
        if self._actions == "multi_binary":
            return [Independent(Bernoulli(logits=outputs), 1)]
        return [Independent(Normal(outputs, self.weights["log_std"].exp()), 1)]

    def values(self, obs: Tensor) -> Tensor:
        return self.linear("value_head", self.features(obs)[1])[:, 0]

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        policies = self.policies(obs)
        if self._actions == "multi_discrete":
            return sum(policy.log_prob(actions[:, part]) for part, policy in enumerate(policies))
        return policies[0].log_prob(
            actions if self._actions == "discrete" else actions.to(self.weights["policy_head.bias"])
        )

    def entropy(self, obs: Tensor) -> Tensor:
        return sum(policy.entropy() for policy in self.policies(obs))


def divergence(p: list[Distribution], q: list[Distribution]) -> Tensor:
    """KL(p || q) for each row."""
    return sum(kl_divergence(first, second) for first, second in zip(p, q))
