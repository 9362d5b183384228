"""Whole updates of Dreamer, in double precision, against a reference that is written from the paper."""

import copy

import numpy as np
import pytest
import torch

from compiling import compiles
from oracles.comparing import FLOAT32, FLOAT64, assert_same_metrics, assert_same_parameters
from oracles.dreamer import DreamerReference
from oracles.precision import double_precision
from oracles.world_model import BINS, cross_entropy, two_hot
from rl_training.algorithms.dreamer import Dreamer, kl_losses
from rl_training.models.dreamer import TwoHot
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.rssm import Size, kl_divergence

LENGTH, SEQUENCES = 6, 3
SMALL = {"deter": 8, "hidden": 6, "latents": 2, "classes": 3, "units": 8, "depth": 2}
OPTIONS = {
    "choices": {},
    "a box": {"num_actions": None, "action_dim": 2},
    "LaProp": {"optimizer": "laprop"},
    "LaProp for a box": {"optimizer": "laprop", "num_actions": None, "action_dim": 2},
    "gradients that are cut": {"max_grad_norm": 0.05},
    "gradients that are never cut": {"max_grad_norm": None},
    "few starts": {"imagination_batch_size": 5},
    "as many starts as states": {"imagination_batch_size": LENGTH * SEQUENCES},
    "other coefficients": {
        **{"gamma": 0.9, "lam": 0.7, "entropy_coef": 0.1, "slow_rate": 0.5, "imagination_horizon": 1},
        **{"world_model_learning_rate": 1e-3, "actor_learning_rate": 2e-3, "critic_learning_rate": 3e-3},
    },
    "one block": {"blocks": 1},
    "four blocks and a wide action": {"blocks": 4, "embed": 5},
    "a normalizer": {"normalize": True},
    "images": {"obs_shape": (3, 32, 48)},
}


@pytest.fixture
def double():
    with double_precision():
        yield


def learner_and_reference(**changes):
    torch.manual_seed(1)
    options = {"obs_shape": (2,), "num_actions": 3, "imagination_horizon": 3, **changes}
    blocks, embed, normalize = (options.pop(k, d) for k, d in (("blocks", 2), ("embed", None), ("normalize", False)))
    size = options.pop("size", Size(**SMALL, blocks=blocks, embed=embed))
    if normalize:
        options["normalizer"] = ObservationNormalizer((2,))
        options["normalizer"].fit(np.random.default_rng(0).normal([3.0, -1.0], [0.1, 4.0], (50, 2)), epsilon=0)
    learner = Dreamer(size=size, **options)
    unlike_at_the_start(learner)
    if normalize:
        normalizer = options.pop("normalizer")
        options["mean_and_std"] = normalizer.mean.clone(), 1 / normalizer.inverse_std
    return learner, DreamerReference(learner, blocks=size.blocks, latents=size.latents, options=options)


@torch.no_grad()
def unlike_at_the_start(learner):
    """Weights under which every term of every loss matters: a KL on both sides of the free nat, values and rewards other than zero, a
    policy that is not uniform, gates and norms away from their start, a slow critic unlike the critic, a range of returns above one."""
    world = learner.world_model
    for parameter in [*world.parameters(), *learner.actor.parameters(), *learner.critic.parameters()]:
        parameter.add_(0.1 * torch.randn_like(parameter))
    world.rssm.prior_net[-1].weight.mul_(3)
    world.rssm.posterior_net[-1][-1].weight.mul_(3)
    learner.actor.net[-1].weight.add_(torch.randn_like(learner.actor.net[-1].weight))
    bell = -0.5 * ((torch.arange(255.0) - 127) / 12).square()  # numbers between -5 and 5
    for network in (world.reward, learner.critic.net, learner.slow_critic.net):
        network[-1].weight.normal_(std=0.5)
        network[-1].bias.copy_(bell + 0.1 * torch.randn(255))
    learner.scale.load_state_dict({"low": torch.tensor(-1.5), "high": torch.tensor(2.5)})


