"""Noticing changes of modules in a microsecond or two, before every update and every action.

It reads the dictionaries in which ``nn.Module`` keeps its parameters, buffers, submodules and hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import nn

__all__ = ["watch"]


def watch(holder: dict[str, Any], *, attributes: bool = False) -> Callable[[], bool]:
    """A function that says whether the modules in ``holder`` (by name) are as they are now.

    It compares modules and submodules, the memory of their tensors, the number of forward hooks and, with
    ``attributes``, the number of attributes (a method may be set on an instance).
    """
    names = [name for name, part in holder.items() if isinstance(part, nn.Module)]
    if not names:
        return lambda: True
    get = itemgetter(*names)
    modules = list(dict.fromkeys(module for name in names for module in holder[name].modules()))
    children = [m._modules.values() for m in modules if m._modules]
    tensors = [d.values() for m in modules for d in (m._parameters, m._buffers) if d]
    hooks: list[dict[Any, Any]] = [d for m in modules for d in (m._forward_hooks, m._forward_pre_hooks)]
    absent = [d for d in hooks if not d]
    counted = [*(d for d in hooks if d), *(vars(m) for m in modules if attributes)]
    # the plain method is faster, but a registered name may hold None
    pointer = torch.Tensor.data_ptr if all(t is not None for d in tensors for t in d) else _pointer
    joined = chain.from_iterable
    roots, inner, memory = get(holder), [*joined(children)], [*map(pointer, joined(tensors))]
    number = sum(map(len, counted))

    def same() -> bool:
        return (
            [*map(pointer, joined(tensors))] == memory
            and [*joined(children)] == inner
            and get(holder) == roots
            and not any(absent)
            and (not counted or sum(map(len, counted)) == number)
        )

    return same


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
