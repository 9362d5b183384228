"""A device that is not a CPU, for machines without one: tensors on ``pretend:0`` lie in host memory, yet torch takes
them for an accelerator's.

``install()`` names torch's spare backend (PrivateUse1) and gives it one kernel for everything, which runs the operation
on the CPU, on the same memory, with the CPU's random numbers. The tensors are torch's own, so autograd, views, version
counters, ``module.to`` and ``p.data = view`` are torch's own code too. It stays for the life of the process: run it in
a process of its own.

It refuses what a GPU refuses (operations between host and device, ``.numpy()``), and one thing that a GPU allows at the
price of a hidden transfer: indexing a device's tensor by a host's. Everything that crosses between host and device is
counted, with the line of the package that asked for it: copies, and what makes the host wait for a number
(``.item()``, or a result whose shape depends on values).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
PACKAGE = f"{Path('src') / 'rl_training'}/"
CPU = torch.device("cpu")
DEVICE_TYPE_OF_DLPACK = 12  # kDLExtDev, which torch reads as PrivateUse1
WAITS = {  # operations that give the host a number of the device, or a shape that depends on one
    *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "nonzero_numpy", "masked_select"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
}
CROSSES = {"aten::_copy_from", "aten::fill_.Tensor"}  # may take tensors of both sides

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_kernels: list[torch.library.Library] = []


class Transfer(NamedTuple):
    """Something that crossed: ``to`` the device or ``back``, the file of the package that asked for it, and the
    functions of the package that were being called, innermost first."""

    way: str
    file: str
    callers: tuple[str, ...]


_ledgers: list[list[Transfer]] = []


@contextmanager
def transfers() -> Iterator[list[Transfer]]:
    """The list of what crosses while the block runs; others may write to it too."""
    ledger: list[Transfer] = []
    _ledgers.append(ledger)
    try:
        yield ledger
    finally:
        _ledgers.pop()


def _count(way: str) -> None:
    if not _ledgers:
        return
    callers, files, frame = [], [], sys._getframe(1)
    while frame is not None:
        if PACKAGE in frame.f_code.co_filename:
            callers.append(frame.f_code.co_qualname)
            files.append(frame.f_code.co_filename.split(PACKAGE)[-1])
        frame = frame.f_back  # type: ignore[assignment]
    _ledgers[-1].append(Transfer(way, files[0] if files else "", tuple(callers)))


def install() -> torch.device:
    """Make the device known to torch and return it."""
    if not _kernels:
        _setup_privateuseone_for_python_backend(NAME)
        rest, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        rest.fallback(_on_the_cpu, "PrivateUse1")
        own.impl("_copy_from", _copy, "PrivateUse1")
        own.impl("convolution_overrideable", _convolution, "PrivateUse1")
        own.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
        _kernels.extend([rest, own])  # kernels live as long as their library
        _teach_deepcopy()
    return torch.device(NAME, 0)


def on_device(x: Any) -> bool:
    """Whether ``x`` is a tensor of the device."""
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def _as_host(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU on the memory of a device's tensor, to be used while that one lives."""
    storage, alias = x.untyped_storage(), torch.empty(0, dtype=x.dtype)
    if storage.nbytes() == 0:
        return alias.as_strided_(x.size(), x.stride(), x.storage_offset())
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), CPU, storage.nbytes())
    return alias.set_(memory, x.storage_offset(), x.size(), x.stride())


