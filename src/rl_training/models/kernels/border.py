"""The border between torch and the kernels: one declaration of every function's arguments, which both sides read.

A kernel reads and writes memory by address and trusts the sizes that it was built for, so a tensor of another dtype,
shape, layout or device would be read past its end. ``FUNCTIONS`` declares, for every C++ function, its arguments in
order: tensors with the names of their axes and their dtypes, and plain numbers. The C++ signatures are generated from
it (``header``), and ``Library.call``, the only way to a function, checks every tensor against it. The lengths of axes
come from the sizes that a library was built for, from the library itself (``sizes``) and from the plain integers of
the same call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

__all__ = ["FUNCTIONS", "KERNELS", "Array", "KernelSizes", "Library", "check", "flat", "header"]

KernelSizes = tuple[int, ...]


class Array(NamedTuple):
    """A contiguous tensor on the CPU: names of its axes, whether the function writes it, its possible dtypes."""

    axes: str
    written: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


class Kernel(NamedTuple):
    """A C++ file: names of the sizes that it is built for, and of the lengths that its function ``sizes`` reports."""

    sizes: tuple[str, ...]
    reported: tuple[str, ...]


KERNELS = {
    "convolutions": Kernel(
        ("height", "width", "channels"),  # and the channels after every stage
        ("z", "scales", "tokens", "encoder_parameters", "decoder_parameters", "lanes"),
    ),
    "recurrence": Kernel(
        ("together", "blocks", "deter", "hidden", "embed", "latents", "classes"),
        ("activations", "activation_gradients", "norms", "parameters", "stoch", "lanes"),
    ),
}

DTYPES = {torch.float32: "float", torch.uint8: "uint8_t", torch.int64: "int64_t"}
INT, LONG, FLOAT = ctypes.c_int, ctypes.c_long, ctypes.c_float
NAMES: dict[Any, str] = {INT: "int", LONG: "long", FLOAT: "float"}
PIXELS = Array("n channels height width", dtypes=(torch.uint8, torch.float32))

FUNCTIONS: dict[str, Mapping[str, Array | type[Any]]] = {
    "sizes": {"lengths": Array("reported", True, (torch.int64,))},
    "encode": {
        "pixels": PIXELS, "parameters": Array("encoder_parameters"), "eps": FLOAT, "z": Array("n z", True),
        "scales": Array("n scales", True), "tokens": Array("n tokens", True), "n": LONG, "threads": INT,
    },
    "encode_backward": {
        "pixels": PIXELS, "parameters": Array("encoder_parameters"), "z": Array("n z"), "scales": Array("n scales"),
        "tokens_gradient": Array("n tokens"), "parameters_gradient": Array("threads encoder_parameters", True),
        "n": LONG, "threads": INT,
    },
    "decoder_loss": {
        "inputs": Array("n tokens"), "pixels": PIXELS, "parameters": Array("decoder_parameters"), "eps": FLOAT,
        "weight": FLOAT, "errors": Array("n", True), "inputs_gradient": Array("n tokens", True),
        "parameters_gradient": Array("threads decoder_parameters", True), "n": LONG, "threads": INT,
    },
    "observe": {
        "parameters": Array("parameters"), "eps": FLOAT, "uniform": FLOAT, "keep": Array("steps n 1"),
        "deter": Array("n deter"), "stoch": Array("n stoch"), "embedded": Array("steps n embed"),
        "encoded": Array("steps n hidden"), "exp_noise": Array("steps n latents classes"),
        "activations": Array("steps n activations", True), "deters": Array("steps n deter", True),
        "stochs": Array("steps n stoch", True), "steps": LONG, "n": LONG, "threads": INT,
    },
    "observe_backward": {
        "parameters": Array("parameters"), "uniform": FLOAT, "keep": Array("steps n 1"),
        "deters_gradient": Array("steps n deter"), "probs_gradient": Array("steps n stoch"),
        "activations": Array("steps n activations"),
        "activation_gradients": Array("steps n activation_gradients", True),
        "deter_gradient": Array("n deter", True), "stoch_gradient": Array("n stoch", True),
        "norms_gradient": Array("threads norms", True), "steps": LONG, "n": LONG, "threads": INT,
    },
}  # fmt: skip


def header() -> str:
    """C++ definitions of every function's arguments (``ENCODE_ARGUMENTS``, ...) and of the numbers for dtypes."""
    lines = [f"enum Dtype {{ {', '.join(map(_name, DTYPES)).upper()} }};"]
    for function, declared in FUNCTIONS.items():
        arguments = ", ".join(_declaration(argument, kind) for argument, kind in declared.items())
        lines.append(f"#define {function.upper()}_ARGUMENTS {arguments}")
    return "\n".join(lines)


