"""What every algorithm is: networks and optimizers that can act, learn, and be saved."""

from __future__ import annotations

import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.base.batches import Tensors
from rl_training.base.metrics import Metrics, separate
from rl_training.base.state import Stateful
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.overrides import watch
from rl_training.optim.compiled import Compiled
from rl_training.optim.flat import MOVED, FlatOptimizer, FlatParameters

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


class Networks:
    """The networks a learner was made with, and whether they are still those that its optimizers and graphs were made for."""

    def __init__(self, learner: Learner) -> None:
        self._owner = type(learner).__name__
        self._modules = {name: part for name, part in vars(learner).items() if isinstance(part, nn.Module)}
        self._flats = list(_flats(vars(learner).values()))
        present = self._present()
        self._learned = {id(p) for flat in self._flats for p in flat.params} & present
        self.same = watch(vars(learner))
        self._held = [m._parameters.values() for part in self._modules.values() for m in part.modules()]
        self._parameters = list(chain.from_iterable(self._held))

    def same_objects(self) -> bool:
        """Whether the parameters are also the same objects, which autograd goes by (graphs go by memory)."""
        return all(map(is_, chain.from_iterable(self._held), self._parameters))

    def _present(self) -> set[int]:
        return {id(p) for module in self._modules.values() for p in module.parameters()}

    def check(self, learner: Learner) -> None:
        """Refuse networks that were re-assigned: what is learned would not be what they are."""
        held = vars(learner)
        for name, module in self._modules.items():
            if held.get(name) is not module:
                raise RuntimeError(
                    f"{self._owner}.{name} was re-assigned after the learner was made, so its optimizers do not know the new one: "
                    "make a learner of it, or copy its values with load_state_dict"
                )

    def check_memory(self, learner: Learner) -> None:
        """Refuse networks whose parameters were moved or replaced: their optimizers would change something else."""
        self.check(learner)
        if not all(flat.attached for flat in self._flats):
            raise RuntimeError(f"{self._owner}: {MOVED}")
        if not self._learned <= self._present():
            raise RuntimeError(
                f"{self._owner}: a module or parameter was replaced after the learner was made, so its optimizers do not know the new "
                "one: make the learner after replacing it, or copy its values with load_state_dict"
            )


def _flats(things: Any) -> Iterator[FlatParameters]:
    for thing in things:
        if isinstance(thing, FlatParameters):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from _flats(thing)


class _Made(ABCMeta):
    """Lets a learner look at its networks once its constructor, or a subclass's, is through."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        learner = super().__call__(*args, **kwargs)
        learner._networks = Networks(learner)
        return learner


class Learner(Stateful, metaclass=_Made):
    """Networks and optimizers with ``act`` and ``update``; knows no environment, file or logger.

    ``act`` takes and gives arrays on the host: observations (N, ...) to actions (N, ...), boxes in [-1, 1]. ``update`` takes
    a dict of tensors. A subclass writes ``_learn(batch) -> tensors`` (or several such ``PARTS``), a pure function of tensors, so
    that it can run eagerly or as one compiled graph, and what surrounds it in ``update``.

    ``copy.deepcopy`` gives a learner of its own, which acts and learns as this one would and shares no memory with it.
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
        self._networks.check(self)
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
    _networks: Networks

    @property
    def compiled(self) -> bool:
        """Whether updates run as compiled graphs; False too if that was tried and failed."""
        return self._run is not None and all(part.failed is None for part in self._run.values())

    def learn(self, batch: Tensors, part: str = "_learn") -> tuple[Metrics, Tensors]:
        """``_learn`` (or another of ``PARTS``), eager or compiled: its scalars as metrics, and whatever else it returns."""
        if not self._networks.same():
            self._check_networks()
        if self._run is not None:
            graph = self._run[part]
            return graph(batch) if graph.used else self._first_graph(graph, batch)
        if not self._networks.same_objects():
            self._check_networks()
        names, scalars, rest = separate(getattr(self, part)(batch))
        return Metrics(names, scalars), rest

    def _first_graph(self, graph: Compiled, batch: Tensors) -> tuple[Metrics, Tensors]:
        result = graph(batch)
        self._check_networks()  # a network that changes itself does so here for the first time
        return result

    def _check_networks(self) -> None:
        """Refuse changes of the networks that learning would miss; the rest (a hook, a buffer) only graphs would miss."""
        if self._networks.same() and self._networks.same_objects():
            return
        self._networks.check_memory(self)
        self._networks = Networks(self)
        if self._run is not None and any(part.used for part in self._run.values()):
            self._run = None
            warnings.warn(
                f"{type(self).__name__}: updates run eagerly from now on, since a network was changed after they were compiled",
                stacklevel=4,
            )

    def __getstate__(self) -> dict[str, Any]:
        self._networks.check_memory(self)
        return {name: value for name, value in vars(self).items() if name != "_networks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._networks = Networks(self)

    def __copy__(self) -> Any:
        raise TypeError(
            f"copy.copy of a {type(self).__name__} would share its networks and optimizers: use copy.deepcopy"
        )

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


_shared = np.random.default_rng()


def stream(rng: np.random.Generator | None) -> np.random.Generator:
    """The given stream, or an unseeded one for callers who do not care which action they get."""
    return _shared if rng is None else rng
