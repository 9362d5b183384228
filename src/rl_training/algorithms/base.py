"""What every algorithm is: networks and optimizers that can act, learn, and be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.metrics import Metrics, separate
from rl_training.algorithms.normalizer import ObservationNormalizer
from rl_training.algorithms.optim import Compiled, FlatOptimizer, Tensors
from rl_training.state import Stateful

__all__ = ["Acting", "Learner", "Metrics", "Tensors", "UpdateResult"]


@dataclass(slots=True)
class UpdateResult:
    metrics: Mapping[str, float]
    num_gradient_steps: int


class Acting(NamedTuple):
    """Actions, what to store beside them, and the recurrent state to hand back next step."""

    actions: np.ndarray
    extras: dict[str, np.ndarray] = {}
    carry: Any = None


class Greedy(nn.Module):
    """``function(network, obs)`` as a module, which can be copied and traced with the network's weights."""

    def __init__(self, network: nn.Module, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self._function = network, function

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self._function(self.network, obs)


class Learner(Stateful):
    """Networks and optimizers with ``act`` and ``update``; knows no environment, file or logger.

    ``act`` takes and gives arrays on the host: observations (N, ...) to actions (N, ...), boxes in [-1, 1]. ``update`` takes
    a dict of tensors. A subclass writes ``_learn(batch) -> tensors`` (or several such ``PARTS``), a pure function of tensors, so
    that it can run eagerly or as one compiled graph, and what surrounds it in ``update``.
    """

    CONTROLS: ClassVar[tuple[str, ...]] = ()  # what schedules may change, beside the learning rate
    PARTS: ClassVar[tuple[str, ...]] = ("_learn",)  # the functions of tensors that its updates are made of
    WORTH_COMPILING: ClassVar[int] = 50_000  # updates after which a compiled update has paid for its compilation

    normalizer: ObservationNormalizer | None = None  # scales observations, if that is wanted

    def act(
        self,
        obs: np.ndarray,
        *,
        carry: Any = None,
        deterministic: bool = False,
        step: int = 0,
        rng: np.random.Generator | None = None,
    ) -> Acting:
        """Actions for observations (N, ...); ``rng`` is where chance comes from, and ``carry`` what the last call returned."""
        if self.normalizer is not None:
            obs = self.normalizer.host(obs)
        return self._act(obs, carry, deterministic, rng)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        """``act``, for observations that are scaled already."""
        raise NotImplementedError

    def policy_module(self) -> nn.Module:
        """Acting without chance as a module: observations (B, ...), scaled already, to the scores of choices or a box's actions.

        A recurrent one maps (obs, carry) to (scores or actions, carry), and has ``margin(obs, carry)``: how far each row's
        choices within were from others, (B,).
        """
        raise ValueError(f"{type(self).__name__} has no policy that could be exported")

    def initial_carry(self, n: int) -> Any:
        """Recurrent state for ``n`` fresh episodes; None where there is none."""
        return None

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        raise NotImplementedError

    def _learn(self, batch: Tensors) -> Tensors:
        raise NotImplementedError

    def _observations(self, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch's observations and those that followed, normalised if that is wanted."""
        if self.normalizer is None:
            return batch["obs"], batch["next_obs"]
        return self.normalizer(batch["obs"]), self.normalizer(batch["next_obs"])

    def use_compiled(self) -> None:
        """From now on, updates run as compiled graphs, one per part."""
        self._run = {part: Compiled(getattr(self, part)) for part in self.PARTS}

    _run: dict[str, Compiled] | None = None

    @property
    def compiled(self) -> bool:
        """Whether updates run as compiled graphs; False too if that was tried and failed."""
        return self._run is not None and all(part.failed is None for part in self._run.values())

    def learn(self, batch: Tensors, part: str = "_learn") -> tuple[Metrics, Tensors]:
        """``_learn`` (or another of ``PARTS``), eager or compiled: its scalars as metrics, and whatever else it returns."""
        if self._run is not None:
            return self._run[part](batch)
        names, scalars, rest = separate(getattr(self, part)(batch))
        return Metrics(names, scalars), rest

    def set_control(self, name: str, value: float) -> None:
        """Give a scheduled coefficient its value; coefficients live in tensors so that compiled updates see them."""
        current = getattr(self, f"_{name}")
        if isinstance(current, torch.Tensor):
            current.fill_(value)
        else:
            setattr(self, f"_{name}", value)

    def optimizers(self) -> list[FlatOptimizer]:
        return [part for part in vars(self).values() if isinstance(part, FlatOptimizer)]

    def set_train_mode(self) -> None:
        self._mode(True)

    def set_eval_mode(self) -> None:
        self._mode(False)

    training = True  # as modules have it

    def _mode(self, training: bool) -> None:
        self.training = training
        for part in self._parts().values():
            if isinstance(part, nn.Module):
                part.train(training)
            elif isinstance(part, Learner):
                part._mode(training)


class BoxLearner(Learner):
    """A learner of actions in [-1, 1]: ``_policy(obs)`` gives, on the host, a mean and a log-deviation (None: no chance)."""

    _policy: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        mean, log_std = self._policy(obs)
        if not deterministic and log_std is not None:
            mean = mean + np.exp(log_std) * stream(rng).standard_normal(mean.shape, dtype=np.float32)
        return Acting(self._bounded(mean))

    def _bounded(self, actions: np.ndarray) -> np.ndarray:
        return np.tanh(actions)


_shared = np.random.default_rng()


def stream(rng: np.random.Generator | None) -> np.random.Generator:
    """The given stream, or an unseeded one for callers who do not care which action they get."""
    return _shared if rng is None else rng