def _declaration(argument: str, kind: Array | type[Any]) -> str:
    if not isinstance(kind, Array):
        return f"{NAMES[kind]} {argument}"
    constant = "" if kind.written else "const "
    if len(kind.dtypes) > 1:
        return f"{constant}void* {argument}, int {argument}_dtype"
    return f"{constant}{DTYPES[kind.dtypes[0]]}* {argument}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Library:
    """The compiled functions of a kernel, reached through ``call`` alone, and the lengths of their axes."""

    def __init__(self, functions: Any, kernel: str, sizes: KernelSizes) -> None:
        self._functions = functions
        names, reported = KERNELS[kernel]
        self.axes = {**dict(zip(names, sizes)), "reported": len(reported)}
        lengths = torch.zeros(len(reported), dtype=torch.int64)
        self.call("sizes", lengths=lengths)
        self.axes.update(zip(reported, lengths.tolist()))

    def call(self, function: str, **arguments: Any) -> None:
        """Call a C++ function with arguments by name, after checking every tensor."""
        declared = FUNCTIONS[function]
        if arguments.keys() != declared.keys():
            raise TypeError(f"kernel {function} takes {', '.join(declared)}; got {', '.join(arguments)}")
        axes = {**self.axes, **{name: arguments[name] for name, kind in declared.items() if kind in (INT, LONG)}}
        values: list[Any] = []
        for argument, kind in declared.items():
            value = arguments[argument]
            if not isinstance(kind, Array):
                values.append(kind(value))
                continue
            shape = [int(axis) if axis.isdigit() else axes[axis] for axis in kind.axes.split()]
            check(f"{argument} of kernel {function}", value, shape, kind.dtypes)
            values.append(ctypes.c_void_p(value.data_ptr()))
            if len(kind.dtypes) > 1:
                values.append(INT(list(DTYPES).index(value.dtype)))
        getattr(self._functions, function)(*values)


def check(
    who: str,
    tensor: Any,
    shape: Sequence[int],
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    contiguous: bool = True,
) -> None:
    """Raise a ValueError that says what ``who`` has to be, unless ``tensor`` is that."""
    expected, types = tuple(shape), " or ".join(map(_name, dtypes))
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{who} must be a tensor of {types}, got {type(tensor).__name__}")
    found = []
    if tensor.dtype not in dtypes:
        found.append(_name(tensor.dtype))
    if tuple(tensor.shape) != expected:
        found.append(f"shape {tuple(tensor.shape)}")
    if tensor.device.type != "cpu":
        found.append(f"device {tensor.device}")
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        found.append(f"layout {tensor.layout}")
    elif contiguous and not tensor.is_contiguous():
        found.append(f"strides {tensor.stride()}")
    if found:
        raise ValueError(f"{who} must be a contiguous CPU tensor of {types}, shape {expected}; got {', '.join(found)}")


def flat(who: str, parameters: Sequence[torch.Tensor], shapes: list[KernelSizes]) -> torch.Tensor:
    """Parameters as one flat tensor, the form in which a kernel reads them."""
    if len(parameters) != len(shapes):
        raise ValueError(f"{who} has {len(shapes)} parameters, got {len(parameters)}")
    for i, (parameter, shape) in enumerate(zip(parameters, shapes)):
        check(f"parameter {i} of {who}", parameter, shape, contiguous=False)  # copied, so any strides will do
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def encoder_parameters(sizes: KernelSizes) -> list[KernelSizes]:
    """Shapes of each stage's weight, gain and bias, from fine to coarse."""
    return [shape for fine, coarse in pairwise(sizes[2:]) for shape in ((coarse, fine, 4, 4), (coarse,), (coarse,))]


def decoder_parameters(sizes: KernelSizes) -> list[KernelSizes]:
    """Shapes of the last convolution's weight and bias, then of each earlier stage's weight, gain and bias."""
    first, *others = pairwise(sizes[2:])
    shapes: list[KernelSizes] = [(first[1], first[0], 4, 4), (first[0],)]
    return shapes + [shape for fine, coarse in others for shape in ((coarse, fine, 4, 4), (fine,), (fine,))]


def recurrence_parameters(sizes: KernelSizes) -> list[KernelSizes]:
    """Shapes of the parameters of ``Observe``, in its order."""
    blocks, deter, hidden, embed, latents, classes = sizes
    flat, width = latents * classes, deter // blocks
    linear: list[KernelSizes] = [(hidden, deter), (hidden, flat), (hidden, deter), (flat, hidden), (flat,)]
    inner: list[KernelSizes] = [(blocks, width + 2 * hidden + embed, width), (blocks, 1, width)]
    gates: list[KernelSizes] = [(blocks, width, 3 * width), (blocks, 1, 3 * width)]
    return linear + inner + gates + [(norm,) for norm in (hidden, hidden, deter, hidden) for _ in range(2)]
