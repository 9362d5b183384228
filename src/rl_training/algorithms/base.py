"""The contract of a learner: networks and optimizers that act, learn, and can be saved and copied.

A new algorithm is a subclass of ``Learner``:

1. ``__init__`` makes networks and optimizers (``optim.flat``) as public attributes, which are saved; what starts with
   an underscore is not. Modules are on their device before their optimizer is made, and stay there.
2. ``_act`` maps observations to actions, on the host.
3. ``_learn`` maps a batch to tensors: target, losses, ``descend``. It is a function of tensors without ``.item()``, so
   that it runs eagerly or as one compiled graph. A coefficient that changes while learning is a tensor, which a graph
   sees.
4. ``update`` calls ``self.learn(batch)`` and says what was done.
"""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.base.batches import Tensors
from rl_training.base.metrics import Metrics
from rl_training.base.state import Stateful
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.optim.flat import FlatOptimizer
from rl_training.optim.updates import Updates

__all__ = ["Acting", "Greedy", "Learner", "Metrics", "Tensors", "UpdateResult", "stream"]


@dataclass(slots=True)
class UpdateResult:
    """Metrics of an update, and how many gradient steps it took."""

    metrics: Mapping[str, float]
    num_gradient_steps: int


class Acting(NamedTuple):
    """Actions, what to store beside them, and the recurrent state to pass to the next call."""

    actions: np.ndarray
    extras: dict[str, np.ndarray] = {}
    carry: Any = None


class _AfterInit(ABCMeta):
    """Calls ``_made`` when the constructor, or a subclass's, has returned."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            learner = super().__call__(*args, **kwargs)
        except TypeError as error:
            raise cls._of_this_class(error) from None
        learner._made()
        return learner

    def _of_this_class(cls, error: TypeError) -> TypeError:
        """What is wrong with arguments, said of the class that was called, not of one that it inherits from."""
        text = re.sub(r"^\w+\.__init__\(\)", f"{cls.__name__}()", str(error))
        return error if text == str(error) else TypeError(text)


class Learner(Stateful, metaclass=_AfterInit):
    """Networks and optimizers with ``act`` and ``update``; independent of environments, files and loggers.

    ``copy.deepcopy`` gives a learner of its own, which acts and learns as this one would and shares no memory with it.
    """

    CONTROLS: ClassVar[tuple[str, ...]] = ()  # coefficients that schedules may change, beside the learning rate
    PARTS: ClassVar[tuple[str, ...]] = ("_learn",)  # the methods, batch to tensors, that updates are made of
    COMPILE_THRESHOLD: ClassVar[int] = 50_000  # updates after which a compiled update has paid for its compilation
    EAGER: ClassVar[str] = ""  # why updates are not compiled at all, where they are not

    normalizer: ObservationNormalizer | None = None  # scales observations, where a run asks for it
    training = True  # as modules have it
    _updates: Updates

    # ---- acting

    def act(
        self,
        obs: np.ndarray,
        *,
        carry: Any = None,
        deterministic: bool = False,
        step: int = 0,
        rng: np.random.Generator | None = None,
    ) -> Acting:
        """Actions (N, ...) for observations (N, ...), both on the host; boxes are in [-1, 1].

        ``rng`` draws what is random, and ``carry`` is what the last call returned.
        """
        self._updates.check_modules()
        if self.normalizer is not None:
            obs = self.normalizer.host(obs)
        return self._act(obs, carry, deterministic, rng)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        """``act``, for observations that are scaled already."""
        raise NotImplementedError

    def initial_carry(self, n: int) -> Any:
        """Recurrent state for ``n`` fresh episodes; None where there is none."""
        return None

    def policy_module(self) -> nn.Module:
        """The deterministic policy as a module: scaled observations (B, ...) to scores of choices, or a box's actions.

        A recurrent one maps (obs, carry) to (scores or actions, carry), and has ``margin(obs, carry)``: how far each
        row's choices within were from others, (B,).
        """
        raise ValueError(f"{type(self).__name__} has no policy that could be exported")

    # ---- learning

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One update from a batch of tensors."""
        raise NotImplementedError

    def _learn(self, batch: Tensors) -> Tensors:
        """One gradient step from a batch, as a function of tensors; scalars among its results are metrics."""
        raise NotImplementedError

    def learn(self, batch: Tensors, part: str = "_learn") -> tuple[Metrics, Tensors]:
        """Run ``_learn`` (or another of ``PARTS``), eager or compiled: its scalars as metrics, and its other
        tensors."""
        return self._updates.run(part, batch)

    def _observations(self, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch's observations and next observations, scaled where a run asks for it."""
        if self.normalizer is None:
            return batch["obs"], batch["next_obs"]
        return self.normalizer(batch["obs"]), self.normalizer(batch["next_obs"])

    def optimizers(self) -> list[FlatOptimizer]:
        """The optimizers whose learning rate a schedule changes."""
        return [part for part in vars(self).values() if isinstance(part, FlatOptimizer)]

    def control(self, name: str) -> float:
        """The value of a scheduled coefficient."""
        return float(getattr(self, f"_{name}"))

    def set_control(self, name: str, value: float) -> None:
        """Set a scheduled coefficient; coefficients are tensors so that compiled updates see them."""
        current = getattr(self, f"_{name}")
        if isinstance(current, torch.Tensor):
            current.fill_(value)
        else:
            setattr(self, f"_{name}", value)

    def use_compiled(self, *, safe: bool = False) -> None:
        """Run updates as compiled graphs from now on, one for each part (``optim.compiled``)."""
        self._updates.compile(self.PARTS, safe=safe)

    @property
    def compiled(self) -> bool:
        """Whether updates run as compiled graphs; False too if compiling failed."""
        graphs = self._updates.graphs
        return bool(graphs) and all(graph.failed is None for graph in graphs)

    def set_train_mode(self) -> None:
        """Put all modules into training mode."""
        self._mode(True)

    def set_eval_mode(self) -> None:
        """Put all modules into evaluation mode."""
        self._mode(False)

    def _mode(self, training: bool) -> None:
        self.training = training
        for part in self._parts().values():
            if isinstance(part, nn.Module):
                part.train(training)
            elif isinstance(part, Learner):
                part._mode(training)

    # ---- the networks that it was made with, and copies

    def _made(self) -> None:
        self._updates = Updates(self)

    def _check_networks(self) -> None:
        """Refuse networks that were moved or replaced; for updates that do not go through ``learn``."""
        self._updates.check()

    def __getstate__(self) -> dict[str, Any]:
        self._updates.check_memory()
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._updates.remember_networks()

    def __copy__(self) -> Any:
        raise TypeError(
            f"copy.copy of a {type(self).__name__} would share its networks and optimizers: use copy.deepcopy"
        )


class Greedy(nn.Module):
    """``function(network, obs)`` as a module, which can be copied and traced with the network's weights."""

    def __init__(self, network: nn.Module, function: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self._function = network, function

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self._function(self.network, obs)


_shared = np.random.default_rng()


def stream(rng: np.random.Generator | None) -> np.random.Generator:
    """The given stream of random numbers, or an unseeded one that all callers without a stream share."""
    return _shared if rng is None else rng