def sequences(learner, seed):
    """Sequences with a termination, a truncation, an episode that starts with the sequence, and one that does not."""
    rng = torch.Generator().manual_seed(seed)
    shape = (LENGTH, SEQUENCES)
    pixels = len(learner.world_model.encoder.state_dict()) == 12
    obs = 3 * torch.randn(*shape, 2, generator=rng)
    if pixels:
        obs = torch.randint(256, (*shape, 3, 32, 48), generator=rng, dtype=torch.uint8)
    if learner.actor.categorical:
        actions = torch.randint(3, shape, generator=rng)
    else:
        actions = torch.randn(*shape, 2, generator=rng)  # some of them out of bounds
    dones, starts = torch.zeros(2, *shape)
    dones[2, 0], starts[3, 0] = 1, 1
    starts[4, 1] = 1
    starts[0, 2] = 1
    rewards = 4 * torch.randn(*shape, generator=rng)
    return {"obs": obs, "actions": actions, "rewards": rewards, "dones": dones, "episode_starts": starts}


def compared(learner, reference, kind, seed, tolerance=FLOAT64):
    """The metrics of one update, which learner and reference make with the same random numbers."""
    batch = sequences(learner, seed)
    torch.manual_seed(seed)
    theirs = getattr(reference, kind)(batch)
    torch.manual_seed(seed)
    ours = getattr(learner, kind)(batch, global_step=0)
    assert set(ours.metrics) == set(theirs) and ours.num_gradient_steps == 1
    assert_same_metrics(ours.metrics, theirs, tolerance=tolerance)
    for name, module in reference.modules.items():
        assert_same_parameters(getattr(learner, name), module, tolerance=tolerance, name=name)
    assert float(learner.scale.low) == pytest.approx(reference.low, rel=tolerance)
    assert float(learner.scale.high) == pytest.approx(reference.high, rel=tolerance)
    return theirs


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_updates_are_those_of_the_paper(changes):
    learner, reference = learner_and_reference(**changes)
    before = {name: copy.deepcopy(module.state_dict()) for name, module in reference.modules.items()}
    for seed in range(3):
        metrics = compared(learner, reference, "update", seed)
    assert metrics["dreamer_return_scale"] > 1.5
    assert metrics["dreamer_dynamics_loss"] > 1.05
    for name, module in reference.modules.items():  # networks that nobody has updated would agree too
        assert not [key for key, value in module.named_parameters() if torch.equal(value, before[name][key])]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", ["update_world_model", "update_actor_critic"])
