"""State composes by attribute: the one rule behind checkpoints and exact resume."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np

__all__ = ["Rng", "Stateful"]


class Stateful:
    """An object whose state is that of its attributes.

    Every public attribute with a ``state_dict`` is a part and is saved under its own name; plain values listed in
    ``STATE`` are saved as they are. A leading underscore marks scratch: never saved. Loading is strict.
    """

    STATE: ClassVar[tuple[str, ...]] = ()

    def _parts(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k[0] != "_" and hasattr(v, "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.STATE}
        return values | {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts = self._parts()
        if set(state) != {*parts, *self.STATE}:
            expected = sorted({*parts, *self.STATE})
            raise KeyError(f"{type(self).__name__}: checkpoint has {sorted(state)}, expected {expected}")
        for name in self.STATE:
            setattr(self, name, state[name])
        for name, part in parts.items():
            part.load_state_dict(state[name])


class Rng:
    """A named random stream; adding a new consumer never shifts the numbers of another one."""

    def __init__(self, seed: int, name: str) -> None:
        self.generator = np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(name.encode()))))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state
