"""The fast core of every learner: flat parameters, one fused optimizer call, and updates that run as one graph.

Small networks are bound by call overhead, not arithmetic. So the parameters an optimizer owns are views of one flat tensor,
its step is a single kernel, and an update is a pure function of tensors that runs eagerly or compiled, with the same maths.
"""

from __future__ import annotations

import itertools
import os
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from rl_training.algorithms.metrics import Metrics, separate

Tensors = dict[str, torch.Tensor]


def trainable(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in params if p.requires_grad]


MOVED = (
    "the parameters no longer share memory with their optimizer (a module was moved, copied or re-assigned "
    "after the learner was made): make the learner after moving the module"
)


class FlatParameters:
    """Parameters as views of one flat tensor. Move modules to their device before this, never after.

    A copy, made together with the module, is views of a flat tensor of its own.
    """

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = list(params)
        self.flat: torch.Tensor = torch.cat([p.detach().reshape(-1) for p in self.params])
        self._attach()

    def _attach(self) -> None:
        for p, view in zip(self.params, self.flat.split([p.numel() for p in self.params])):
            p.data = view.view_as(p)

    @property
    def attached(self) -> bool:
        """Whether every parameter still lies where it belongs."""
        place, size = self.flat.data_ptr(), self.flat.element_size()
        for p in self.params:
            if p.data_ptr() != place or p.dtype != self.flat.dtype:
                return False
            place += p.numel() * size
        return True

    def __getstate__(self) -> dict[str, Any]:
        if not self.attached:
            raise RuntimeError(MOVED)
        return vars(self).copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attach()


class FlatOptimizer(FlatParameters):
    """An optimizer of parameters that become views of one flat tensor.

    Stepping changes that tensor behind autograd's back, so take every gradient of an update before stepping anything: use
    ``descend``. The learning rate is a tensor, so a schedule reaches compiled updates too. Subclasses keep their state in the
    tensors they name in ``TENSORS``.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        max_grad_norm: float | None = None,
        sharing: FlatOptimizer | None = None,
    ) -> None:
        """``sharing``: another optimizer of the same parameters; both move the same memory, each with a state of its own."""
        params = trainable(params)
        if not params:
            raise ValueError(f"{type(self).__name__} got no parameters")
        if sharing is None:
            super().__init__(params)
        elif [id(p) for p in sharing.params] != [id(p) for p in params]:
            raise ValueError("optimizers can only share all of their parameters, in the same order")
        else:
            self.params, self.flat = params, sharing.flat
        self.base_lr, self.scale, self.lr = lr, 1.0, torch.tensor(lr, device=self.flat.device)
        self.max_grad_norm = max_grad_norm

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """Only with respect to what it owns: an actor loss costs no critic weight gradients."""
        if not torch.compiler.is_compiling() and not self.attached:
            raise RuntimeError(MOVED)
        grads = torch.autograd.grad(loss, self.params, allow_unused=True)
        if all(g is None for g in grads):
            raise RuntimeError("the loss depends on none of the optimizer's parameters")
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, self.params)])

    @torch.no_grad()
    def step(self, grad: torch.Tensor) -> None:
        if self.max_grad_norm is not None:
            grad = grad * (self.max_grad_norm / (grad.norm() + 1e-6)).clamp(max=1)
        self._step(grad)

    def _step(self, grad: torch.Tensor) -> None:
        raise NotImplementedError

    def scale_lr(self, scale: float) -> float:
        """Set the learning rate to ``scale`` times its initial value; returns it."""
        self.scale, lr = scale, self.base_lr * scale
        self.lr.fill_(lr)
        return lr

    def state_dict(self) -> Tensors:
        return {name: getattr(self, name) for name in self.TENSORS}

    def load_state_dict(self, state: Tensors) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class FlatAdam(FlatOptimizer):
    """Adam (Kingma & Ba, 2015)."""

    TENSORS = ("mean", "square", "count")

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        sharing: FlatOptimizer | None = None,
    ) -> None:
        super().__init__(params, lr=lr, max_grad_norm=max_grad_norm, sharing=sharing)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = torch.zeros((), device=self.flat.device)
        self.betas, self.eps = betas, eps

    def _step(self, grad: torch.Tensor) -> None:
        b1, b2 = self.betas
        self.count.add_(1)
        if torch.compiler.is_compiling():  # plain arithmetic: the compiler fuses it
            self.mean.lerp_(grad, 1 - b1)
            self.square.lerp_(grad * grad, 1 - b2)
            denominator = self.square.sqrt() / (1 - b2**self.count).sqrt() + self.eps
            self.flat.sub_((self.lr / (1 - b1**self.count)) * self.mean / denominator)
        else:
            torch._fused_adam_(
                [self.flat], [grad], [self.mean], [self.square], [], [self.count],
                lr=self.lr, beta1=b1, beta2=b2, weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
            )  # fmt: skip


class FlatRMSprop(FlatOptimizer):
    """RMSprop (Tieleman & Hinton, 2012), as it comes: not centred, no momentum."""

    TENSORS = ("square",)

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, decay: float = 0.95, eps: float = 1e-5) -> None:
        super().__init__(params, lr=lr)
        self.square = torch.zeros_like(self.flat)
        self.decay, self.eps = decay, eps

    def _step(self, grad: torch.Tensor) -> None:
        self.square.lerp_(grad * grad, 1 - self.decay)
        self.flat.sub_(self.lr * grad / (self.square.sqrt() + self.eps))


class FlatLaProp(FlatOptimizer):
    """LaProp (Ziyin et al., 2020): gradients are scaled first, then averaged. Before that, the gradient of every parameter is cut to a
    share of its norm (adaptive clipping, Brock et al., 2021)."""

    TENSORS = ("mean", "square", "count")

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-20,
        share: float = 0.3,
        least: float = 1e-3,
    ) -> None:
        super().__init__(params, lr=lr)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = torch.zeros((), device=self.flat.device)
        self.betas, self.eps, self.share, self.least = betas, eps, share, least
        self._sizes = [p.numel() for p in self.params]

    def clipped(self, grad: torch.Tensor) -> torch.Tensor:
        """No parameter's gradient larger than ``share`` of the parameter (or of ``least``)."""
        pieces = zip(grad.split(self._sizes), self.flat.split(self._sizes))
        limits = [(g, self.share * p.norm().clamp(min=self.least)) for g, p in pieces]
        return torch.cat([g * (limit / (g.norm() + 1e-12)).clamp(max=1) for g, limit in limits])

    def _step(self, grad: torch.Tensor) -> None:
        b1, b2 = self.betas
        grad = self.clipped(grad)
        self.count.add_(1)
        self.square.lerp_(grad * grad, 1 - b2)
        scaled = grad / ((self.square / (1 - b2**self.count)).sqrt() + self.eps)
        self.mean.lerp_(scaled, 1 - b1)
        self.flat.sub_(self.lr / (1 - b1**self.count) * self.mean)


