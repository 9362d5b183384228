"""Acting on the host: networks as functions of arrays, by numpy where that is the same function, by torch elsewhere.

For one or a few observations a torch call costs ten times the arithmetic; numpy on the same memory does not. Numpy
reads zero-copy views of the parameters, which follow every update because optimizers change parameters in place.

What is learned and what acts must be one function. A numpy form stands in for certain methods of a model, which the
model declares in ``REPLACED``; where any of them is overridden, by whatever means (``models.overrides``), torch acts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.base.devices import arrays_to_device, to_host
from rl_training.base.watch import watch
from rl_training.models.memory import Memory, RecurrentTrunk, Sequences, numpy_step
from rl_training.models.mlp import EnsembleLinear, EnsembleMLP, Linear
from rl_training.models.mlp_iqn_network import ImplicitQuantiles
from rl_training.models.mlp_q_network import DuelingHead
from rl_training.models.noisy import NoisyLinear
from rl_training.models.overrides import altered, ordinary, overridden, redefined
from rl_training.models.variants import GELU

__all__ = [
    "MOST_ROWS",
    "HostFunction",
    "acting_mode",
    "altered",
    "device_of",
    "host_forward",
    "host_quantiles",
    "numpy_layers",
    "ordinary",
    "overridden",
    "redefined",
    "through",
    "with_arrays",
]

Layer = Callable[[np.ndarray, np.random.Generator | None, np.ndarray | None], np.ndarray]
MOST_ROWS = 256  # beyond this, torch's threads and vectorised tanh win
FOR_UPDATES = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # whose training mode is for batches


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter; the CPU if it has none."""
    parameter = next(module.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


@contextlib.contextmanager
def acting_mode(network: nn.Module) -> Iterator[None]:
    """Batch normalisation by its running statistics, and no dropout: the rows that act together are no batch.

    Other layers keep their mode: the noise of noisy ones explores.
    """
    switched = [part for part in network.modules() if part.training and isinstance(part, FOR_UPDATES)]
    for part in switched:
        part.training = False
    try:
        yield
    finally:
        for part in switched:
            part.training = True


@torch.no_grad()
def with_arrays(network: nn.Module, function: Callable[..., Any], *arrays: Any) -> Any:
    """Call ``function``, of a network that acts, with the arrays (the first may be ``Sequences`` of them) as tensors on
    its device.

    The result is an array, or a tuple of arrays if the function returns several tensors.
    """
    device = device_of(network)
    with acting_mode(network):
        if isinstance(arrays[0], Sequences):
            return arrays[0].through(device, function, *arrays[1:])
        y = function(*arrays_to_device(device, *arrays))
    return to_host(*y) if isinstance(y, tuple) else to_host(y)[0]


class HostFunction:
    """A network's function of arrays, in numpy where there is such a form, in torch elsewhere.

    ``numpy_form(network)`` makes the function, or returns None; ``torch_form(network, *arguments)`` is called then.
    It follows the network: hooks, attributes, layers or memory that change later are noticed by the next call, and a
    copy of it belongs to the copy of the network. So both forms must be functions of the network alone.
    """

    def __init__(
        self, network: Any, numpy_form: Callable[[Any], Callable[..., Any] | None], torch_form: Callable[..., Any]
    ) -> None:
        self._network, self._numpy_form, self._torch_form = network, numpy_form, torch_form
        self._decide()

    def _decide(self) -> None:
        self._function = self._numpy_form(self._network)
        self._same = None if self._function is None else watch({"network": self._network}, attributes=True)

    @property
    def in_numpy(self) -> bool:
        """Whether the next call is computed by numpy."""
        if self._same is not None and not self._same():
            self._decide()
        return self._function is not None

    def __call__(self, *arguments: Any) -> Any:
        if self._same is not None:
            if not self._same():
                self._decide()
            if self._function is not None:
                return self._function(*arguments)
        return self._torch_form(self._network, *arguments)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._network, self._numpy_form, self._torch_form

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._network, self._numpy_form, self._torch_form = state
        self._function, self._same = None, _never  # the network may not be complete yet


def _never() -> bool:
    return False


def host_forward(network: nn.Module) -> HostFunction:
    """``network(x)`` as a function of (array, generator or None).

    With a generator, noisy layers draw their noise from it; without one they have none. By torch, their noise follows
    the module's mode.
    """
    return HostFunction(network, _numpy_forward, _torch_forward)


def _torch_forward(network: nn.Module, x: np.ndarray, rng: np.random.Generator | None = None) -> Any:
    return with_arrays(network, network, x)


def _numpy_forward(network: nn.Module) -> Callable[..., np.ndarray] | None:
    layers = numpy_layers(network)
    if layers is None:
        return None
    noisy = any(isinstance(part, NoisyLinear) for part in network.modules())

    def forward(x: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        if len(x) > MOST_ROWS and not noisy:
            y: np.ndarray = _torch_forward(network, x)
            return y
        return through(layers, x, rng)

    return forward


def host_quantiles(network: ImplicitQuantiles) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]] | None:
    """``encode(obs, rng)`` and ``quantiles(features, taus, rng)`` of a quantile network, as functions of arrays.

    None where the network has other such methods than its class, or layers without a numpy form.
    """
    if overridden(network):
        return None
    encoder, embedding, head = (numpy_layers(part) for part in (network.encoder, network.embedding, network.head))
    if encoder is None or embedding is None or head is None:
        return None
    frequencies = network.frequencies.numpy()

    def encode(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        return through(encoder, obs, rng)

    def quantiles(features: np.ndarray, taus: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        rows, count = taus.shape
        embedded = through(embedding, np.cos(taus.reshape(-1, 1) * frequencies), rng)
        joint = embedded.reshape(rows, count, -1) * features[:, None]
        values = through(head, joint.reshape(rows * count, -1), rng)
        by_action: np.ndarray = values.reshape(rows, count, -1).swapaxes(1, 2)
        return by_action

    return encode, quantiles


def through(layers: list[Layer], x: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
    """Pass ``x`` through the layers, which may work in place on anything but ``x`` itself."""
    given = x
    for layer in layers:
        x = layer(x, rng, None if x is given else x)
    return x


def numpy_layers(module: nn.Module) -> list[Layer] | None:
    """A module's layers as functions of (array, generator or None, array to write to or None).

    None if one of them has no numpy form here, or computes something else than its class does.
    """
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in module.parameters()):
        return None
    if isinstance(getattr(module, "body", None), nn.Module) and not overridden(module, "forward"):
        return numpy_layers(module.body)  # type: ignore[arg-type]
    if ordinary(module, nn.Sequential, EnsembleMLP):
        children = [numpy_layers(child) for child in module.children()]
        return None if any(c is None for c in children) else [layer for c in children for layer in c or ()]
    if hasattr(type(module), "host_form"):
        return _own_form(module)
    return _LAYERS[type(module)](module) if ordinary(module, *_LAYERS) else None


def _own_form(module: Any) -> list[Layer] | None:
    """The numpy form that a layer of somebody's own class has; not if ``forward`` is overridden below that class."""
    form = None if overridden(module, "forward") else module.host_form()
    return None if form is None else [lambda x, rng, out: form(x)]


def _linear(layer: nn.Linear) -> list[Layer]:
    weight = layer.weight.detach().numpy().T
    bias = layer.bias.detach().numpy() if layer.bias is not None else np.float32(0)

    def forward(x: np.ndarray, rng: np.random.Generator | None, out: np.ndarray | None) -> np.ndarray:
        y: np.ndarray = np.dot(x, weight)
        y += bias
        return y

    return [forward]


def _noisy_linear(layer: NoisyLinear) -> list[Layer]:
    [plain] = _linear(layer)  # type: ignore[arg-type]
    sigma, bias_sigma = layer.weight_sigma.detach().numpy().T, layer.bias_sigma.detach().numpy()

    def forward(x: np.ndarray, rng: np.random.Generator | None, out: np.ndarray | None) -> np.ndarray:
        y = plain(x, rng, out)
        if rng is not None:
            noise = rng.standard_normal(sum(sigma.shape), np.float32)
            noise = np.sign(noise) * np.sqrt(np.abs(noise))
            noise_in, noise_out = noise[: len(sigma)], noise[len(sigma) :]
            y += noise_out * (np.dot(x * noise_in, sigma) + bias_sigma)
        return y

    return [forward]


def _dueling(head: DuelingHead) -> list[Layer] | None:
    value, advantage = numpy_layers(head.value), numpy_layers(head.advantage)
    if value is None or advantage is None:
        return None

    def forward(x: np.ndarray, rng: np.random.Generator | None, out: np.ndarray | None) -> np.ndarray:
        v, a = through(value, x, rng), through(advantage, x, rng)
        a = a.reshape(*x.shape[:-1], head.actions, head.atoms)
        q: np.ndarray = v[..., None, :] + a - a.mean(-2, keepdims=True)
        return q.reshape(*x.shape[:-1], -1)

    return [forward]


def _remembering(trunk: RecurrentTrunk) -> list[Layer] | None:
    encoder, memories = numpy_layers(trunk.encoder), trunk.parts()
    kept = all(ordinary(one, Memory) and not overridden(one) for one in memories)
    if encoder is None or not kept or not all(ordinary(one.layer, nn.LSTM, nn.GRU) for one in memories):
        return None
    steps, edges = [numpy_step(one) for one in memories], np.cumsum([one.state_size for one in memories])[:-1]

    def forward(given: Any, rng: np.random.Generator | None, out: np.ndarray | None) -> np.ndarray:
        features = through(encoder, given.rows, rng)
        towers = [features] if len(steps) == 1 else features
        states = [step(x, state) for step, x, state in zip(steps, towers, np.split(given.carry, edges, -1))]
        given.after = np.concatenate(states, -1)
        outputs = [state[:, : one.size] for one, state in zip(memories, states)]
        return outputs[0] if len(outputs) == 1 else np.stack(outputs)

    return [forward]


def _ensemble_linear(layer: EnsembleLinear) -> list[Layer]:
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()

    def forward(x: np.ndarray, rng: np.random.Generator | None, out: np.ndarray | None) -> np.ndarray:
        y: np.ndarray = np.matmul(x, weight)
        y += bias
        return y

    return [forward]


def _relu(layer: nn.Module) -> list[Layer]:
    return [lambda x, rng, out: np.maximum(x, np.float32(0), out=out)]


def _tanh(layer: nn.Module) -> list[Layer]:
    return [lambda x, rng, out: np.tanh(x, out=out)]


def _leaky_relu(layer: nn.LeakyReLU) -> list[Layer]:
    return [lambda x, rng, out: np.where(x > 0, x, np.float32(layer.negative_slope) * x)]


def _elu(layer: nn.ELU) -> list[Layer]:
    return [lambda x, rng, out: np.where(x > 0, x, np.float32(layer.alpha) * np.expm1(np.minimum(x, np.float32(0))))]


def _silu(layer: nn.Module) -> list[Layer]:
    half = np.float32(0.5)
    return [lambda x, rng, out: x * (half + half * np.tanh(half * x))]  # a sigmoid that cannot overflow


def _gelu(layer: nn.GELU) -> list[Layer] | None:
    if layer.approximate != "tanh":  # by the error function, which numpy does not have
        return None
    half, inner, cubic = np.float32(0.5), np.float32((2 / np.pi) ** 0.5), np.float32(0.044715)
    return [lambda x, rng, out: half * x * (1 + np.tanh(inner * (x + cubic * x * x * x)))]


def _identity(layer: nn.Module) -> list[Layer]:
    return [lambda x, rng, out: x]


_LAYERS: dict[type, Callable[[Any], list[Layer] | None]] = {
    nn.Linear: _linear,
    Linear: _linear,
    NoisyLinear: _noisy_linear,
    DuelingHead: _dueling,
    EnsembleLinear: _ensemble_linear,
    RecurrentTrunk: _remembering,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.SiLU: _silu,
    nn.GELU: _gelu,
    GELU: _gelu,
    nn.Identity: _identity,
}
