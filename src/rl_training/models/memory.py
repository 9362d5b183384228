"""Memory of networks: a recurrent layer after the layers that observe, and the sequences that pass through it.

Networks with a memory take ``Sequences`` in place of observations. Their trunk is the only part that knows: what
follows sees features, as without a memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.base.devices import arrays_to_device, to_host
from rl_training.models.overrides import redefined

__all__ = ["Memory", "MemoryKind", "MemorySize", "RecurrentTrunk", "Sequences", "Warmup", "memory_of", "numpy_step"]

MemoryKind = Literal["lstm", "gru"]


class MemorySize(NamedTuple):
    """The recurrent layer of a network: its kind, and its number of units."""

    kind: MemoryKind
    size: int


class Warmup(NamedTuple):
    """Steps that only bring the state up to date, without a gradient: K steps before each of B sequences."""

    rows: Any  # observations (K, B, ...)
    starts: torch.Tensor  # (K, B): 1 where an episode starts
    carry: torch.Tensor  # (B, C): the state before the first of them
    first: torch.Tensor  # (P,): which of the B each sequence goes on from; -1: it starts an episode


class Sequences:
    """Observations of P sequences, one sequence after the other, and the state (P, C) before the first of each.

    ``rows`` (M, ...) are tensors or, for acting, arrays; ``lengths`` their numbers, on the host (None: one each).
    ``pick`` (M',) are the rows whose features are wanted (None: all). ``after`` is the state (P, C) that a trunk left,
    known for single rows alone.
    """

    def __init__(
        self,
        rows: Any,
        carry: Any,
        lengths: torch.Tensor | None = None,
        *,
        pick: torch.Tensor | None = None,
        warmup: Warmup | None = None,
    ) -> None:
        self.rows, self.carry, self.lengths, self.pick, self.warmup = rows, carry, lengths, pick, warmup
        self.after: Any = None

    def __len__(self) -> int:
        if self.pick is not None:
            return len(self.pick)
        return len(self.carry) if self.lengths is None else int(self.lengths.sum())

    @property
    def device(self) -> torch.device:
        return self.carry.device  # type: ignore[no-any-return]

    def through(self, device: torch.device, function: Callable[..., Any], *arrays: np.ndarray) -> Any:
        """``function`` of these arrays and of others, as tensors on the device; tensors come back as arrays."""
        rows, carry, *others = arrays_to_device(device, self.rows, self.carry, *arrays)
        given = Sequences(rows, carry)
        y = function(given, *others)
        *results, self.after = to_host(*(y if isinstance(y, tuple) else (y,)), given.after)
        return tuple(results) if isinstance(y, tuple) else results[0]


class Memory(nn.Module):
    """An LSTM (Hochreiter & Schmidhuber, 1997) or a GRU (Cho et al., 2014) of one layer.

    Its state is one row: the output (``size``), and for an LSTM its cell (``size``) beside it.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("step",)  # by numpy, in acting

    def __init__(self, inputs: int, kind: MemoryKind, size: int) -> None:
        super().__init__()
        self.layer: Any = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)
        self.size, self.cells = size, kind == "lstm"
        self.state_size = 2 * size if self.cells else size

    def step(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """One step: inputs (B, F) and states (B, S) to states, whose first ``size`` numbers are the output."""
        layer, h = self.layer, state[:, : self.size]
        given = nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0)
        kept = nn.functional.linear(h, layer.weight_hh_l0, layer.bias_hh_l0)
        if self.cells:
            i, f, g, o = (given + kept).chunk(4, -1)
            c = f.sigmoid() * state[:, self.size :] + i.sigmoid() * g.tanh()
            return torch.cat([o.sigmoid() * c.tanh(), c], -1)
        reset, update, new = given.chunk(3, -1)
        kept_reset, kept_update, kept_new = kept.chunk(3, -1)
        n = (new + (reset + kept_reset).sigmoid() * kept_new).tanh()
        return n + (update + kept_update).sigmoid() * (h - n)

    def unroll(self, x: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Outputs (M, size) for inputs (M, F) of sequences one after the other, from states (P, S).

        They are padded to the longest and pass through torch's kernel, time first, or through a ``step`` of one's own,
        since that acts. What is padded comes after all that is real and reaches no output of it.
        """
        longest, count = int(lengths.max()), len(lengths)
        sequence = torch.repeat_interleave(torch.arange(count), lengths)
        time = torch.arange(len(sequence)) - (lengths.cumsum(0) - lengths)[sequence]
        places = (time * count + sequence).to(x.device)
        padded = x.new_zeros(longest * count, x.shape[-1]).index_copy(0, places, x).view(longest, count, -1)
        outputs = self._by_steps(padded, state) if redefined(self, "step") else self._at_once(padded, state)
        return outputs.flatten(0, 1).index_select(0, places)

    def _at_once(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        h, c = state[None, :, : self.size].contiguous(), state[None, :, self.size :].contiguous()
        outputs: torch.Tensor = self.layer(x, (h, c) if self.cells else h)[0]
        return outputs

    def _by_steps(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        outputs = []
        for rows in x:
            state = self.step(rows, state)
            outputs.append(state[:, : self.size])
        return torch.stack(outputs)


class RecurrentTrunk(nn.Module):
    """The layers that observe, followed by a memory: ``Sequences`` to features (M, R).

    With an encoder of two towers, whose features are (2, M, F), each has a memory of its own: (2, M, R). Their states
    lie side by side.
    """

    REPLACED: ClassVar[tuple[str, ...]] = ("forward",)  # by numpy, in acting

    def __init__(self, encoder: nn.Module, width: int, memory: MemorySize, towers: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.memories = nn.ModuleList(Memory(width, *memory) for _ in range(towers))
        self.state_size = sum(part.state_size for part in self.parts())

    def parts(self) -> list[Memory]:
        """The memories of all towers."""
        return [part for part in self.memories if isinstance(part, Memory)]

    def forward(self, given: Sequences) -> torch.Tensor:
        features = self.encoder(given.rows)
        if given.lengths is None:
            given.after = self._step(features, given.carry)
            outputs = [state[:, : part.size] for part, state in zip(self.parts(), self._split(given.after))]
        else:
            carry, lengths = self._warmed(given), given.lengths
            each = zip(self.parts(), self._towers(features), self._split(carry))
            outputs = [part.unroll(x, lengths, state) for part, x, state in each]
        if given.pick is not None:
            outputs = [output.index_select(0, given.pick) for output in outputs]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs)

    def _step(self, features: torch.Tensor, carry: torch.Tensor) -> torch.Tensor:
        each = zip(self.parts(), self._towers(features), self._split(carry))
        return torch.cat([part.step(x, state) for part, x, state in each], -1)

    def _towers(self, features: torch.Tensor) -> list[torch.Tensor]:
        return [features] if len(self.memories) == 1 else list(features)

    def _split(self, carry: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(carry, [part.state_size for part in self.parts()], -1)

    @torch.no_grad()
    def _warmed(self, given: Sequences) -> torch.Tensor:
        """The states that the sequences begin with."""
        if given.warmup is None:
            carry: torch.Tensor = given.carry
            return carry
        rows, starts, carry, first = given.warmup
        if len(starts):
            features = self.encoder(rows.flatten(0, 1)).unflatten(-2, starts.shape)
            for t, start in enumerate(starts):
                carry = self._step(features[..., t, :, :], carry * (1 - start)[:, None])
        return torch.where(first[:, None] >= 0, carry[first.clamp(min=0)], 0)


def memory_of(network: nn.Module) -> RecurrentTrunk | None:
    """The trunk of a network that remembers; None for one without a memory."""
    return next((part for part in network.modules() if isinstance(part, RecurrentTrunk)), None)


def numpy_step(memory: Memory) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """``Memory.step`` on arrays."""
    layer, size, cells = memory.layer, memory.size, memory.cells
    read: Callable[[Any], np.ndarray] = lambda tensor: tensor.detach().numpy()  # noqa: E731
    weight_in, weight_kept = read(layer.weight_ih_l0).T, read(layer.weight_hh_l0).T
    bias_in, bias_kept = read(layer.bias_ih_l0), read(layer.bias_hh_l0)

    def step(x: np.ndarray, state: np.ndarray) -> np.ndarray:
        h = state[:, :size]
        given, kept = np.dot(x, weight_in) + bias_in, np.dot(h, weight_kept) + bias_kept
        if cells:
            gates = given + kept
            new = np.tanh(gates[:, 2 * size : 3 * size])
            c = _sigmoid(gates[:, size : 2 * size]) * state[:, size:] + _sigmoid(gates[:, :size]) * new
            return np.concatenate([_sigmoid(gates[:, 3 * size :]) * np.tanh(c), c], -1)
        gates = _sigmoid(given[:, : 2 * size] + kept[:, : 2 * size])
        n = np.tanh(given[:, 2 * size :] + gates[:, :size] * kept[:, 2 * size :])
        after: np.ndarray = n + gates[:, size:] * (h - n)
        return after

    return step


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half = np.float32(0.5)
    y: np.ndarray = half + half * np.tanh(half * x)  # cannot overflow
    return y
