"""Whether a model computes what its faster forms compute.

A model may have faster forms of some of its methods: numpy for acting, fused passes for planning. They are the same
functions only while those methods are the model's own. A model names them in ``REPLACED``; code that takes a faster
form calls ``overridden`` first.
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["altered", "ordinary", "overridden", "redefined"]


def redefined(module: Any, *names: str) -> bool:
    """Whether any of these methods (all of ``REPLACED`` if none is named) was redefined.

    That is: it is not the method of the class which declares ``REPLACED``, because of a subclass or of an attribute of
    the instance. False for a class that declares nothing.
    """
    kind = type(module)
    owner = next((cls for cls in kind.__mro__ if "REPLACED" in vars(cls)), None)
    if owner is None:
        return False
    names = names or vars(owner)["REPLACED"]
    return any(getattr(kind, name) is not getattr(owner, name) or name in vars(module) for name in names)


def overridden(module: Any, *names: str) -> bool:
    """Whether faster forms of these methods (all of ``REPLACED`` if none is named) would compute something else.

    They do if a method is redefined, if there are hooks or parametrizations, or if the class declares nothing.
    """
    return not hasattr(type(module), "REPLACED") or altered(module) or redefined(module, *names)


def ordinary(module: Any, *kinds: type) -> bool:
    """Whether a layer is of one of these classes (no subclass), and no hook or attribute changes what it computes."""
    return type(module) in kinds and not altered(module) and "forward" not in vars(module)


def altered(module: nn.Module) -> bool:
    """Whether hooks (older weight and spectral norms are hooks) or parametrizations change what a module computes."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or "parametrizations" in module._modules or type(module).__call__ is not nn.Module.__call__
