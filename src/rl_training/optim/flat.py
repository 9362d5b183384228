"""Optimizers of flat parameters: views of one tensor, one fused kernel for each step, target networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from rl_training.base.batches import Tensors
from rl_training.base.saved import alike

__all__ = [
    "MOVED",
    "FlatAdam",
    "FlatAdamW",
    "FlatLaProp",
    "FlatOptimizer",
    "FlatParameters",
    "FlatRMSprop",
    "OptimizerFactory",
    "OptimizerName",
    "Target",
    "descend",
    "make_optimizer",
]

MOVED = (
    "the parameters no longer share memory with their optimizer (a module was moved, copied or re-assigned "
    "after the learner was made): make the learner after moving the module"
)


class FlatParameters:
    """Parameters as views of one flat tensor. Move modules to their device before this, never after.

    A copy that is made together with the module has a flat tensor of its own.
    """

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = list(params)
        self.flat: torch.Tensor = torch.cat([p.detach().reshape(-1) for p in self.params])
        self._attach()

    def _attach(self) -> None:
        for p, view in zip(self.params, torch.split(self.flat, [p.numel() for p in self.params])):
            p.data = view.view_as(p)

    @property
    def attached(self) -> bool:
        """Whether every parameter still is a view of its part of the flat tensor."""
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

    Autograd does not see a step, so take every gradient of an update before any step: use ``descend``. The learning
    rate is a tensor, so a schedule reaches compiled updates too. Subclasses keep their state in the tensors they name
    in ``TENSORS``.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, max_grad_norm: float | None = None) -> None:
        params = [p for p in params if p.requires_grad]
        if not params:
            raise ValueError(f"{type(self).__name__} got no parameters")
        super().__init__(params)
        self.base_lr, self.scale, self.lr = lr, 1.0, torch.tensor(lr, device=self.flat.device)
        self.max_grad_norm = max_grad_norm

    def share_memory_of(self, other: FlatOptimizer) -> None:
        """Change the memory of another optimizer of the same parameters from now on; each keeps a state of its own."""
        if [id(p) for p in other.params] != [id(p) for p in self.params]:
            raise ValueError("optimizers can only share all of their parameters, in the same order")
        self.flat = other.flat
        self._attach()

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """The flat gradient of a loss, with respect to its own parameters only: an actor loss costs no critic
        gradients."""
        if not torch.compiler.is_compiling() and not self.attached:
            raise RuntimeError(MOVED)
        grads = torch.autograd.grad(loss, self.params, allow_unused=True)
        if all(g is None for g in grads):
            raise RuntimeError("the loss depends on none of the optimizer's parameters")
        return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, self.params)])

    @torch.no_grad()
    def step(self, grad: torch.Tensor) -> None:
        """Move the parameters by a flat gradient, cut to ``max_grad_norm``."""
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

    def reset(self) -> None:
        """Forget every step: averages and counts as they were at first. The learning rate stays."""
        for name in self.TENSORS:
            getattr(self, name).zero_()

    def state_dict(self) -> Tensors:
        return {name: getattr(self, name) for name in self.TENSORS}

    def load_state_dict(self, state: Tensors) -> None:
        own = self.state_dict()
        alike(state, own)
        for name, tensor in own.items():
            tensor.copy_(state[name])


class _Moments(FlatOptimizer):
    """An optimizer with running means of the gradient and of its square, and a count of steps to correct their bias."""

    TENSORS = ("mean", "square", "count")

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(params, **options)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = torch.zeros((), device=self.flat.device)
        self.betas, self.eps = betas, eps


class FlatAdam(_Moments):
    """Adam (Kingma & Ba, 2015)."""

    def _step(self, grad: torch.Tensor) -> None:
        b1, b2 = self.betas
        self.count.add_(1)
        if torch.compiler.is_compiling():
            self._fusible_step(grad)
        else:
            torch._fused_adam_(
                [self.flat], [grad], [self.mean], [self.square], [], [self.count],
                lr=self.lr, beta1=b1, beta2=b2, weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
            )  # fmt: skip

    def _fusible_step(self, grad: torch.Tensor) -> None:
        """Plain arithmetic, which the compiler fuses."""
        b1, b2 = self.betas
        self.mean.lerp_(grad, 1 - b1)
        self.square.lerp_(grad * grad, 1 - b2)
        denominator = self.square.sqrt() / (1 - b2**self.count).sqrt() + self.eps
        self.flat.sub_((self.lr / (1 - b1**self.count)) * self.mean / denominator)


class FlatAdamW(FlatAdam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019), of every parameter."""

    def __init__(self, params: Iterable[nn.Parameter], *, weight_decay: float = 0.01, **options: Any) -> None:
        super().__init__(params, **options)
        self.weight_decay = weight_decay

    def _step(self, grad: torch.Tensor) -> None:
        self.flat.mul_(1 - self.lr * self.weight_decay)
        super()._step(grad)


