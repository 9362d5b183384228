"""State composes by attribute: the one rule behind checkpoints and exact resume."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar

import numpy as np
from torch import nn

from rl_training.base.saved import Saved, StateError, alike, within

__all__ = ["Rng", "Stateful", "set_generator"]


class Stateful:
    """An object whose state is that of its attributes.

    Every public attribute with a ``state_dict`` is a part and is saved under its own name; plain values listed in
    ``STATE`` are saved as they are. A leading underscore marks scratch: never saved. Loading is strict: a value has the
    type of the present one, and the tensors of modules have the types and shapes of the present ones.
    """

    STATE: ClassVar[tuple[str, ...]] = ()

    def _parts(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k[0] != "_" and hasattr(v, "state_dict")}

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.STATE}
        return values | {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        parts = self._parts()
        Saved(state, {*parts, *self.STATE})
        for name in self.STATE:
            with within(name):
                present = getattr(self, name)
                if isinstance(present, dict):  # of whatever names
                    Saved(state[name], (), state[name])
                else:
                    alike(state[name], present)
                setattr(self, name, state[name])
        for name, part in parts.items():
            with within(name):
                if isinstance(part, nn.Module):
                    alike(state[name], dict(part.state_dict()))
                part.load_state_dict(state[name])


class Rng:
    """A named random stream; adding a new consumer never shifts the numbers of another one."""

    def __init__(self, seed: int, name: str) -> None:
        self.generator = np.random.default_rng(np.random.SeedSequence((seed, zlib.crc32(name.encode()))))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_generator(self.generator, state)


def set_generator(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Give a generator (PCG64) a saved state."""
    saved = Saved(state, ("bit_generator", "state", "has_uint32", "uinteger"))
    if saved["bit_generator"] != generator.bit_generator.state["bit_generator"]:
        raise StateError("is of another kind of generator", "bit_generator")
    saved.count("has_uint32", most=1)
    saved.count("uinteger", most=2**32 - 1)
    with within("state"):
        inner = Saved(saved["state"], ("state", "inc"))
        inner.count("state", most=2**128 - 1)
        inner.count("inc", most=2**128 - 1)
    generator.bit_generator.state = state
