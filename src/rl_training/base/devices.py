"""Where data crosses between the host and the device that learns. Everything else leaves tensors where they are.

A transfer costs a launch, and coming back a wait for all that the device has still to do, however little it carries.
So what belongs together crosses in one piece: a batch, the observations to act on, what a network says about them. On
a CPU nothing crosses, and nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.base.batches import PackedBatch, Tensors

__all__ = ["HostBuffers", "arrays_to_device", "processors", "state_to_host", "to_device", "to_host"]

ALIGNMENT = 16  # bytes: where a tensor may begin in the memory that crosses


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def to_device(batch: Tensors, device: str | torch.device) -> Tensors:
    """A batch of the host on the device, in one transfer; a packed batch stays packed."""
    device = torch.device(device)
    if device.type == "cpu" or all(x.device.type == device.type for x in batch.values()):
        return batch
    return _transferred(batch, device)


def _transferred(batch: Tensors, device: torch.device) -> Tensors:
    if isinstance(batch, PackedBatch) and batch.packed is not None:
        matrix = batch.packed.to(device)
        return PackedBatch(batch.unpack(matrix), matrix, batch.unpack)
    if len(batch) == 1:
        return {name: x.to(device) for name, x in batch.items()}
    places, size = {}, 0
    for name, x in batch.items():
        places[name] = slice(size, size + x.numel() * x.element_size())
        size = -(-places[name].stop // ALIGNMENT) * ALIGNMENT
    memory = torch.empty(size, dtype=torch.uint8)
    for name, x in batch.items():
        memory[places[name]].view(x.dtype).view(x.shape).copy_(x)
    there = memory.to(device)
    return {name: there[places[name]].view(x.dtype).view(x.shape) for name, x in batch.items()}


def arrays_to_device(device: str | torch.device, *arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Arrays as tensors on the device, in one transfer; on a CPU they share memory with the arrays."""
    tensors = {str(i): torch.from_numpy(np.ascontiguousarray(array)) for i, array in enumerate(arrays)}
    return tuple(to_device(tensors, device).values())


def to_host(*tensors: torch.Tensor) -> tuple[np.ndarray, ...]:
    """Tensors of one device as arrays, in one transfer; those of a CPU share memory with the tensors."""
    if len(tensors) == 1 or all(x.device.type == "cpu" for x in tensors):
        return tuple(x.detach().cpu().numpy() for x in tensors)
    return _fetched(tensors)


def _fetched(tensors: tuple[torch.Tensor, ...]) -> tuple[np.ndarray, ...]:
    pieces = [x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors]
    memory = torch.cat(pieces).cpu().numpy()
    parts = np.split(memory, np.cumsum([len(piece) for piece in pieces])[:-1])
    kinds = [torch.empty(0, dtype=x.dtype).numpy().dtype for x in tensors]
    return tuple(part.copy().view(kind).reshape(x.shape) for part, kind, x in zip(parts, kinds, tensors))


def state_to_host(state: Any) -> Any:
    """A state with its tensors on the host: nested dictionaries and lists, as checkpoints have them."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu()
    if isinstance(state, dict):
        return {name: state_to_host(part) for name, part in state.items()}
    return type(state)(map(state_to_host, state)) if isinstance(state, list | tuple) else state


class HostBuffers(nn.Module):
    """A module some of whose buffers, those named in ``ON_HOST``, stay on the host wherever the module is moved: what
    the host decides by, and statistics that it keeps."""

    ON_HOST: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        kept = {id(self._buffers[name]) for name in self.ON_HOST}
        return super()._apply(lambda x: x if id(x) in kept else fn(x), recurse)  # type: ignore[no-untyped-call]