def test_world_model_and_behaviour_are_updated_apart_too(kind):
    learner, reference = learner_and_reference()
    for seed in range(3):
        compared(learner, reference, kind, seed)
    compared(learner, reference, "update", 3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("changes", [{}, OPTIONS["a box"], OPTIONS["a normalizer"]], ids=["choices", "a box", "scaled"])
def test_acting_follows_the_posterior_from_step_to_step(changes, deterministic):
    """Three environments, one of which begins anew on the way; actions out of bounds are carried as the bounds."""
    learner, reference = learner_and_reference(**changes)
    rngs = [None, None] if deterministic else [np.random.default_rng(5) for _ in range(2)]
    carries = [np.zeros((3, learner.initial_carry(3).shape[1])) for _ in range(2)]
    assert not learner.initial_carry(3).any()
    for t in range(5):
        obs = np.random.default_rng(t).normal(size=(3, 2)) * 3
        ours = learner.act(obs, carry=carries[0], deterministic=deterministic, rng=rngs[0])
        actions, carry = reference.act(obs, carries[1], rngs[1])
        np.testing.assert_allclose(ours.actions, actions, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours.carry, carry, rtol=1e-9, atol=1e-9)
        carries = [ours.carry.copy(), carry.copy()]
        if t == 2:
            carries[0][1] = carries[1][1] = 0


def test_actions_out_of_bounds_count_as_the_bounds_for_actor_and_rssm_alike():
    learner, _ = learner_and_reference(num_actions=None, action_dim=2)
    beyond, bounds = torch.tensor([[3.0, -0.5], [-7.0, 1.0]]), torch.tensor([[1.0, -0.5], [-1.0, 1.0]])
    assert torch.equal(learner.actor.as_inputs(beyond), bounds)
    embed = learner.world_model.rssm.embed
    assert torch.equal(embed(beyond), embed(bounds)) and not torch.equal(embed(bounds), embed(-bounds))


@pytest.mark.usefixtures("double")
def test_numbers_of_any_size_are_coded_and_decoded_by_their_two_bins():
    low, next_to_it = BINS[:2]
    numbers = [-1e12, low, (low + next_to_it) / 2, -1.0, -1e-3, 0.0, BINS[127], 0.3, 2.5, 12345.0, BINS[-1], 1e12]
    x, bins = torch.tensor(numbers), TwoHot()
    places, weights = bins.neighbours(x)
    code = torch.zeros(len(x), 255).scatter(1, places, weights)
    torch.testing.assert_close(code, two_hot(x))
    logits = torch.randn(len(x), 255)
    torch.testing.assert_close(bins.loss(logits.log_softmax(-1), x), cross_entropy(logits, x))
    torch.testing.assert_close(bins.mean(code.clamp(min=1e-300).log()), x.clamp(BINS[0], BINS[-1]))


def test_the_divergence_of_categoricals_by_hand():
    """KL((0.9, 0.1) || (0.5, 0.5)) is 0.3681, and the other way round 0.5108; latents add up, and less than one nat counts as one."""
    p, q = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    assert kl_divergence(torch.stack([p]), torch.stack([q])).item() == pytest.approx(0.3681, abs=1e-4)
    assert kl_divergence(torch.stack([q]), torch.stack([p])).item() == pytest.approx(0.5108, abs=1e-4)
    four, of_four = torch.stack([p] * 4), torch.stack([q] * 4)
    for loss in kl_losses(four, of_four):
        assert loss.item() == pytest.approx(4 * 0.3681, abs=1e-3)
    assert [loss.item() for loss in kl_losses(four[:2], of_four[:2])] == [1.0, 1.0]


def assert_uniform(weights, bound):
    """Numbers between minus and plus the bound that fill that range."""
    weights = weights.detach()
    assert bound * 0.9 < weights.max() <= bound and -bound <= weights.min() < -bound * 0.9
    assert abs(weights.mean()) < 0.2 * bound and weights.std() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_networks_start_as_the_paper_has_them():
    """Rewards and values of zero, a policy that is almost uniform, grey images, and weights by the number of inputs."""
    size = Size(deter=64, hidden=32, latents=4, classes=4, units=32, depth=2, blocks=2)
    learner = Dreamer(obs_shape=(3, 32, 32), size=size, num_actions=3)
    world, rssm = learner.world_model, learner.world_model.rssm
    for last in (world.reward[-1], learner.critic.net[-1]):
        assert not last.weight.any() and not last.bias.any()
    features = torch.randn(50, world.width)
    assert not world.rewards(features).any() and not learner.critic.values(features).any()
    assert (learner.actor(features).exp() - 1 / 3).abs().max() < 0.01
    assert (world.decoder(features) - 0.5).abs().mean() < 0.3 and (world.decoder.last.bias == 0.5).all()
    for part in (rssm.of_known, rssm.of_tokens):
        assert_uniform(part.weight, (64 + world.encoder.width) ** -0.5)
    assert_uniform(rssm.inner.weight, (32 + 3 * 32) ** -0.5)
    assert_uniform(rssm.gates.weight, 32**-0.5)
    assert not rssm.inner.bias.any() and not rssm.gates.bias.any() and not world.goes_on[-1].bias.any()
    state = rssm.initial(5)
    assert state.deter.shape == (5, 64) and state.stoch.shape == (5, 16) and not torch.cat(state, 1).any()
    slow, critic = learner.slow_critic.state_dict(), learner.critic.state_dict()
    assert all(torch.equal(slow[name], critic[name]) for name in critic)


def test_images_of_other_sides_are_averaged_over_areas():
    """48 x 72 pixels as 48 x 64, say: the means of pixels that overlap a target's."""
    learner, _ = learner_and_reference(obs_shape=(3, 48, 72))
    assert learner.world_model.encoder.sides == (48, 64)
    wide = torch.randint(256, (2, 5, 3, 48, 72), dtype=torch.uint8)
    target = learner.world_model.encoder.target(wide)
    assert learner.world_model.encoder.target(wide[..., :64]).dtype == torch.uint8  # nothing to do
    for column in range(64):
        first, last = column * 72 // 64, -(-(column + 1) * 72 // 64)
        torch.testing.assert_close(target[..., column], wide[..., first:last].float().mean(-1))


@compiles
def test_updates_through_our_own_kernels_are_those_of_the_paper_too():
    """In float32: the recurrence is a kernel then, of the sizes that its own tests build."""
    size = Size(deter=24, hidden=20, latents=3, classes=5, units=16, depth=2, blocks=2, embed=7)
    learner, reference = learner_and_reference(size=size)
    learner.use_compiled()
    assert learner.compiled
    for seed in range(2):
        compared(learner, reference, "update", seed, tolerance=20 * FLOAT32)
