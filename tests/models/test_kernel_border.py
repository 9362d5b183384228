"""The border to the kernels: every declared tensor is checked, and both sides read one declaration of the arguments."""

import ctypes
import re
from importlib import resources

import pytest
import torch

from rl_training.models import kernels
from rl_training.models.kernels import border
from rl_training.models.kernels.border import FUNCTIONS, KERNELS, Array, Library, header

SOURCES = resources.files("rl_training.models.kernels")
ARRAYS = {
    (name, argument): kind
    for name, function in FUNCTIONS.items()
    for argument, kind in function.items()
    if isinstance(kind, Array)
}
NAMES = {axis for kind in ARRAYS.values() for axis in kind.axes.split()} - {"1"}
AXES = {axis: length for length, axis in enumerate(sorted(NAMES), 2)}


class Recorder:
    """Compiled functions that count their calls and read nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        return lambda *given: self.calls.append((name, given))


def recording() -> tuple[Recorder, Library]:
    """A library with a different length for every axis."""
    functions = Recorder()
    library = Library(functions, "recurrence", ())
    library.axes = AXES
    functions.calls.clear()
    return functions, library


def arguments(name: str) -> dict:
    """As they are declared."""
    return {
        argument: torch.zeros([AXES.get(axis, 1) for axis in kind.axes.split()], dtype=kind.dtypes[0])
        if isinstance(kind, Array)
        else AXES.get(argument, 1)
        for argument, kind in FUNCTIONS[name].items()
    }


def wrong_ones(tensor: torch.Tensor, kind: Array) -> dict[str, object]:
    """Tensors that break one part of the declaration, by what the error says of them."""
    types = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.bool,
    )
    return {
        **{str(dtype).removeprefix("torch."): tensor.to(dtype) for dtype in types if dtype not in kind.dtypes},
        **{f"longer axis {i}": torch.cat([tensor, tensor], i) for i in range(tensor.ndim)},
        "shorter": tensor[..., :-1].contiguous(),
        "axes more": tensor[None],
        "strides": torch.stack([tensor, tensor], -1)[..., 0],
        "expanded": tensor[:1].expand(tensor.shape) if tensor.ndim > 1 else tensor[..., :1].expand(tensor.shape),
        "device meta": tensor.to("meta"),
        "sparse": tensor.to_sparse(),
        "ndarray": tensor.numpy(),
        "NoneType": None,
    }  # fmt: skip


def said(reason: str) -> str:
    shapes = reason.startswith("longer") or reason in ("shorter", "axes more")
    return "shape" if shapes else {"expanded": "strides", "sparse": "layout"}.get(reason, reason)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_as_declared_cross_in_the_order_of_the_declaration(name: str):
    functions, library = recording()
    given = arguments(name)
    library.call(name, **dict(reversed(given.items())))
    [(called, values)] = functions.calls
    expected = []
    for argument, kind in FUNCTIONS[name].items():
        value = given[argument]
        expected.append(value.data_ptr() if isinstance(kind, Array) else value)
        if isinstance(kind, Array) and len(kind.dtypes) > 1:
            expected.append(list(border.DTYPES).index(value.dtype))
    assert called == name and [value.value for value in values] == expected


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
def test_a_tensor_of_another_dtype_shape_layout_or_device_is_refused_before_its_address_is_taken(name, argument):
    functions, library = recording()
    given, kind = arguments(name), FUNCTIONS[name][argument]
    for reason, wrong in wrong_ones(given[argument], kind).items():
        with pytest.raises(ValueError, match=f"^{argument} of kernel {name} must be .*{said(reason)}") as error:
            library.call(name, **{**given, argument: wrong})
        assert "\n" not in str(error.value)
    assert functions.calls == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_of_rows_or_threads_that_is_not_that_of_the_tensors_is_refused(name: str):
    functions, library = recording()
    given = arguments(name)
    for argument, kind in FUNCTIONS[name].items():
        if kind in (ctypes.c_int, ctypes.c_long):
            uses = [
                other
                for other in FUNCTIONS[name].values()
                if isinstance(other, Array) and argument in other.axes.split()
            ]
            if not uses:  # of the functions that only read, threads share no tensor
                assert argument == "threads" and name in ("encode", "observe")
                continue
            for wrong in (given[argument] + 1, given[argument] - 1, -1):
                with pytest.raises(ValueError, match=f"of kernel {name} must be .*shape"):
                    library.call(name, **{**given, argument: wrong})
    assert functions.calls == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_too_few_or_too_many_is_refused(name: str):
    functions, library = recording()
    given = arguments(name)
    first = next(iter(given))
    for other in ({k: v for k, v in given.items() if k != first}, {**given, "more": 1}):
        with pytest.raises(TypeError, match=f"kernel {name} takes {first}"):
            library.call(name, **other)
    assert functions.calls == []


def test_the_dtype_of_pixels_crosses_with_their_address():
    functions, library = recording()
    for dtype in (torch.uint8, torch.float32):
        given = arguments("encode")
        library.call("encode", **{**given, "pixels": given["pixels"].to(dtype)})
    assert [list(border.DTYPES)[values[1].value] for _, values in functions.calls] == [torch.uint8, torch.float32]


def test_every_function_of_the_sources_has_the_declared_arguments():
    found = []
    for kernel in KERNELS:
        text = SOURCES.joinpath(f"{kernel}.cpp").read_text()
        found += re.findall(r'extern "C" void (\w+)\((.*?)\)', text, re.DOTALL)
    assert set(found) == {(name, f"{name.upper()}_ARGUMENTS") for name in FUNCTIONS}
    assert 'extern "C"' not in SOURCES.joinpath("vectors.cpp").read_text()


def test_the_header_declares_what_is_only_read_as_constant():
    text = header()
    assert "#define SIZES_ARGUMENTS int64_t* lengths\n" in text
    assert (
        "#define ENCODE_ARGUMENTS const void* pixels, int pixels_dtype, const float* parameters, float eps, float* z,"
        in text
    )
    assert text.startswith("enum Dtype { FLOAT32, UINT8, INT64 };")


def test_nothing_but_the_border_calls_a_compiled_function():
    """Compiled functions are handed to ``Library`` at once, which keeps them to itself."""
    text = SOURCES.joinpath("__init__.py").read_text()
    assert re.findall(r".*\bfunctions\b.*", text) == [
        '        functions = CppCodeCache.load(text, device_type="cpu", extra_flags=(*FLAGS, *narrower))',
        "    return Library(functions, kernel, sizes)",
    ]
    assert "_functions" not in text and "ctypes" not in text


def test_shapes_of_parameters_are_checked_one_by_one():
    shapes = [(2, 3), (4,)]
    good = [torch.randn(shape) for shape in shapes]
    assert border.flat("f", [good[0].t().contiguous().t(), good[1]], shapes).tolist() == [*good[0].flatten(), *good[1]]
    assert not border.flat("f", [parameter.clone().requires_grad_() for parameter in good], shapes).requires_grad
    for i, parameter in enumerate(good):
        wrong = {"float64": parameter.double(), "shape": parameter[None], "device meta": parameter.to("meta")}
        for reason, other in wrong.items():
            with pytest.raises(ValueError, match=f"parameter {i} of f must be .*{reason}"):
                border.flat("f", [*good[:i], other, *good[i + 1 :]], shapes)
    with pytest.raises(ValueError, match="f has 2 parameters, got 1"):
        border.flat("f", good[:1], shapes)


def test_kernels_are_known_to_the_border():
    assert (
        set(KERNELS) == {"convolutions", "recurrence"} == {kernels.convolutions.__name__, kernels.recurrence.__name__}
    )