def _as_device(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the device on the memory of a CPU's, which it keeps alive: DLPack with another device written in."""
    storage = x.untyped_storage()
    whole = torch.empty(0, dtype=x.dtype).set_(storage, 0, (storage.nbytes() // x.element_size(),), (1,))
    capsule = torch._C._to_dlpack(whole)
    address = _pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)  # behind the pointer to the data
    ctypes.c_int32.from_address(address).value = DEVICE_TYPE_OF_DLPACK
    return _shaped(torch._C._from_dlpack(capsule), x)


def _shaped(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x.as_strided_(like.size(), like.stride(), like.storage_offset())


class _Loan:
    """The device's tensors among an operation's arguments, as tensors of the CPU, and a function that takes its results back to the device."""

    def __init__(self) -> None:
        self._aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by a device tensor's id: (host, device)

    def lend(self, x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [self.lend(part) for part in x]
        if isinstance(x, torch.device):
            return CPU if x.type == NAME else x
        if not on_device(x):
            return x
        if id(x) not in self._aliases:
            self._aliases[id(x)] = (_as_host(x), x)
        return self._aliases[id(x)][0]

    def settle(self) -> None:
        """What was changed in place may have another shape by now, or memory where it had none."""
        for host, device in self._aliases.values():
            if host.untyped_storage().nbytes() > device.untyped_storage().nbytes():
                device.data = _as_device(host)
            elif (host.size(), host.stride()) != (device.size(), device.stride()):
                _shaped(device, host)

    def receive(self, y: Any) -> Any:
        """A result: an argument as itself, a view of one as its view, anything else as a new tensor of the device."""
        if isinstance(y, list | tuple):
            return type(y)(self.receive(part) for part in y)
        if not isinstance(y, torch.Tensor):
            return y
        owner = None
        for host, device in self._aliases.values():
            if y is host:
                return device
            if y.numel() and y.untyped_storage().data_ptr() == host.untyped_storage().data_ptr():
                owner = device
        if owner is not None and owner.dtype == y.dtype:
            return _shaped(owner.detach(), y)
        new = _as_device(y)
        new.untyped_storage().owner = owner  # a view of another type keeps alive what it looks at
        return new


def _on_the_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operation of the device."""
    _refuse_mixing(op, args, kwargs)
    name = op._schema.name.removeprefix("aten::")
    if name in WAITS:  # an index of booleans asks for ``nonzero`` first
        _count("back")
    loan = _Loan()
    given, named = [loan.lend(x) for x in args], {key: loan.lend(x) for key, x in kwargs.items()}
    result = op(*given, **named)
    loan.settle()
    return loan.receive(result)


def _refuse_mixing(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A single number on the host may be read, as a GPU's kernels take numbers; any other host tensor is refused."""
    name = op.name()
    if name in CROSSES:
        return
    for place, argument in enumerate(op._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        alone, written = (
            isinstance(value, torch.Tensor),
            argument.alias_info is not None and argument.alias_info.is_write,
        )
        for x in (value,) if alone else value if isinstance(value, list | tuple) else ():
            number = alone and not written and isinstance(x, torch.Tensor) and x.ndim == 0
            if isinstance(x, torch.Tensor) and not on_device(x) and not number:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but {argument.name} of {name} is on {x.device} "
                    f"and others are on {NAME}:0"
                )


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``copy_``, ``.to`` and ``.cpu`` where at least one side is the device's."""
    if on_device(source) != on_device(target):
        _count("to" if on_device(target) else "back")
    there, here = (_as_host(x) if on_device(x) else x for x in (source, target))
    here.copy_(there)
    return target


def _convolution(*args: Any, **kwargs: Any) -> Any:
    return _on_the_cpu(torch.ops.aten.convolution.default, *args, **kwargs)


def _convolution_backward(gradient: Any, x: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
    *geometry, mask = (*args, *kwargs.values())
    bias = [weight.shape[1 if geometry[3] else 0]] if mask[2] else None  # geometry[3]: transposed
    return _on_the_cpu(torch.ops.aten.convolution_backward.default, gradient, x, weight, bias, *geometry, mask)


def _teach_deepcopy() -> None:
    """``copy.deepcopy`` by torch asks the backend for an allocator, which only C++ could give it."""
    by_torch = torch.Tensor.__deepcopy__

    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if not on_device(self) or id(self) in memo or not self.is_leaf:
            return by_torch(self, memo)
        memo[id(self)] = copied = self.detach().clone().requires_grad_(self.requires_grad)
        return copied

    torch.Tensor.__deepcopy__ = deepcopy  # type: ignore[method-assign]
