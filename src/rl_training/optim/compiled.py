"""Updates as compiled graphs: everything in this package that relies on torch's internals to learn faster.

A learner's update is a function ``update(batch) -> tensors`` that changes parameters and optimizer state in place.
``Compiled`` runs it as one graph. ``compile: true`` takes the fast graphs described here, ``compile: safe`` takes
torch.compile as its manual describes it, ``compile: false`` compiles nothing. All three compute the same numbers up to
rounding.

Why there are fast graphs
    The update of a small network is bound by call overhead. The public entry of a graph checks its guards, makes views
    of the parameters anew and copies them back: 110 of the 260 microseconds of a small DQN's update.

What they rely on, and why that is safe
    1. No guards (``guard_filter_fn``). A guard checks that what was a constant during tracing still is one. Here
       everything that changes while learning is a tensor: parameters, optimizer state, learning rates, scheduled
       coefficients. The batch's layout (names, shapes, strides, dtypes, devices) is compared before every call, and
       another layout runs eagerly. The networks (modules, memory of their tensors, hooks) are compared before every
       call too, by ``optim.updates``.
    2. A code object for each graph (``types.FunctionType``). Dynamo caches graphs by code object, and without guards
       nothing else separates two learners of one class: the second would run the first one's graph, on the first
       one's parameters.
    3. The recorder (``compile_fx(inner_compile=...)``). It watches the first call and finds which arguments of the
       kernels are the batch, which outputs are results and which are new values of parameters. Later calls go straight
       to the kernels. If anything about the first call is not plain, calls keep to the public entry of the graph.
    4. Settings (``FAST``): kernels without asserts, called through C++; ``trace_autograd_ops``, so that gradients are
       taken inside the graph (``safe`` needs this one too); AOTAutograd's cache off, since a graph from there would
       not pass the recorder. Random numbers are torch's own (``fallback_random``), drawn as an eager update draws them.

What a fast graph does not notice
    Python values are constants of the graph: a float attribute that changes after the first update, a module's
    ``training``, and torch's global modes (autocast, deterministic algorithms, default dtype, number of threads).
    ``safe`` notices them and compiles again.

How it fails
    To something slower and right, with one warning. A torch without one of the private names (``lacking``) gets
    ``safe``. A torch that cannot trace gradients, or a machine without a C++ compiler (``cannot_compile``), runs
    eagerly, and so does an update that cannot be compiled. Compiling comes before the first kernel, so a failure leaves
    no half-made update. A copied or unpickled learner has no graph yet and compiles its own.

Tried with
    torch 2.13.0 (CPU, Linux, x86-64). The package allows 2.11 to 2.13, since ``trace_autograd_ops`` came with 2.11, but
    the fast graphs have not been tried with 2.11 and 2.12, nor on a GPU. ``tests/optim/test_compiled.py`` breaks each
    assumption on purpose: run it first with a new torch.
"""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import types
import warnings
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from rl_training.base.batches import PackedBatch, Tensors
from rl_training.base.errors import reason
from rl_training.base.metrics import Metrics, measured, separate

__all__ = ["Compiled", "cannot_compile", "lacking"]

Inputs = tuple[torch.Tensor, ...]
Update = Callable[..., tuple[list[str], torch.Tensor, Tensors]]  # tensors of a batch to names, scalars, everything else
Call = Callable[[Inputs], tuple[list[str], torch.Tensor, Tensors]]  # the same without the names, which never change
Kernels = Callable[[list[Any]], Sequence[Any]]

