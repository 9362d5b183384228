"""What an actor does is what its network says, by hand: few observations in numpy, many in torch, and exported."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from built_learners import DIM, OBS, built, fitted
from oracles.actors import Weights, perceptron

FEW, MANY = 5, 300  # beyond 256 rows torch acts
BOXES = {
    "sac": {},
    "rlpd": {"num_critics": 2},
    "cql": {},
    "iql": {},
    "td3_bc": {"normalize_observations": False},
    "mse": {"loss": "mse"},
    "likelihood": {"loss": "likelihood"},
}


def network(learner):
    return learner.policy if hasattr(learner, "policy") else learner.model


def made(name, **options):
    learner = built({"mse": "bc", "likelihood": "bc"}.get(name, name), **{**BOXES[name], **options})
    final = network(learner).body[-1] if hasattr(learner, "policy") else learner.model.actor[-1]
    with torch.no_grad():
        if final.out_features == 2 * DIM:  # one log-deviation beyond its bounds
            final.bias[DIM:] = torch.tensor([3.0, -1.0])
        if name == "iql":
            learner.model.log_std[:] = torch.tensor([-6.0, 0.5])
    return learner


def expected(name, learner, obs, noise):
    """Actions (B, A) for given noise."""
    weights = Weights(network(learner).state_dict())
    outputs = perceptron(weights, "actor" if "actor.0.weight" in weights else "body", obs).detach()
    if name in ("td3_bc", "mse"):
        return outputs.tanh()
    if name == "iql":
        return (outputs.tanh() + weights["log_std"].detach().clamp(-5, 2).exp() * noise).clamp(-1, 1)
    mean, log_std = outputs.chunk(2, -1)
    return (mean + log_std.clamp(-20, 2).exp() * noise).tanh()


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("name", BOXES)
def test_boxes(name, rows):
    learner = made(name)
    obs = np.random.default_rng(0).standard_normal((rows, OBS)).astype(np.float32)
    noise = torch.tensor(np.random.default_rng(1).standard_normal((rows, DIM), dtype=np.float32))
    drawn = learner.act(obs, rng=np.random.default_rng(1)).actions
    np.testing.assert_allclose(drawn, expected(name, learner, torch.tensor(obs), noise), atol=1e-5)
    best = expected(name, learner, torch.tensor(obs), 0 * noise)
    np.testing.assert_allclose(learner.act(obs, deterministic=True).actions, best, atol=1e-5)
    exported = learner.policy_module()(torch.tensor(obs)).detach()
    np.testing.assert_allclose(exported, best, atol=1e-5)


@pytest.mark.parametrize("name", BOXES)
def test_observations_are_normalised_before_acting(name):
    learner = made(name, normalize_observations=True)
    mean, std = fitted(learner)
    obs = np.random.default_rng(0).standard_normal((FEW, OBS)).astype(np.float32)
    obs[0] *= 50  # tens of deviations away, of which online algorithms see ten
    seen = torch.tensor((obs - mean) / (std + 1e-3)).float()
    seen = seen.clamp(-10, 10) if name in ("sac", "rlpd") else seen
    best = expected(name, learner, seen, torch.zeros(FEW, DIM))
    np.testing.assert_allclose(learner.act(obs, deterministic=True).actions, best, atol=1e-5)


def test_choices_are_drawn_by_their_probabilities_and_the_best_is_the_likeliest():
    learner = built("bc", gym.spaces.Discrete(3))
    obs = np.tile(np.array([[0.3, -1.0, 0.5]], np.float32), (4000, 1))
    weights = Weights(learner.policy.state_dict())
    logits = 4 * perceptron(weights, "body", torch.tensor(obs[:1])).detach()
    with torch.no_grad():
        learner.policy.body[-1].weight *= 4
        learner.policy.body[-1].bias *= 4
    drawn = np.concatenate(
        [learner.act(part, rng=np.random.default_rng(i)).actions for i, part in enumerate(np.split(obs, 20))]
    )
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    np.testing.assert_allclose(shares, logits.softmax(-1)[0], atol=0.03)
    assert learner.act(obs[:1], deterministic=True).actions.item() == logits.argmax().item()
