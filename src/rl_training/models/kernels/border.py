"""The border between torch and the kernels: what crosses it is declared here, once, and checked before its address is taken.

A kernel gets addresses and believes what it was built for, so a tensor of another type, shape, layout or device would be read past its
end. ``FUNCTIONS`` has, for every function of the C++, its arguments in order: arrays with their axes and types, and numbers with
theirs. ``call`` is the only way to a function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

Sizes = tuple[int, ...]


class Array(NamedTuple):
    """A tensor on the CPU, without gaps: the names of its axes, and the types that it may have."""

    axes: str
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


PIXELS = Array("pictures channels height width", (torch.uint8, torch.float32))
INT, LONG, FLOAT = ctypes.c_int, ctypes.c_long, ctypes.c_float
Declared = Mapping[str, Array | type[Any]]

FUNCTIONS: dict[str, Declared] = {  # the arguments of each function, as the C++ has them
    "encode": {
        "pixels": PIXELS, "bytes": INT, "numbers": Array("numbers"), "eps": FLOAT,
        "z": Array("pictures z"), "scales": Array("pictures scales"), "tokens": Array("pictures tokens"),
        "n": LONG, "threads": INT,
    },
    "encode_back": {
        "pixels": PIXELS, "bytes": INT, "numbers": Array("numbers"),
        "z": Array("pictures z"), "scales": Array("pictures scales"), "of_tokens": Array("pictures tokens"),
        "of_numbers": Array("threads numbers"), "n": LONG, "threads": INT,
    },
    "paint": {
        "inputs": Array("pictures tokens"), "pixels": PIXELS, "bytes": INT, "numbers": Array("numbers"),
        "eps": FLOAT, "weight": FLOAT, "errors": Array("pictures"), "of_inputs": Array("pictures tokens"),
        "of_numbers": Array("threads numbers"), "n": LONG, "threads": INT,
    },
    "observe": {
        "numbers": Array("numbers"), "eps": FLOAT, "uniform": FLOAT, "keep": Array("steps sequences one"),
        "deter": Array("sequences deter"), "stoch": Array("sequences stoch"), "embedded": Array("steps sequences embed"),
        "told": Array("steps sequences hidden"), "luck": Array("steps sequences latents classes"),
        "kept": Array("steps sequences kept"), "deters": Array("steps sequences deter"),
        "stochs": Array("steps sequences stoch"), "steps": LONG, "n": LONG, "threads": INT,
    },
    "observe_back": {
        "numbers": Array("numbers"), "uniform": FLOAT, "keep": Array("steps sequences one"),
        "of_deters": Array("steps sequences deter"), "of_chances": Array("steps sequences stoch"),
        "kept": Array("steps sequences kept"), "slopes": Array("steps sequences slopes"),
        "of_deter": Array("sequences deter"), "of_stoch": Array("sequences stoch"), "of_norms": Array("threads norms"),
        "steps": LONG, "n": LONG, "threads": INT,
    },
}  # fmt: skip


def encoder_parameters(sizes: Sizes) -> list[Sizes]:
    """Shapes of each stage's weight, gain and bias, from fine to coarse."""
    return [shape for fine, coarse in pairwise(sizes[2:]) for shape in ((coarse, fine, 4, 4), (coarse,), (coarse,))]


def painter_parameters(sizes: Sizes) -> list[Sizes]:
    """Shapes of the last convolution's weight and bias, and of each stage's weight, gain and bias before it, from fine to coarse."""
    first, *others = pairwise(sizes[2:])
    shapes: list[Sizes] = [(first[1], first[0], 4, 4), (first[0],)]
    return shapes + [shape for fine, coarse in others for shape in ((coarse, fine, 4, 4), (fine,), (fine,))]


def recurrence_parameters(sizes: Sizes) -> list[Sizes]:
    """Shapes of the parameters of ``Observe``, in its order."""
    blocks, deter, hidden, embed, latents, classes = sizes
    flat, width = latents * classes, deter // blocks
    linear: list[Sizes] = [(hidden, deter), (hidden, flat), (hidden, deter), (flat, hidden), (flat,)]
    inner: list[Sizes] = [(blocks, width + 2 * hidden + embed, width), (blocks, 1, width)]
    gates: list[Sizes] = [(blocks, width, 3 * width), (blocks, 1, 3 * width)]
    return linear + inner + gates + [(norm,) for norm in (hidden, hidden, deter, hidden) for _ in range(2)]


def check(
    who: str,
    tensor: Any,
    shape: Sequence[int],
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    contiguous: bool = True,
) -> None:
    """Raise a ValueError that says what ``who`` has to be, unless ``tensor`` is that."""
    wanted, types = tuple(shape), " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{who} must be a tensor of {types}, got {type(tensor).__name__}")
    found = []
    if tensor.dtype not in dtypes:
        found.append(str(tensor.dtype).removeprefix("torch."))
    if tuple(tensor.shape) != wanted:
        found.append(f"shape {tuple(tensor.shape)}")
    if tensor.device.type != "cpu":
        found.append(f"device {tensor.device}")
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        found.append(f"layout {tensor.layout}")
    elif contiguous and not tensor.is_contiguous():
        found.append(f"strides {tensor.stride()}")
    if found:
        raise ValueError(f"{who} must be a contiguous CPU tensor of {types}, shape {wanted}; got {', '.join(found)}")


def flat(who: str, parameters: Sequence[torch.Tensor], shapes: list[Sizes]) -> torch.Tensor:
    """The numbers of parameters one after the other, as a kernel reads them."""
    if len(parameters) != len(shapes):
        raise ValueError(f"{who} has {len(shapes)} parameters, got {len(parameters)}")
    for i, (parameter, shape) in enumerate(zip(parameters, shapes)):
        check(f"parameter {i} of {who}", parameter, shape, contiguous=False)  # copied, so it may lie as it likes
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def call(functions: Any, name: str, axes: Mapping[str, int], **arguments: Any) -> None:
    """Call a function of a library with arguments by name; ``axes`` are the lengths of the axes that arrays are declared with."""
    declared = FUNCTIONS[name]
    if arguments.keys() != declared.keys():
        raise TypeError(f"kernel {name} takes {', '.join(declared)}; got {', '.join(arguments)}")
    given = []
    for argument, kind in declared.items():
        value = arguments[argument]
        if isinstance(kind, Array):
            shape = tuple(axes[axis] for axis in kind.axes.split())
            check(f"{argument} of kernel {name}", value, shape, kind.dtypes)
            given.append(ctypes.c_void_p(value.data_ptr()))
        else:
            given.append(kind(value))
    getattr(functions, name)(*given)