SAFE: dict[str, Any] = {
    "fallback_random": True,  # the random numbers of an eager update
    # As torch reads the variable itself, but as a setting, which is in the key of its cache of graphs: a graph for wide
    # vectors that an earlier process left there would not compile without them.
    "cpp.simdlen": {"default": 1, "avx2": 256, "avx512": 512}.get(os.environ.get("ATEN_CPU_CAPABILITY", "")),
}
FAST = {**SAFE, "cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}

_SERIAL = itertools.count()


def cannot_compile() -> str | None:
    """Why compiled updates are not possible here, or None."""
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        return "this torch cannot trace autograd inside a graph (2.11 or newer can)"
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "no C++ compiler found"
    return None


def lacking() -> str | None:
    """Which private name the fast graphs need and this torch does not have, or None."""
    try:
        from torch._functorch import config as functorch
        from torch._inductor import compile_fx, config

        attrgetter("enable_autograd_cache")(functorch)
        attrgetter("compile_fx", "compile_fx_inner")(compile_fx)
        attrgetter(*FAST)(config)
    except (ImportError, AttributeError) as error:
        return reason(error)
    return None


class Compiled:
    """``function(batch) -> tensors`` as one graph, made for batches like the first one; any other batch runs eagerly.

    Calls return the scalars as metrics, and the other tensors. With ``safe``, torch.compile works as its manual
    describes.
    """

    def __init__(self, function: Callable[[Tensors], Tensors], *, safe: bool = False) -> None:
        self._function, self.safe = function, safe
        self._call: Call | None = None
        self._layout: tuple[Any, ...] = ()
        self.direct = False  # whether calls go straight to the kernels
        self.failed: str | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return self._function, self.safe, self.failed  # a graph holds its learner's memory: a copy compiles its own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        function, safe, failed = state
        Compiled.__init__(self, function, safe=safe)
        self.failed = failed

    @property
    def used(self) -> bool:
        """Whether there is a graph, or none can be made."""
        return self._call is not None or self.failed is not None

    def __call__(self, batch: Tensors) -> tuple[Metrics, Tensors]:
        if self.failed is not None:
            return measured(self._function(batch))
        tensors: Inputs
        form: tuple[str, ...] | Callable[..., Tensors]
        if isinstance(batch, PackedBatch) and batch.packed is not None:
            tensors, form = (batch.packed,), batch.unpack
        else:
            tensors, form = tuple(batch.values()), tuple(batch)
        layout = (form, [(x.shape, x.stride(), x.dtype, x.device) for x in tensors])
        if self._call is None:
            return self._first(batch, tensors, layout)
        if layout != self._layout:
            return measured(self._function(batch))
        try:
            names, scalars, rest = self._call(tensors)
        except Exception as error:
            if not self.safe or not type(error).__module__.startswith(("torch._dynamo.", "torch._inductor.")):
                raise
            return self._fail(error, batch)  # a guard failed, and so did compiling again: no kernel has run
        return Metrics(names, scalars), rest

    def _first(self, batch: Tensors, tensors: Inputs, layout: tuple[Any, ...]) -> tuple[Metrics, Tensors]:
        """The first update, which compiles: nothing has changed yet if that fails."""
        missing = None if self.safe else lacking()
        self.safe = self.safe or missing is not None
        update, recorder = _of_tensors(self._function, layout[0]), _Recorder()
        try:
            graph = _safe(update) if self.safe else _fast(update, recorder)
            names, scalars, rest = graph(*tensors)
        except Exception as error:
            return self._fail(error, batch)
        if missing is not None:
            warnings.warn(f"updates are compiled with torch.compile's guards: {missing}", stacklevel=3)
        shortcut = recorder.shortcut(tensors, names, scalars, rest)
        self.direct, self._call = shortcut is not None, shortcut or (lambda tensors: graph(*tensors))
        self._layout = layout
        return Metrics(names, scalars), rest

    def _fail(self, error: Exception, batch: Tensors) -> tuple[Metrics, Tensors]:
        self._call, self.direct = None, False
        self.failed = _headline(error)
        warnings.warn(f"updates run eagerly: compiling failed ({self.failed})", stacklevel=3)
        return measured(self._function(batch))


def _headline(error: Exception) -> str:
    """The first line of an error's text, with the next one where it ends in a colon; its type if there is no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def _of_tensors(function: Callable[[Tensors], Tensors], form: Any) -> Update:
    """``function`` of a batch's tensors, in order; ``form`` names them, or unpacks the one that holds them all."""
    unpack = form if callable(form) else lambda *tensors: dict(zip(form, tensors))

    def update(*tensors: torch.Tensor) -> tuple[list[str], torch.Tensor, Tensors]:
        names, scalars, rest = separate(function(unpack(*tensors)))
        return names, torch.stack(scalars), rest  # every tensor that leaves a graph costs too

    return update


def _safe(update: Update) -> Update:
    """One graph by torch.compile with its guards; a guard that fails compiles again."""
    import torch._dynamo

    own: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        own["isolate_recompiles"] = True  # else all learners of a process share one limit of recompilations
    graph = torch.compile(update, fullgraph=True, dynamic=False, options=dict(SAFE), **own)

    def call(*tensors: torch.Tensor) -> tuple[list[str], torch.Tensor, Tensors]:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            return graph(*tensors)

    return call


def _fast(update: Update, recorder: _Recorder) -> Update:
    """One graph without guards, under a code object of its own, whose kernels the recorder sees."""
    import torch._dynamo
    import torch._functorch.config

    code = update.__code__.replace(co_name=f"update_{next(_SERIAL)}")
    own = types.FunctionType(code, update.__globals__, code.co_name, None, update.__closure__)
    graph: Update = torch.compile(
        own,
        backend=recorder.backend,
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": lambda guards: [False for _ in guards]},
    )

    def call(*tensors: torch.Tensor) -> tuple[list[str], torch.Tensor, Tensors]:
        uncached = torch._functorch.config.patch(enable_autograd_cache=False)
        with torch._dynamo.config.patch(trace_autograd_ops=True), uncached:
            return graph(*tensors)

    return call


class _Recorder:
    """Keeps the entry point of a graph's kernels, so that later calls can go straight to it."""

    def __init__(self) -> None:
        # kernels, their inputs and outputs, and copies of the inputs as they were after the kernels had run
        self._calls: list[tuple[Kernels, list[Any], Sequence[Any], list[Any]]] = []

    def backend(self, graph: Any, example_inputs: list[Any], **_: Any) -> Any:
        """Torch's own backend, with a record of the calls of its kernels."""
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def compile_inner(*args: Any, **kwargs: Any) -> Any:
            kernels: Kernels = compile_fx_inner(*args, **kwargs)

            def record(inputs: list[Any]) -> Sequence[Any]:
                given = list(inputs)  # the kernels empty the list that they are given
                outputs = kernels(inputs)
                if len(self._calls) < 2:
                    self._calls.append((kernels, given, outputs, [_snapshot(x) for x in given]))
                return outputs

            record._boxed_call = True  # type: ignore[attr-defined]
            return record

        return compile_fx(graph, example_inputs, inner_compile=compile_inner, config_patches=FAST)

    def shortcut(self, batch: Inputs, names: list[str], scalars: torch.Tensor, rest: Tensors) -> Call | None:
        """(batch) -> (names, scalars, rest) by the kernels alone; None if the one call seen does not show plainly how.

        Every output must be a result or the new value of an input, and every input that changed after the kernels had
        run must be one of those.
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
        (first, *others), others_names = [i for [i] in results], list(rest)
        kernels = getattr(kernels, "current_callable", None) or kernels  # without what surrounds every call of it

        def call(tensors: Inputs) -> tuple[list[str], torch.Tensor, Tensors]:
            arguments = inputs.copy()
            for place, j in fill:
                arguments[place] = tensors[j]
            outputs = kernels(arguments)
            for parameters, i in copies:
                parameters.copy_(outputs[i])
            return names, outputs[first], {name: outputs[i] for name, i in zip(others_names, others)}

        return call


def _where(things: Sequence[Any], tensor: Any) -> list[int]:
    return [i for i, thing in enumerate(things) if thing is tensor]


def _snapshot(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def _same(x: Any, y: Any) -> bool:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return x is y
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)
