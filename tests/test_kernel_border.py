"""What crosses the border to the kernels: every tensor that is declared is checked, and nothing else reaches the C++."""

import ctypes
import re
from importlib import resources

import pytest
import torch

from rl_training.models.kernels.border import FUNCTIONS, Array, call

AXES = {axis: length for length, axis in enumerate(sorted({axis for function in FUNCTIONS.values() for kind in function.values()
                                                           if isinstance(kind, Array) for axis in kind.axes.split()}), 2)}  # fmt: skip
ARRAYS = [(name, argument) for name, function in FUNCTIONS.items() for argument, kind in function.items() if isinstance(kind, Array)]  # fmt: skip


class Recorder:
    """A library whose functions count their calls and read nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        return lambda *given: self.calls.append((name, given))


def arguments(name: str) -> dict:
    """As they are declared."""
    return {
        argument: torch.zeros([AXES[axis] for axis in kind.axes.split()], dtype=kind.dtypes[0])
        if isinstance(kind, Array)
        else 1
        for argument, kind in FUNCTIONS[name].items()
    }


def wrong_ones(tensor: torch.Tensor, kind: Array) -> dict[str, object]:
    """What is not such a tensor, by what the error says of it."""
    last = tensor.shape[-1]
    types = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
    return {
        **{str(dtype).removeprefix("torch."): tensor.to(dtype) for dtype in types if dtype not in kind.dtypes},
        "shape": tensor[..., : last - 1].contiguous(),
        "axes more": tensor[None],
        "strides": tensor.repeat_interleave(2, -1)[..., ::2],
        "expanded": tensor[..., :1].expand(tensor.shape),
        "device meta": tensor.to("meta"),
        "sparse": tensor.to_sparse(),
        "ndarray": tensor.numpy(),
        "NoneType": None,
    }


SAID = {"axes more": "shape", "expanded": "strides", "sparse": "layout"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_as_declared_cross_in_the_order_of_the_declaration(name: str):
    library, given = Recorder(), arguments(name)
    call(library, name, AXES, **dict(reversed(given.items())))
    [(called, values)] = library.calls
    pointers = {k: v.data_ptr() for k, v in given.items() if isinstance(v, torch.Tensor)}
    assert called == name
    assert [v.value for v in values] == [pointers.get(k, 1) for k in FUNCTIONS[name]]


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
def test_a_tensor_of_another_type_shape_layout_or_device_is_refused_before_its_address_is_taken(name, argument):
    library, given, kind = Recorder(), arguments(name), FUNCTIONS[name][argument]
    for reason, wrong in wrong_ones(given[argument], kind).items():
        with pytest.raises(
            ValueError, match=f"^{argument} of kernel {name} must be .*{SAID.get(reason, reason)}"
        ) as told:
            call(library, name, AXES, **{**given, argument: wrong})
        assert "\n" not in str(told.value)
    assert library.calls == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_too_few_or_too_many_is_refused(name: str):
    library, given = Recorder(), arguments(name)
    first = next(iter(given))
    for other in ({k: v for k, v in given.items() if k != first}, {**given, "more": 1}):
        with pytest.raises(TypeError, match=f"kernel {name} takes {first}"):
            call(library, name, AXES, **other)
    assert library.calls == []


def test_the_declaration_is_that_of_the_sources():
    """Types and order of every function's arguments, read from the C++."""
    plain = {ctypes.c_int: "int", ctypes.c_long: "long", ctypes.c_float: "float"}
    found = {}
    for source in ("pictures", "recurrence"):
        text = resources.files("rl_training.models.kernels").joinpath(f"{source}.cpp").read_text()
        for name, inside in re.findall(r'extern "C" void (\w+)\(([^)]*)\)', text):
            found[name] = [" ".join(part.replace("const ", "").split()[:-1]) for part in inside.split(",")]
    del found["sizes"]
    declared = {
        name: [
            ("void*" if len(kind.dtypes) > 1 else "float*") if isinstance(kind, Array) else plain[kind]
            for kind in function.values()
        ]
        for name, function in FUNCTIONS.items()
    }
    assert found == declared
