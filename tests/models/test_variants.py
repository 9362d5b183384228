"""Activations and first weights by name: numpy acts as torch learns, and only hidden layers are drawn anew."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models import MLPActorCritic, MLPIQNetwork, MLPPolicy, MLPQNetwork, MLPSACModel
from rl_training.models.cnn import convolutional_layers
from rl_training.models.heads import SquashedGaussian
from rl_training.models.host import host_forward, numpy_layers, through
from rl_training.models.mlp import EnsembleLinear, ensemble_mlp
from rl_training.models.variants import ACTIVATIONS, INITIALISATIONS, hidden_layers, initialise_hidden_, use_activation_

SIZES = {"obs_dim": 3, "action_dim": 2, "hidden_sizes": (16, 8)}
NETWORKS = {
    "actor and critic": lambda: MLPActorCritic(**SIZES),
    "one trunk": lambda: MLPActorCritic(**SIZES, towers=1),
    "action values": lambda: MLPQNetwork(**SIZES),
    "dueling": lambda: MLPQNetwork(**SIZES, dueling=True),
    "quantiles": lambda: MLPIQNetwork(**SIZES, embedding_dim=6),
    "squashed Gaussian": lambda: MLPSACModel(**SIZES),
    "policy": lambda: MLPPolicy(head=SquashedGaussian(2), obs_dim=3, hidden_sizes=(16, 8)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numpy_computes_what_torch_computes(name):
    """Over the whole range of float32, zero and what overflows an exponential included, and without a warning."""
    layer = ACTIVATIONS[name]()
    ends = np.geomspace(1e-30, 1e30, 400, dtype=np.float32)
    x = np.concatenate([-ends, np.linspace(-12, 12, 1001, dtype=np.float32), ends])[None]
    form = numpy_layers(layer)
    with np.errstate(invalid="raise", divide="raise", over="ignore" if name == "gelu" else "raise"):
        ours = through(form, x.copy())
    theirs = layer(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    assert ours.dtype == np.float32


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_another_activation_acts_in_numpy_as_it_learns(network, name):
    torch.manual_seed(0)
    model = NETWORKS[network]()
    use_activation_(model, name)
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    part = {"quantiles": lambda: model.encoder, "squashed Gaussian": lambda: model.actor}.get(network, lambda: model)()
    forward = model.host() if isinstance(model, MLPActorCritic) else host_forward(part)
    assert forward.in_numpy
    with torch.no_grad():
        expected = part(torch.from_numpy(obs))
    for ours, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (forward(obs), expected))):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)
    assert {type(part) for part in model.modules() if type(part) in ACTIVATIONS.values()} == {ACTIVATIONS[name]}


def test_the_exact_gelu_has_no_numpy_form_and_acts_by_torch():
    network = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    assert numpy_layers(network) is None and not host_forward(network).in_numpy


@pytest.mark.parametrize("network", NETWORKS)
def test_the_activation_changes_no_weight_and_the_own_one_changes_nothing(network):
    torch.manual_seed(0)
    model = NETWORKS[network]()
    before = copy.deepcopy(model.state_dict())
    use_activation_(model, "tanh" if isinstance(model, MLPActorCritic) else "relu")
    use_activation_(model, "silu")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", INITIALISATIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_only_hidden_layers_are_drawn_anew(network, kind):
    torch.manual_seed(0)
    model = NETWORKS[network]()
    before = {name: value.clone() for name, value in model.named_parameters()}
    hidden = {id(layer.weight) for layer in hidden_layers(model)}
    initialise_hidden_(model, kind)
    changed = {name for name, value in model.named_parameters() if not torch.equal(before[name], value)}
    expected = {name for name, value in model.named_parameters() if id(value) in hidden}
    assert expected and {name for name in changed if name.endswith("weight")} == expected
    for head in ("policy_head", "value_head"):
        assert not any(name.startswith(head) for name in changed)


def weights(kind: str) -> list[tuple[torch.Tensor, torch.Tensor, int, int]]:
    """Weights, biases, fan-in and fan-out of a dense, an ensemble's and a convolutional layer, drawn by name."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(200, 300), nn.ReLU())
    ensemble = ensemble_mlp(3, (200, 300, 1))
    pictures, _ = convolutional_layers((4, 36, 36))
    for network in (dense, ensemble, pictures):
        initialise_hidden_(network, kind)
    one, conv = ensemble[0], pictures[1]
    assert isinstance(one, EnsembleLinear) and isinstance(conv, nn.Conv2d)
    found = [(dense[0].weight, dense[0].bias, 200, 300), (conv.weight, conv.bias, 4 * 64, 32 * 64)]
    return [(w.detach(), b.detach(), i, o) for w, b, i, o in [*found, (one.weight, one.bias, 200, 300)]]


def test_orthogonal_weights_are_orthogonal_with_gain_root_two():
    (dense, bias, *_), (conv, *_), (ensemble, *_) = weights("orthogonal")
    for matrix in (dense.t(), conv.flatten(1), *ensemble):
        torch.testing.assert_close(matrix @ matrix.t(), 2 * torch.eye(len(matrix)), rtol=1e-4, atol=1e-4)
    assert not bias.any()


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("xavier", lambda i, o: (6 / (i + o)) ** 0.5), ("uniform", lambda i, o: i**-0.5)],
)
def test_uniform_weights_reach_their_bound(kind, bound):
    for weight, bias, fan_in, fan_out in weights(kind):
        assert 0.99 * bound(fan_in, fan_out) < weight.abs().max() <= bound(fan_in, fan_out)
        assert bool(bias.any()) == (kind == "uniform")


def test_every_member_of_an_ensemble_begins_with_weights_of_its_own_within_one_over_the_root_of_the_inputs():
    layer = EnsembleLinear(5, 16, 200)
    for weights in (layer.weight.detach(), layer.bias.detach()):
        assert (
            (weights.amin((1, 2)) < -0.22).all() and (weights.amax((1, 2)) > 0.22).all() and weights.abs().max() <= 0.25
        )
        assert len({float(member.flatten()[0]) for member in weights}) == 5


def test_kaiming_weights_have_their_deviation():
    for weight, bias, fan_in, _ in weights("kaiming"):
        assert weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02) and not bias.any()


def test_what_has_nothing_to_change_is_refused():
    with pytest.raises(ValueError, match="Linear has no activation that could be replaced"):
        use_activation_(nn.Linear(2, 2), "relu")
    with pytest.raises(ValueError, match="Linear has no hidden layer that could be initialised"):
        initialise_hidden_(nn.Linear(2, 2), "xavier")


class Residual(nn.Module):
    """x + f(x), with a form of its own for numpy."""

    REPLACED = ("forward",)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)

    def host_form(self):
        layers = numpy_layers(self.inner)
        return None if layers is None else lambda x: x + through(layers, x)


class Doubled(Residual):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_layer_of_ones_own_acts_by_its_own_numpy_form_unless_its_forward_is_overridden():
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for kind, in_numpy in ((Residual, True), (Doubled, False)):
        network = nn.Sequential(nn.Linear(4, 8), kind(8), nn.Linear(8, 2))
        forward = host_forward(network)
        assert forward.in_numpy == in_numpy
        np.testing.assert_allclose(forward(obs), network(torch.from_numpy(obs)).detach().numpy(), rtol=1e-5, atol=1e-6)
    network = nn.Sequential(Residual(4))
    network[0].inner[0].register_forward_hook(lambda module, x, y: 2 * y)  # noticed in the parts of it, too
    assert not host_forward(network).in_numpy
