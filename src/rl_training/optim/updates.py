"""Running a learner's updates, eager or compiled, on the networks that its optimizers were made for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import is_
from typing import Any

from torch import nn

from rl_training.base.batches import Tensors
from rl_training.base.metrics import Metrics, measured
from rl_training.base.watch import watch
from rl_training.optim.compiled import Compiled
from rl_training.optim.flat import MOVED, FlatParameters

__all__ = ["Updates"]


REASSIGNED = (
    "was re-assigned after the learner was made, so its optimizers do not know the new one: make a learner of it, or "
    "copy its values with load_state_dict"
)


class Updates:
    """The updates of one learner: methods that map a batch to tensors, run eagerly or as a graph each.

    Optimizers and graphs hold the memory of the networks that the learner was made with. So networks that were moved,
    replaced or re-assigned since are refused, and a network that was changed in another way (a hook, a buffer) ends
    compiled updates.
    """

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._graphs: dict[str, Compiled] = {}  # by the method's name; empty: eager
        self.remember_networks()

    def remember_networks(self) -> None:
        """Take the learner's networks, as they are now, for those that it learns."""
        held = vars(self._learner)
        self._modules = {name: part for name, part in held.items() if isinstance(part, nn.Module)}
        self._flats = list(_flats(held.values()))
        self._learned = {id(p) for flat in self._flats for p in flat.params} & self._present()
        self._same = watch(held)  # modules, memory and hooks, which graphs depend on
        self._places = [m._parameters.values() for part in self._modules.values() for m in part.modules()]
        self._parameters = list(chain.from_iterable(self._places))

    def compile(self, parts: Iterable[str], *, safe: bool) -> None:
        """Run these methods as graphs from now on; ``safe``: as torch.compile's manual has it."""
        self._graphs = {part: Compiled(getattr(self._learner, part), safe=safe) for part in parts}

    @property
    def graphs(self) -> list[Compiled]:
        """The graphs, made or to be made by their first batch; none if updates are eager."""
        return list(self._graphs.values())

    def run(self, part: str, batch: Tensors) -> tuple[Metrics, Tensors]:
        """The method of that name: its scalars as metrics, and the other tensors."""
        if not self._same():
            self.check()
        graph = self._graphs.get(part)
        if graph is None:
            if not self._same_objects():
                self.check()
            return measured(getattr(self._learner, part)(batch))
        first = not graph.used
        result = graph(batch)
        if first:
            self.check()  # a network that changes itself does so here for the first time
        return result

    def check(self) -> None:
        """Refuse networks whose changes learning would miss, and leave graphs that would miss other changes."""
        if self._same() and self._same_objects():
            return
        self.check_memory()
        self.remember_networks()
        if any(graph.used for graph in self.graphs):
            self._graphs = {}
            warnings.warn(
                f"{type(self._learner).__name__}: updates run eagerly from now on, since a network was changed after "
                "they were compiled",
                stacklevel=5,
            )

    def _same_objects(self) -> bool:
        """Whether the parameters are the same objects, which autograd goes by (graphs go by memory)."""
        return all(map(is_, chain.from_iterable(self._places), self._parameters))

    def _present(self) -> set[int]:
        return {id(p) for module in self._modules.values() for p in module.parameters()}

    def check_modules(self) -> None:
        """Refuse networks that were re-assigned: the optimizers would go on with the old ones."""
        held = vars(self._learner)
        for name, module in self._modules.items():
            if held.get(name) is not module:
                raise RuntimeError(f"{type(self._learner).__name__}.{name} {REASSIGNED}")

    def check_memory(self) -> None:
        """Refuse networks whose parameters were moved or replaced: the optimizers would change other memory."""
        self.check_modules()
        owner = type(self._learner).__name__
        if not all(flat.attached for flat in self._flats):
            raise RuntimeError(f"{owner}: {MOVED}")
        if not self._learned <= self._present():
            raise RuntimeError(
                f"{owner}: a module or parameter was replaced after the learner was made, so its optimizers do not "
                "know the new one: make the learner after replacing it, or copy its values with load_state_dict"
            )

    def __getstate__(self) -> tuple[Any, dict[str, Compiled]]:
        return self._learner, self._graphs

    def __setstate__(self, state: tuple[Any, dict[str, Compiled]]) -> None:
        self._learner, self._graphs = state  # the learner remembers its networks when it is complete


def _flats(things: Iterable[Any]) -> Iterator[FlatParameters]:
    for thing in things:
        if isinstance(thing, FlatParameters):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from _flats(thing)
