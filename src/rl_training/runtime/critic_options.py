"""Options of learners with an actor and critics, shared by online, offline and model-based trainers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from rl_training.base.options import Sizes, opt
from rl_training.runtime.loops.offline import OfflineOptions
from rl_training.runtime.network_options import NetworkOptions, OptimizerOptions
from rl_training.runtime.spec import Blueprint, Network

__all__ = ["OfflineCriticOptions", "SoftOptions", "Temperature"]


def _temperature(value: float | str) -> float | str:
    if not isinstance(value, str) and value < 0:
        raise ValueError(f"must be 'auto' or at least 0, got {value}")
    return value


Temperature = Annotated[float | Literal["auto"], AfterValidator(_temperature)]


class SoftOptions(NetworkOptions):
    """Discount, temperature and target critics of SAC, wherever its batches come from."""

    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers of actor and critics")
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    alpha: Temperature = opt("auto", "temperature: a number, or auto to tune it to target_entropy")
    target_entropy: float | None = opt(None, "entropy a tuned temperature aims for; null: minus the action dimension")
    tau: float = opt(0.005, "how far target critics move per update", gt=0, le=1)

    def soft(self) -> dict[str, Any]:
        """The learner's arguments that follow from these."""
        return self.pick({"gamma", "alpha", "target_entropy", "tau"})


class OfflineCriticOptions(NetworkOptions, OptimizerOptions, OfflineOptions):
    """What offline learners of values have in common."""

    hidden_sizes: Sizes = opt((256, 256), "widths of the hidden layers")
    learning_rate: float = opt(3e-4, "step size of Adam, for every network", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    tau: float = opt(0.005, "how far target networks move, each time they do", gt=0, le=1)
    normalize_observations: bool = opt(False, "scale observations by the data's mean and deviation")

    def arguments(self, plan: Blueprint, *names: str) -> dict[str, Any]:
        """The learner's arguments: these options, those of the given ``names``, and the normalizer of observations."""
        normalizer = plan.normalizer(self.normalize_observations, clip=float("inf"))
        own = self.pick({"learning_rate", "gamma", "tau", *names})
        return {**own, "normalizer": normalizer, "optimizer": self.optimizer_factory()}

    def model(self, plan: Blueprint, network: Network) -> Any:
        """The networks, of the task's sizes."""
        return self.network(
            plan, network, **plan.shape, action_dim=plan.spaces.action_dim, hidden_sizes=self.hidden_sizes
        )
