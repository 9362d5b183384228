"""GAIL's maths: rewards, the best discriminator, labels, one-hot actions, the time after an end."""

import math

import pytest
import torch

from rl_training.algorithms.gail import GAIL, gail_discriminator_loss, imitation_reward
from rl_training.models import MLPActorCritic, MLPGAILDiscriminator


def learner(discriminator=None, **changes):
    torch.manual_seed(0)
    discriminator = discriminator or MLPGAILDiscriminator(obs_dim=2, action_dim=2, hidden_sizes=(16,))
    options = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.0, "vf_coef": 0.5}
    policy = MLPActorCritic(obs_dim=2, action_dim=2, hidden_sizes=(16,))
    return GAIL(
        policy=policy, discriminator=discriminator, **{**options, "discriminator_learning_rate": 1e-2, **changes}
    )


def rows(n, shift=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(n, 2, generator=generator) + shift,
        "actions": torch.randint(2, (n,), generator=generator),
    }


@pytest.mark.parametrize(("kind", "at_zero"), [("softplus", math.log(2)), ("logsigmoid", -math.log(2)), ("logit", 0.0)])
def test_rewards_at_zero_rise_with_the_logit_and_stay_finite(kind, at_zero):
    logits = torch.tensor([-100.0, -1.0, 0.0, 1.0, 100.0])
    values = imitation_reward(logits, kind)
    assert values[2].item() == pytest.approx(at_zero) and values.isfinite().all()
    assert (values[1:4].diff() > 0).all()


def test_softplus_rewards_are_positive_and_logsigmoid_rewards_negative():
    logits = torch.linspace(-5, 5, 11)
    assert (imitation_reward(logits, "softplus") > 0).all() and (imitation_reward(logits, "logsigmoid") < 0).all()
    assert imitation_reward(logits, "logit").sum().item() == pytest.approx(0, abs=1e-5)


def test_the_loss_of_indistinguishable_rows_is_two_log_two():
    terms = gail_discriminator_loss(torch.zeros(4), torch.zeros(4))
    assert terms["gail_discriminator_loss"].item() == pytest.approx(2 * math.log(2))


def test_the_best_discriminator_gives_the_log_ratio_of_the_two():
    """p_E = (.8, .2) and p_pi = (.5, .5) over two actions: logits log(.8/.5) and log(.2/.5)."""
    agent = learner(MLPGAILDiscriminator(obs_dim=2, action_dim=2, hidden_sizes=(8,), normalize=False))
    obs = torch.zeros(10, 2)
    expert = {"obs": obs, "actions": torch.tensor([0] * 8 + [1] * 2)}
    policy = {"obs": obs, "actions": torch.tensor([0] * 5 + [1] * 5)}
    for _ in range(600):
        agent.update_discriminator(policy, expert, global_step=0)
    logits = agent.discriminator_logits(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert logits.tolist() == pytest.approx([0.4700, -0.9163], abs=0.02)


@pytest.mark.parametrize("options", [{}, {"gradient_penalty": 1.0}, {"label_smoothing": 0.1}])
def test_the_experts_logits_become_positive_and_its_rewards_larger(options):
    agent = learner(**options)
    for k in range(60):
        metrics = agent.update_discriminator(rows(64, -1, k), rows(64, 1, k + 1000), global_step=0).metrics
    assert metrics["gail_discriminator_expert_logit_mean"] > 0 > metrics["gail_discriminator_policy_logit_mean"]
    assert metrics["gail_discriminator_expert_accuracy"] > 0.8 < metrics["gail_discriminator_policy_accuracy"]
    paid = [agent.discriminator_reward(**rows(64, shift, 5)).mean().item() for shift in (1, -1)]
    assert paid[0] > paid[1]


def test_batches_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="as many rows of the expert as of the policy"):
        learner().update_discriminator(rows(8), rows(4), global_step=0)


def test_a_gradient_penalty_pulls_the_gradient_norm_to_one():
    free, held = learner(), learner(gradient_penalty=10.0)
    for agent in (free, held):
        for k in range(150):
            agent.update_discriminator(rows(64, -2, k), rows(64, 2, k + 1000), global_step=0)
    gradients = []
    for agent in (free, held):
        inputs = agent.discriminator.inputs(*rows(64, 0, 3).values()).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(agent.discriminator.logits(inputs).sum(), inputs)
        gradients.append((gradient.norm(dim=-1) - 1).abs().mean().item())
    assert gradients[1] < 0.5 * gradients[0]


def test_choices_become_one_hot():
    network = MLPGAILDiscriminator(obs_dim=2, action_dim=3)
    obs = torch.zeros(3, 2)
    inputs = network.inputs(obs, torch.tensor([0, 1, 2]))
    assert torch.equal(inputs[:, 2:], torch.eye(3))
    assert len(set(network(obs, torch.tensor([0, 1, 2])).tolist())) == 3
    assert torch.equal(network.inputs(obs, torch.eye(3)), inputs)  # numbers are taken as they are


def test_observations_are_scaled_by_what_both_have_shown():
    agent = learner()
    agent.update_discriminator(rows(500, 10), rows(500, 20), global_step=0)
    normalizer = agent.discriminator.normalizer
    assert normalizer.mean.tolist() == pytest.approx([15, 15], abs=0.3) and float(normalizer.count) == 1000


def test_the_time_after_an_end_is_one_state_whatever_came_before():
    network = MLPGAILDiscriminator(obs_dim=2, action_dim=2, absorbing=True)
    inputs = network.inputs(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]), torch.ones(4))
    assert torch.equal(inputs, torch.tensor([[0.0, 0, 0, 0, 1]]).expand(4, -1))
    assert network.inputs(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))[:, -1].sum() == 0


def test_pictures_have_convolutions():
    network = MLPGAILDiscriminator(obs_shape=(1, 36, 36), action_dim=2, features_dim=8)
    assert network(torch.randint(256, (3, 1, 36, 36), dtype=torch.uint8), torch.tensor([0, 1, 0])).shape == (3,)


def test_a_warm_start_raises_the_likelihood_of_the_experts_actions():
    agent = learner(learning_rate=1e-2)
    batch = {"obs": torch.randn(64, 2), "actions": torch.ones(64, dtype=torch.long)}
    losses = [agent.clone(batch).metrics["clone_loss"] for _ in range(50)]
    assert losses[-1] < 0.1 * losses[0]


def test_no_result_of_an_update_holds_a_graph():
    agent, expert = learner(), rows(16)
    for results in (agent._clone(expert), agent._learn_discriminator({**rows(32), "place": torch.rand(16, 1)})):
        assert results and not any(result.requires_grad for result in results.values())
