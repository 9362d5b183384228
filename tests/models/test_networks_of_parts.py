"""Networks on rows of several parts: taken apart, encoded, joined, and normalised where they are vectors."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.base.parts import Part, Parts
from rl_training.models import MLPActorCritic, MLPGAILDiscriminator, MLPPPGModel, MLPQNetwork
from rl_training.models.cnn import convolutional_layers
from rl_training.models.heads import Categorical
from rl_training.models.mlp_fqf_network import MLPFQFNetwork
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.models.mlp_policy import MLPPolicy
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.parts import IMAGE_FEATURES, PartsEncoder, PartsNormalizer, join, take_apart

X = Part("x", ("x",), "vector", (2,), given=(2,))
N = Part("n", ("n",), "vector", (3,), source="discrete", choices=(3,), first=(0,))
EYE = Part("eye", ("eye",), "image", (3, 7, 8), dtype="uint8", given=(7, 8, 3), channels_last=True, divisor=255.0)
MAP = Part("map", ("map",), "image", (2, 6, 5), given=(2, 6, 5), divisor=4.0)
MASK = Part("mask", ("mask",), "mask", (2,), given=(2,))
FORMS = {
    "bytes": Parts([EYE, X, N]),
    "both": Parts([EYE, X, MAP]),
    "floats": Parts([MAP, X]),
    "image of floats": Parts([MAP]),
    "masked": Parts([EYE, X, MASK]),
}


def seen(n, seed=0):
    """Observations with every part."""
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.normal(3, 2, 2).astype(np.float32), "n": int(rng.integers(3)), "mask": np.array([1.0, 0.0]),
            "eye": rng.integers(256, size=(7, 8, 3), dtype=np.uint8), "map": rng.uniform(-4, 4, (2, 6, 5)).astype("f4"),
        }
        for _ in range(n)
    ]  # fmt: skip


def rows_of(parts, n=5, seed=0):
    return np.stack([parts.pack(one) for one in seen(n, seed)])


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_taken_apart_into_what_was_packed(form):
    parts, given = FORMS[form], seen(5)
    vectors, *images = take_apart(torch.from_numpy(rows_of(parts)), parts)
    own = {"x": lambda one: one["x"], "n": lambda one: np.eye(3, dtype="f4")[one["n"]]}
    expected = [np.concatenate([own[p.name](one) for p in parts.all if p.kind == "vector"] or [[]]) for one in given]
    assert np.array_equal(vectors.numpy(), np.stack(expected))
    turned = {"eye": lambda one: one["eye"].transpose(2, 0, 1), "map": lambda one: one["map"]}
    for part, image in zip(parts.images, images, strict=True):
        assert np.array_equal(image.numpy(), np.stack([turned[part.name](one) for one in given]))


def test_slices_of_a_wider_matrix_are_rows_too():
    parts, rows = FORMS["both"], rows_of(FORMS["both"])
    wide = torch.zeros(5, parts.width + 3, dtype=torch.uint8)
    wide[:, : parts.width] = torch.from_numpy(rows)
    one = take_apart(wide[:, : parts.width].contiguous(), parts)
    assert all(torch.equal(a, b) for a, b in zip(one, take_apart(torch.from_numpy(rows), parts)))


@pytest.mark.parametrize("form", FORMS)
def test_the_encoder_joins_the_vectors_with_features_of_every_image(form):
    parts = FORMS[form]
    encoder, rows = PartsEncoder(parts), torch.from_numpy(rows_of(parts))
    vectors, *images = take_apart(rows, parts)
    features = []
    for module, image, part in zip(encoder.images, images, parts.images, strict=True):
        convolved = nn.Sequential(*list(module[0])[1:])(image.float() / part.divisor)
        features.append(module[1](convolved).relu())
    expected = torch.cat([vectors.float(), *features], 1)
    assert torch.equal(encoder(rows), expected) and torch.equal(encoder(take_apart(rows, parts)), expected)
    assert encoder.width == expected.shape[1] == parts.vector_size + IMAGE_FEATURES * len(images)


def test_images_are_divided_by_their_range():
    for part, network in zip(FORMS["both"].images, PartsEncoder(FORMS["both"]).images):
        scale = network[0][0]
        assert torch.equal(scale(torch.full((1,), 3.0)), torch.tensor([3 / part.divisor]))


NETWORKS = {
    "ppo": lambda p: MLPActorCritic(obs_parts=p, action_dim=4, hidden_sizes=(16, 8)),
    "ppg, detached": lambda p: MLPPPGModel(obs_parts=p, action_dim=4, hidden_sizes=(16,)),
    "ppg, dual": lambda p: MLPPPGModel(obs_parts=p, action_dim=4, hidden_sizes=(16,), architecture="dual"),
    "dqn": lambda p: MLPQNetwork(obs_parts=p, action_dim=4, hidden_sizes=(16,)),
    "dueling": lambda p: MLPQNetwork(obs_parts=p, action_dim=4, hidden_sizes=(16, 8), dueling=True),
    "noisy": lambda p: MLPQNetwork(obs_parts=p, action_dim=4, hidden_sizes=(16,), noisy=True),
    "qr_dqn": lambda p: MLPQRQNetwork(obs_parts=p, action_dim=4, num_quantiles=3, hidden_sizes=(16,)),
    "iqn": lambda p: MLPIQNetwork(obs_parts=p, action_dim=4, hidden_sizes=(16,), embedding_dim=4),
    "fqf": lambda p: MLPFQFNetwork(obs_parts=p, action_dim=4, hidden_sizes=(16,), embedding_dim=4, num_quantiles=3),
    "bc": lambda p: MLPPolicy(obs_parts=p, head=Categorical(4), hidden_sizes=(16,)),
    "gail": lambda p: MLPGAILDiscriminator(obs_parts=p, action_dim=4, hidden_sizes=(16,), features_dim=8),
}


def outputs(name, network, rows):
    if name == "gail":
        return network.eval()(rows, torch.arange(len(rows)) % 4)
    result = network(rows, random_taus=False) if name == "iqn" else network.eval()(rows)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("form", ["both", "floats"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_depends_on_every_part(name, form):
    parts = FORMS[form]
    network = NETWORKS[name](parts)
    base = outputs(name, network, torch.from_numpy(rows_of(parts, 6)))
    assert base.shape[0] == 6 and torch.isfinite(base).all()
    for part in parts.all:
        others, changed = seen(6), seen(6, seed=1)
        rows = np.stack([parts.pack({**one, part.name: other[part.name]}) for one, other in zip(others, changed)])
        assert not torch.allclose(outputs(name, network, torch.from_numpy(rows)), base), part.name


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_the_encoder_of_every_image(name):
    parts = FORMS["both"]
    network = NETWORKS[name](parts)
    outputs(name, network, torch.from_numpy(rows_of(parts, 6))).square().sum().backward()
    encoders = [module for module in network.modules() if isinstance(module, PartsEncoder)]
    assert encoders
    for encoder in encoders[:1]:
        for image in encoder.images:
            assert float(image[0][1].weight.grad.abs().sum()) > 0


@pytest.mark.parametrize("name", ["ppo", "ppg, dual"])
def test_acting_on_the_host_is_the_network_itself(name):
    parts = FORMS["both"]
    network, rows = NETWORKS[name](parts), rows_of(parts, 6)
    with torch.no_grad():
        expected = network(torch.from_numpy(rows))
    assert all(np.array_equal(mine, theirs.numpy()) for mine, theirs in zip(network.host()(rows), expected))


@pytest.mark.parametrize("form", ["bytes", "both", "floats", "masked"])
def test_the_normaliser_scales_the_vectors_and_nothing_else(form):
    parts = FORMS[form]
    rows, plain = rows_of(parts, 50), ObservationNormalizer((parts.vector_size,))
    normalizer = PartsNormalizer(parts)
    vectors = take_apart(torch.from_numpy(rows), parts)[0]
    for piece in np.split(np.arange(50), 5):
        normalizer.observe(rows[piece])
        plain.observe(vectors[piece].numpy())
    before = rows.copy()
    on_host, on_device = normalizer.host(rows), normalizer(torch.from_numpy(rows))
    assert np.array_equal(rows, before) and np.array_equal(on_host, on_device.numpy())  # what was given stays
    mine = take_apart(on_device, parts)
    assert torch.equal(mine[0], plain(vectors)) and abs(float(mine[0].mean())) < 1e-5
    for image, original in zip(mine[1:], take_apart(torch.from_numpy(rows), parts)[1:], strict=True):
        assert torch.equal(image, original)
    tail = parts.vector_size * (4 if parts.dtype == np.uint8 else 1)
    assert np.array_equal(on_host[:, tail:], rows[:, tail:])


def test_the_normaliser_fits_a_dataset_and_acts_as_its_subclass_does():
    parts = FORMS["both"]
    rows = rows_of(parts, 30)
    normalizer, plain = PartsNormalizer(parts, clip=1e9), ObservationNormalizer((2,), clip=1e9)
    vectors = take_apart(torch.from_numpy(rows), parts)[0]
    normalizer.fit(rows)
    plain.fit(vectors.numpy())
    assert torch.equal(take_apart(normalizer(torch.from_numpy(rows)), parts)[0], plain(vectors))

    class Halved(PartsNormalizer):
        def forward(self, x):
            return join(take_apart(x, self.parts)[0] / 2, x, self.parts)

    halved = take_apart(torch.from_numpy(Halved(parts).host(rows)), parts)[0]
    assert torch.equal(halved, vectors / 2)


@pytest.mark.parametrize("side", [*range(5, 13), 19, 20, 21, 35, 36, 40])
def test_images_of_any_size_from_five_pixels_on_have_convolutions(side):
    layers, size = convolutional_layers((2, side, side + 3))
    assert layers(torch.zeros(3, 2, side, side + 3, dtype=torch.uint8)).shape == (3, size)
    kernels = [layer.kernel_size[0] for layer in layers if isinstance(layer, nn.Conv2d)]
    assert kernels == ([8, 4, 3] if side >= 36 else [3, 3, 3] if side >= 20 else [3, 3])
    assert size <= 64 * 10 * 13


def test_smaller_ones_are_refused_with_their_size():
    with pytest.raises(ValueError, match="at least 5 x 5 pixels, got 4 x 20"):
        MLPQNetwork(obs_shape=(1, 4, 20), action_dim=2)


def test_every_pixel_of_a_small_image_reaches_the_features():
    for side in (5, 7, 10, 20, 24):
        layers, _ = convolutional_layers((1, side, side))
        images = torch.zeros(side * side, 1, side, side)
        images.view(side * side, -1).fill_diagonal_(255.0)
        moved = (layers(images) - layers(torch.zeros(1, 1, side, side))).abs().sum(1).view(side, side)
        assert (moved > 0).float().mean() >= (side - 3) ** 2 / side**2  # a stride may leave the last rows out


@pytest.mark.parametrize("kind", [MLPQNetwork, MLPIQNetwork, MLPActorCritic])
def test_a_network_has_to_be_told_what_it_observes(kind):
    with pytest.raises(ValueError, match=r"^give obs_dim \(vectors\), obs_shape or obs_parts$"):
        kind(action_dim=2)
