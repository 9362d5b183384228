"""Whether a model is what its faster forms take it for, and whether it has changed since somebody looked.

A model may have faster forms of some of its methods: numpy for acting, fused passes for planning. They are the same functions only
while those methods are the model's own. A model names them in ``REPLACED``, and whoever takes a faster form asks here first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import nn


def redefined(module: Any, *names: str) -> bool:
    """Whether any of these methods (all of ``REPLACED`` if none is named) is another than that of the class which declares
    ``REPLACED``: by a subclass, or as an attribute of the instance. False for a class that declares nothing."""
    kind = type(module)
    owner = next((cls for cls in kind.__mro__ if "REPLACED" in vars(cls)), None)
    if owner is None:
        return False
    return any(
        getattr(kind, name) is not getattr(owner, name) or name in vars(module)
        for name in names or vars(owner)["REPLACED"]
    )


def overridden(module: Any, *names: str) -> bool:
    """Whether faster forms of these methods (all of ``REPLACED`` if none is named) would be other functions than the module's:
    they are redefined, there are hooks or parametrizations, or the class declares nothing."""
    return not hasattr(type(module), "REPLACED") or altered(module) or redefined(module, *names)


def ordinary(module: Any, *kinds: type) -> bool:
    """Whether a layer is one of these classes itself (no subclass: that may compute anything) and computes what they do."""
    return type(module) in kinds and not altered(module) and "forward" not in vars(module)


def altered(module: nn.Module) -> bool:
    """Whether hooks (which is how older weight and spectral norms work) or parametrizations change what a module computes."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or "parametrizations" in module._modules or type(module).__call__ is not nn.Module.__call__


def watch(holder: dict[str, Any], *, attributes: bool = False) -> Callable[[], bool]:
    """A function that tells, in a microsecond or two, whether the modules in ``holder`` (by name) are as they are now: the same modules
    and submodules, tensors in the same memory, the same number of forward hooks and, if asked for, of attributes (a method may
    be set on an instance)."""
    names = [name for name, part in holder.items() if isinstance(part, nn.Module)]
    if not names:
        return lambda: True
    get = itemgetter(*names)
    modules = list(dict.fromkeys(module for name in names for module in holder[name].modules()))
    children = [m._modules.values() for m in modules if m._modules]
    tensors = [d.values() for m in modules for d in (m._parameters, m._buffers) if d]
    hooks = [d for m in modules for d in (m._forward_hooks, m._forward_pre_hooks)]
    absent = [d for d in hooks if not d]
    counted = [*(d for d in hooks if d), *(vars(m) for m in modules if attributes)]
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
