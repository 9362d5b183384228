"""Networks and distributions of on-policy learning: how weights begin, what is drawn, and what is greedy."""

import math

import numpy as np
import pytest
import torch

from on_policy_learners import HEADS, IMAGES, VECTORS, network, oracle_network
from rl_training.algorithms.ppo import PPO
from rl_training.models import MLPActorCritic, MLPGAILDiscriminator, MLPPPGModel
from rl_training.models.heads import Bernoulli, Categorical, DiagonalGaussian
from rl_training.models.normalizer import ObservationNormalizer


def assert_orthogonal(weight: torch.Tensor, gain: float) -> None:
    """Every singular value is the gain."""
    values = torch.linalg.svdvals(weight.detach().flatten(1))
    torch.testing.assert_close(values, torch.full_like(values, gain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [VECTORS, {**VECTORS, "towers": 1}, IMAGES, {**IMAGES, "head_sizes": (6,)}], ids=str)
def test_actor_critics_begin_orthogonal_with_a_small_policy_head_and_no_biases(shape):
    made = MLPActorCritic(action_dim=3, **shape)
    weights = dict(made.named_parameters())
    assert all((value == 0).all() for name, value in weights.items() if name.endswith("bias"))
    for name, value in weights.items():
        if name.startswith("trunk") and name.endswith("weight"):
            for member in value if shape.get("towers") != 1 and value.ndim == 3 else [value]:
                assert_orthogonal(member, math.sqrt(2))
    assert_orthogonal(made.policy_head.weight, 0.01)
    assert_orthogonal(made.value_head.weight, 1.0)


def test_the_auxiliary_head_and_the_discriminator_begin_orthogonal_too():
    model = MLPPPGModel(action_dim=3, **VECTORS)
    assert_orthogonal(model.aux_head.weight, 1.0)
    discriminator = MLPGAILDiscriminator(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    for layer in (discriminator.body[0], discriminator.body[2]):
        assert_orthogonal(layer.weight, math.sqrt(2))
        assert (layer.bias == 0).all()


@pytest.mark.parametrize(
    ("options", "head", "log_std"),
    [({}, Categorical, None), ({"continuous": True, "initial_log_std": -0.7}, DiagonalGaussian, -0.7)],
)
def test_a_number_of_actions_is_enough_to_make_a_network(options, head, log_std):
    made = MLPActorCritic(action_dim=3, **VECTORS, **options)
    assert isinstance(made.head, head) and made.policy_head.out_features == 3
    assert made.log_std is None if log_std is None else made.log_std.tolist() == pytest.approx([log_std] * 3)
    with pytest.raises(ValueError, match="needs action_dim or head"):
        MLPActorCritic(**VECTORS)


def acting_and_oracle(kind, cls=MLPActorCritic, normalizer=None):
    policy, options = network(kind, cls, torch.float32), {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.0}
    return PPO(policy=policy, **options, vf_coef=0.5, normalizer=normalizer), oracle_network(policy, kind)


@pytest.mark.parametrize("kind", HEADS)
def test_acting_draws_from_the_policy_that_is_learned(kind):
    """Frequencies of 20,000 draws in one state, and the log-probability of each, are those of torch's distribution."""
    learner, oracle = acting_and_oracle(kind)
    obs = np.tile(np.array([[0.3, -1.0, 0.8]], np.float32), (20_000, 1))
    for actions, logprobs, values in (_acted(learner, obs), _acted(learner, obs[:200])):  # by torch and by numpy
        seen, drawn = torch.from_numpy(obs[: len(actions)]), torch.as_tensor(actions)
        np.testing.assert_allclose(logprobs, oracle.log_probs(seen, drawn).detach(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values, oracle.values(seen).detach(), rtol=1e-4, atol=1e-4)
        parts, columns = oracle.policies(seen[:1]), drawn[:, None] if drawn.ndim == 1 else drawn
        error = 5 * 0.5 / math.sqrt(len(actions))
        if kind == "box":
            base = parts[0].base_dist
            np.testing.assert_allclose(
                columns.mean(0), base.mean[0].detach(), atol=2 * error * base.stddev.max().item()
            )
            np.testing.assert_allclose(
                columns.std(0), base.stddev[0].detach(), atol=2 * error * base.stddev.max().item()
            )
        elif kind == "multi_binary":
            np.testing.assert_allclose(columns.double().mean(0), parts[0].mean[0].detach(), atol=error)
        else:
            for column, part in zip(columns.T, parts):
                shares = torch.bincount(column, minlength=part.probs.shape[1]) / len(column)
                np.testing.assert_allclose(shares, part.probs[0].detach(), atol=error)


def _acted(learner, obs, **options):
    acting = learner.act(obs, rng=np.random.default_rng(0), **options)
    return acting.actions, acting.extras["logprobs"], acting.extras["values"]


@pytest.mark.parametrize("kind", HEADS)
def test_acting_greedily_takes_the_mode_and_so_does_the_exported_policy(kind):
    learner, oracle = acting_and_oracle(kind)
    obs = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    actions, logprobs, _ = _acted(learner, obs, deterministic=True)
    parts = oracle.policies(torch.from_numpy(obs))
    modes = torch.stack([part.mode for part in parts], 1) if len(parts) > 1 else parts[0].mode
    np.testing.assert_allclose(actions, modes.detach(), atol=1e-5)
    np.testing.assert_allclose(
        logprobs, oracle.log_probs(torch.from_numpy(obs), torch.as_tensor(actions)).detach(), rtol=1e-4, atol=1e-4
    )
    scores = learner.policy_module()(torch.from_numpy(obs)).detach()
    np.testing.assert_allclose(chosen(kind, scores), modes.detach(), atol=1e-5)
    taken = torch.as_tensor(actions)  # scores made of actions choose those actions
    np.testing.assert_array_equal(chosen(kind, learner.model.head.best(learner.model.head.scores(taken))), taken)


def chosen(kind, scores):
    """The greedy actions of scores; those of a box are the actions themselves."""
    if kind == "discrete":
        return scores.argmax(1)
    if kind == "multi_discrete":
        return torch.stack([part.argmax(1) for part in scores.split((2, 3), 1)], 1)
    return scores if kind == "box" else (scores > 0).long()


def test_probabilities_that_round_away_are_drawn_without_error():
    huge = np.array([[1e4, -1e4, 0.0]], np.float32)
    actions, logprobs = Categorical(3).sample(np.repeat(huge, 50, 0), np.random.default_rng(0), False)
    assert (actions == 0).all() and (logprobs == 0).all()
    with np.errstate(over="ignore"):
        switches, logprobs = Bernoulli(2).sample(
            np.array([[500.0, -500.0]], np.float32), np.random.default_rng(0), False
        )
    assert switches.tolist() == [[1, 0]] and logprobs == pytest.approx(0)


class OwnPolicy(MLPActorCritic):
    """A policy with an ``act`` of its own, which acts in torch."""

    def act(self, obs, *, deterministic=False):
        return super().act(obs, deterministic=deterministic)


def test_a_policy_that_acts_by_itself_is_greedy_where_it_should_be():
    learner, oracle = acting_and_oracle("box", OwnPolicy)
    obs = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    mean = oracle.policies(torch.from_numpy(obs))[0].mean.detach()
    np.testing.assert_allclose(_acted(learner, obs, deterministic=True)[0], mean, atol=1e-5)
    assert np.abs(_acted(learner, obs)[0] - mean.numpy()).max() > 0.1


@pytest.mark.parametrize("cls", [MLPActorCritic, OwnPolicy])
def test_values_are_those_of_normalised_observations_whoever_acts(cls):
    """What a truncated episode bootstraps from is on the same scale as the values beside it."""
    normalizer, rng = ObservationNormalizer((3,)), np.random.default_rng(0)
    rows = rng.normal(40, 9, (30, 3)).astype(np.float32)
    normalizer.observe(rows)
    learner, oracle = acting_and_oracle("discrete", cls, normalizer)
    scaled = ((rows - rows.mean(0)) / rows.std(0)).clip(-10, 10)
    with torch.no_grad():
        expected = oracle.values(torch.from_numpy(scaled))
    np.testing.assert_allclose(learner.values(rows), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(learner.act(rows, rng=rng).extras["values"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(learner.act(rows, rng=rng).extras["obs"], scaled, rtol=1e-4, atol=1e-4)
