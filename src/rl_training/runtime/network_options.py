"""Options that many algorithms share: the activation and first weights of their networks, and the optimizer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field, Strict, model_validator
from torch import nn

from rl_training.base.options import ConfigError, Options, opt
from rl_training.models.variants import Activation, Initialisation, initialise_hidden_, use_activation_
from rl_training.optim.flat import OptimizerFactory, OptimizerName, make_optimizer
from rl_training.runtime.spec import Blueprint, Network

__all__ = ["NetworkOptions", "OptimizerOptions"]

Module = TypeVar("Module", bound=nn.Module)
Decay = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Decay, Decay], Strict(False)]
TAKES = {  # what each optimizer has, beside a step size
    "adam": ("optimizer_betas", "optimizer_epsilon"),
    "adamw": ("optimizer_betas", "optimizer_epsilon", "weight_decay"),
    "rmsprop": ("optimizer_epsilon", "optimizer_decay"),
    "laprop": ("optimizer_betas", "optimizer_epsilon"),
}
ARGUMENTS = {
    "optimizer_betas": "betas",
    "optimizer_epsilon": "eps",
    "weight_decay": "weight_decay",
    "optimizer_decay": "decay",
}


class NetworkOptions(Options):
    """How the algorithm's own networks are activated and initialised."""

    activation: Activation | None = opt(
        None, "of hidden layers: relu, tanh, silu, elu, gelu (its tanh form) or leaky_relu; null: the algorithm's own"
    )
    initialisation: Initialisation | None = opt(
        None,
        "weights of hidden layers: orthogonal, xavier, kaiming or uniform (torch's own); null: the algorithm's own",
    )

    def network(self, plan: Blueprint, default: Network, **arguments: Any) -> Any:
        """A network on the run's device; the algorithm's own is changed as these options say."""
        network = plan.make(default, **arguments)
        if self.activation is not None or self.initialisation is not None:
            self._change(network, own=plan.network is None)
        return network

    def _change(self, network: nn.Module, *, own: bool) -> None:
        chosen = [name for name in ("activation", "initialisation") if getattr(self, name) is not None]
        if not own:
            problem = "is for the algorithm's own network, and network= gives another"
            raise ConfigError([(("algo_kwargs", chosen[0]), problem)])
        try:
            if self.initialisation is not None:
                initialise_hidden_(network, self.initialisation)
            if self.activation is not None:
                use_activation_(network, self.activation)
        except ValueError as error:
            raise ConfigError([(("algo_kwargs", *chosen), str(error))]) from None


class OptimizerOptions(Options):
    """The optimizer of the networks."""

    optimizer: OptimizerName = opt("adam", "adam, adamw, rmsprop or laprop (with adaptive clipping)")
    weight_decay: float | None = opt(
        None, "adamw: share of every weight that a step of rate 1 takes away; null: 0.01", ge=0
    )
    optimizer_betas: Betas | None = opt(
        None, "adam, adamw, laprop: how much the means of gradients and of squares keep; null: [0.9, 0.999]"
    )
    optimizer_decay: float | None = opt(None, "rmsprop: how much the mean of squares keeps; null: 0.95", ge=0, lt=1)
    optimizer_epsilon: float | None = opt(None, "added to the denominator; null: the algorithm's own", gt=0)

    @model_validator(mode="after")
    def _of_this_optimizer(self) -> Any:
        for name in ARGUMENTS:
            if getattr(self, name) is not None and name not in TAKES[self.optimizer]:
                others = ", ".join(kind for kind, names in TAKES.items() if name in names)
                raise ValueError(f"{name} does nothing with optimizer: {self.optimizer}; it belongs to {others}")
        return self

    def optimizer_factory(self) -> OptimizerFactory:
        """What learners make their optimizers by."""
        given = {word: getattr(self, name) for name, word in ARGUMENTS.items() if getattr(self, name) is not None}
        return partial(make_optimizer, self.optimizer, given)