def descend(*pairs: tuple[FlatOptimizer, torch.Tensor]) -> None:
    """All gradients first, then all steps: no loss ever sees another's new parameters."""
    for optimizer, grad in [(optimizer, optimizer.gradient(loss)) for optimizer, loss in pairs]:
        optimizer.step(grad)


class PackedBatch(dict[str, torch.Tensor]):
    """A batch whose tensors are columns of one matrix, ``packed``. A compiled update takes that matrix and applies ``unpack``
    inside the graph: every tensor handed to a graph costs as much as a small kernel. Changing the batch unpacks it for good."""

    def __init__(self, columns: Tensors, packed: torch.Tensor, unpack: Callable[[torch.Tensor], Tensors]) -> None:
        super().__init__(columns)
        self.packed: torch.Tensor | None = packed
        self.unpack = unpack

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self.packed = None
        super().__setitem__(name, value)

    def beside(self, **tensors: torch.Tensor) -> PackedBatch:
        """With tensors that no update reads, such as where the rows came from."""
        super().update(tensors)
        return self


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


class Target(FlatParameters):
    """A slowly following copy of some of a module's parameters, as one flat tensor, and of its buffers."""

    def __init__(
        self, online: nn.Module, target: nn.Module, parameters: Callable[[Any], Iterable[nn.Parameter]]
    ) -> None:
        followed = [p for p, source in zip(parameters(target), parameters(online)) if source.requires_grad]
        super().__init__(followed)
        self._buffers = list(zip(target.buffers(), online.buffers()))
        target.requires_grad_(False)

    def copy_buffers(self) -> None:
        for target, source in self._buffers:
            target.copy_(source)


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


def first_nonfinite(state: Any, path: str = "") -> str | None:
    """The name of the first tensor in a nested state that holds a NaN or an infinity, or None."""
    if isinstance(state, torch.Tensor):
        return None if not state.is_floating_point() or bool(torch.isfinite(state).all()) else path
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return next((bad for key, part in items if (bad := first_nonfinite(part, f"{path}.{key}".lstrip(".")))), None)
