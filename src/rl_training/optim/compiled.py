"""Updates as compiled graphs without guards: everything that relies on torch's internals, in one place."""

from __future__ import annotations

import itertools
import os
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rl_training.base.batches import Tensors
from rl_training.base.metrics import Metrics, separate

LEAN = {
    "cpp_wrapper": True,
    "size_asserts": False,  # the batch's layout is checked before the call
    "alignment_asserts": False,
    "fallback_random": True,  # the random numbers of an eager update
    # As torch reads the variable itself, but as a setting, which is in the key of its cache of graphs: a graph for wide vectors that
    # an earlier process left there would not compile without them.
    "cpp.simdlen": {"default": 1, "avx2": 256, "avx512": 512}.get(os.environ.get("ATEN_CPU_CAPABILITY", "")),
}


_SERIAL = itertools.count()


class Compiled:
    """``function(batch) -> tensors`` as one graph with its guards off, for batches like the first one; eager for any other.

    Guards off is safe because each learner compiles a code object of its own, the batch's layout is compared here before
    every call, and whatever may change during training (rates, coefficients, temperature) is a tensor: a Python number would
    be frozen into the graph.
    """

    def __init__(self, function: Callable[[Tensors], Tensors]) -> None:
        self._eager = function
        self._call: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, Tensors]] | None = None
        self._layout: tuple = ()
        self._names: list[str] = []
        self.direct = False  # whether calls go straight to the kernels
        self.failed: str | None = None
        self.used = False

    def __getstate__(self) -> tuple[Any, ...]:
        return self._eager, self.failed  # a graph holds the memory of its learner: a copy compiles its own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        self.failed = state[1]

    def __call__(self, batch: Tensors) -> tuple[Metrics, Tensors]:
        if self.failed:
            return self._eagerly(batch)
        packed = getattr(batch, "packed", None)
        tensors = (packed,) if packed is not None else tuple(batch.values())
        names = batch.unpack if packed is not None else tuple(batch)  # type: ignore[attr-defined]
        layout = (names, [(x.shape, x.stride(), x.dtype) for x in tensors])
        if self._call is None:
            return self._first(batch, tensors, layout)
        if layout != self._layout:
            return self._eagerly(batch)
        scalars, rest = self._call(tensors)
        return Metrics(self._names, scalars), rest

    def _eagerly(self, batch: Tensors) -> tuple[Metrics, Tensors]:
        names, scalars, rest = separate(self._eager(batch))
        return Metrics(names, scalars), rest

    def _first(self, batch: Tensors, inputs: tuple[torch.Tensor, ...], layout: tuple) -> tuple[Metrics, Tensors]:
        names, function, self.used = layout[0], self._eager, True
        unpack = names if callable(names) else lambda *tensors: dict(zip(names, tensors))

        def update(*tensors: torch.Tensor) -> tuple[list[str], torch.Tensor, Tensors]:
            names, scalars, rest = separate(function(unpack(*tensors)))
            return names, torch.stack(scalars), rest  # every tensor that leaves a graph costs too

        # Graphs are cached by code object, and without guards nothing else tells two learners apart: a code object each.
        unique = update.__code__.replace(co_name=f"update_{next(_SERIAL)}")
        own = types.FunctionType(unique, update.__globals__, unique.co_name, None, update.__closure__)

        def no_guards(guards: list) -> list[bool]:
            return [False for _ in guards]

        import torch._dynamo
        import torch._functorch.config

        recorder = _Recorder()
        graph = torch.compile(
            own, backend=recorder.backend, fullgraph=True, dynamic=False, options={"guard_filter_fn": no_guards}
        )
        try:
            # a graph out of AOTAutograd's cache would not pass the recorder; that of the kernels still spares the compiler
            uncached = torch._functorch.config.patch(enable_autograd_cache=False)
            with torch._dynamo.config.patch(trace_autograd_ops=True), uncached:
                self._names, scalars, rest = graph(*inputs)
        except Exception as error:  # nothing ran: compiling comes before the first kernel
            self.failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"updates run eagerly: compiling failed ({self.failed})", stacklevel=2)
            return self._eagerly(batch)
        shortcut = recorder.shortcut(inputs, scalars, rest)
        self.direct, self._call = shortcut is not None, shortcut or (lambda tensors: graph(*tensors)[1:])
        self._layout = layout
        return Metrics(self._names, scalars), rest


class _Recorder:
    """Keeps the entry point of a compiled graph's kernels, so that later calls can go straight to it.

    What lies between the public entry and the kernels (guards, views of the parameters made anew, parameters copied back)
    costs as much as a small network's update. Parameters and optimizer state never move, so all of it but the copying is
    needed only once.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Callable, list, list, list]] = []

    def backend(self, graph: Any, example_inputs: list, **_: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def compile_inner(*args: Any, **kwargs: Any) -> Any:
            kernels = compile_fx_inner(*args, **kwargs)

            def record(inputs: list) -> Any:
                given = list(inputs)
                outputs = kernels(inputs)
                if len(self._calls) < 2:
                    self._calls.append((kernels, given, outputs, [_snapshot(x) for x in given]))
                return outputs

            record._boxed_call = True  # type: ignore[attr-defined]
            return record

        return compile_fx(graph, example_inputs, inner_compile=compile_inner, config_patches=LEAN)

    def shortcut(self, batch: tuple[torch.Tensor, ...], scalars: torch.Tensor, rest: Tensors) -> Callable | None:
        """(batch) -> (scalars, rest) by the kernels alone; None if the one call seen does not show plainly how.

        Every output must be a result or the new value of an input, and every input that changed after the kernels had run
        must be one of those.
        """
        if len(self._calls) != 1:
            return None
        kernels, given, made, after_kernels = self._calls.pop()
        places = [_where(given, tensor) for tensor in batch]
        results = [_where(made, result) for result in (scalars, *rest.values())]
        changed = [i for i, (x, seen) in enumerate(zip(given, after_kernels)) if not _same(x, seen)]
        extras = [i for i in range(len(made)) if [i] not in results]
        owners = [[j for j in changed if _same(given[j], made[i])] for i in extras]
        if any(len(found) != 1 for found in (*results, *owners)) or any(len(found) > 1 for found in places):
            return None
        if sorted(j for [j] in owners) != changed:
            return None
        inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
        fill = [(found[0], j) for j, found in enumerate(places) if found]  # a tensor that is not used is no input
        copies = [(inputs[j], i) for i, [j] in zip(extras, owners)]
        (first, *others), names = [i for [i] in results], list(rest)
        kernels = getattr(kernels, "current_callable", None) or kernels  # without what surrounds every call of it

        def call(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, Tensors]:
            arguments = inputs.copy()
            for place, j in fill:
                arguments[place] = tensors[j]
            outputs = kernels(arguments)
            for parameters, i in copies:
                parameters.copy_(outputs[i])
            return outputs[first], {name: outputs[i] for name, i in zip(names, others)}

        return call


def _where(things: list, wanted: Any) -> list[int]:
    return [i for i, thing in enumerate(things) if thing is wanted]


def _snapshot(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def _same(x: Any, y: Any) -> bool:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return x is y
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def cannot_compile() -> str | None:
    """Why compiled updates are not possible here, or None."""
    import shutil

    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        return "this torch cannot trace autograd inside a graph (2.11 or newer can)"
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "no C++ compiler found"
    return None
