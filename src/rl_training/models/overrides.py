"""Whether a model is what its faster forms take it for, and whether it has changed since somebody looked.

A model may have faster forms of some of its methods: numpy for acting, fused passes for planning. They are the same functions only
while those methods are the model's own. A model names them in ``REPLACED``, and whoever takes a faster form asks here first.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

_pointer = torch.Tensor.data_ptr
_END = object()


def redefined(module: Any, *names: str) -> bool:
    """Whether any of these methods (all of ``REPLACED`` if none is named) is another than that of the class which declares
    ``REPLACED``: by a subclass, or as an attribute of the instance. False for a class that declares nothing."""
    kind = type(module)
    owner = next((cls for cls in kind.__mro__ if "REPLACED" in vars(cls)), None)
    if owner is None:
        return False
    return any(
        getattr(kind, name) is not getattr(owner, name) or name in vars(module) for name in names or owner.REPLACED
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


class Watch:
    """Tells cheaply whether modules are as they were: the same submodules and parameters, tensors in the same memory, and no
    hook or attribute added."""

    def __init__(self, *roots: nn.Module) -> None:
        modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
        held: list[Any] = [d.values() for m in modules for d in (m._modules, m._parameters) if d]
        self._held = [*held, (_END,)]  # so that one more or one less shows, wherever it is
        self._things = list(chain.from_iterable(self._held))
        self._tensors = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
        self._pointers = list(map(_pointer, self._tensors))
        hooks = [d for m in modules for d in (m._forward_hooks, m._forward_pre_hooks)]
        self._empty = [d for d in hooks if not d]
        self._attributes = [*(vars(m) for m in modules), *(d for d in hooks if d)]
        self._number = sum(map(len, self._attributes))

    def same(self) -> bool:
        return (
            list(map(_pointer, self._tensors)) == self._pointers
            and all(map(is_, chain.from_iterable(self._held), self._things))
            and not any(self._empty)
            and sum(map(len, self._attributes)) == self._number
        )