class FlatRMSprop(FlatOptimizer):
    """RMSprop (Tieleman & Hinton, 2012), not centred and without momentum."""

    TENSORS = ("square",)

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: float, decay: float = 0.95, eps: float = 1e-5, **options: Any
    ) -> None:
        super().__init__(params, lr=lr, **options)
        self.square = torch.zeros_like(self.flat)
        self.decay, self.eps = decay, eps

    def _step(self, grad: torch.Tensor) -> None:
        self.square.lerp_(grad * grad, 1 - self.decay)
        self.flat.sub_(self.lr * grad / (self.square.sqrt() + self.eps))


class FlatLaProp(_Moments):
    """LaProp (Ziyin et al., 2020), which scales gradients first and averages then, with adaptive clipping before it.

    Adaptive clipping (Brock et al., 2021) cuts the gradient of every parameter to a share of the parameter's norm.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-20,
        share: float = 0.3,
        least: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(params, lr=lr, eps=eps, **options)
        self.share, self.least = share, least
        self._sizes = [p.numel() for p in self.params]

    def clipped(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient, for each parameter at most ``share`` of the parameter's norm (or of ``least``)."""
        pieces = zip(torch.split(grad, self._sizes), torch.split(self.flat, self._sizes))
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


OptimizerName = Literal["adam", "adamw", "rmsprop", "laprop"]
OptimizerFactory = Callable[..., FlatOptimizer]
OPTIMIZERS: dict[OptimizerName, type[FlatOptimizer]] = {
    "adam": FlatAdam,
    "adamw": FlatAdamW,
    "rmsprop": FlatRMSprop,
    "laprop": FlatLaProp,
}


def make_optimizer(
    name: OptimizerName, given: dict[str, Any], params: Iterable[nn.Parameter], *, eps: float | None = None, **own: Any
) -> FlatOptimizer:
    """An optimizer by name, as learners call for one: ``own`` are the learner's arguments, ``given`` take precedence.

    ``eps`` is what the learner adds to Adam's denominator; other optimizers have their own.
    """
    if eps is not None and name in ("adam", "adamw"):
        own["eps"] = eps
    return OPTIMIZERS[name](params, **{**own, **given})


def descend(*pairs: tuple[FlatOptimizer, torch.Tensor]) -> None:
    """A step of each optimizer on its loss: all gradients first, so that no loss sees another's new parameters."""
    for optimizer, grad in [(optimizer, optimizer.gradient(loss)) for optimizer, loss in pairs]:
        optimizer.step(grad)


class Target(FlatParameters):
    """The parameters of a target network, as one flat tensor, and its buffers with those that they follow."""

    def __init__(
        self, online: nn.Module, target: nn.Module, parameters: Callable[[Any], Iterable[nn.Parameter]]
    ) -> None:
        followed = [p for p, source in zip(parameters(target), parameters(online)) if source.requires_grad]
        super().__init__(followed)
        self._buffers = list(zip(target.buffers(), online.buffers()))
        target.requires_grad_(False)

    def copy_buffers(self) -> None:
        """Give the target network's buffers the values of the online network's."""
        for target, source in self._buffers:
            target.copy_(source)
