"""GAIL's discriminator, its rewards, its warm start and its policy updates, against the same in plain torch."""

import copy

import pytest
import torch

from compiling import compiles
from on_policy_learners import FIFTH_OF_A_STEP, HEADS, OPTIONS, network, oracle_network, rollout
from oracles.comparing import FLOAT32, FLOAT64, assert_same_metrics
from oracles.gail import GAIL as Oracle
from oracles.gail import Discriminator
from rl_training.algorithms.gail import GAIL, gail_discriminator_loss
from rl_training.models import MLPGAILDiscriminator
from rl_training.models.normalizer import ObservationNormalizer


def pair(kind="discrete", *, dtype=torch.float64, images=False, normalize=True, absorbing=False, **options):
    policy = network(kind, dtype=dtype)
    shape = {"obs_shape": (1, 36, 36), "features_dim": 6} if images else {"obs_dim": 3}
    actions = HEADS[kind].size if kind == "discrete" else HEADS[kind].dim
    torch.manual_seed(3)
    discriminator = MLPGAILDiscriminator(
        **shape, action_dim=actions, hidden_sizes=(9, 8), normalize=normalize, absorbing=absorbing
    ).to(dtype)
    options = {**OPTIONS, "discriminator_learning_rate": 2**-7, **options}
    plain = Discriminator(
        discriminator.state_dict(),
        actions if kind == "discrete" else None,
        normalize=normalize and not images,
        absorbing=absorbing,
    )
    oracle = Oracle(oracle_network(policy, kind), plain, **options)
    return GAIL(policy=policy, discriminator=discriminator, **options), oracle


def expert_and_policy(oracle, seed, *, images=False, absorbing=False, rows=6):
    """Rows of an expert and of the policy; the expert's observations are further to the right."""
    batches = []
    for shift, offset in ((1.5, 1000), (0.0, 0)):
        batch = rollout(oracle.network, rows, seed=seed + offset)
        generator = torch.Generator().manual_seed(seed + offset)
        batch = {"obs": 3 * batch["obs"] + shift, "actions": batch["actions"]}
        if images:
            batch["obs"] = torch.randint(256, (rows, 1, 36, 36), generator=generator, dtype=torch.uint8)
        if absorbing:
            batch["absorbed"] = (torch.rand(rows, generator=generator) < 0.4).float()
        batches.append(batch)
    return batches


def assert_same_weights(learner, oracle, before, tolerance):
    """The discriminator's weights; its statistics are the oracle's own."""
    for name, value in oracle.discriminator.state_dict().items():
        ours = learner.discriminator.state_dict()[name]
        torch.testing.assert_close(
            ours, value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert not torch.equal(ours, before[name]), f"{name} was not updated"


def compare(kind="discrete", *, compiled=False, images=False, absorbing=False, **options):
    learner, oracle = pair(kind, images=images, absorbing=absorbing, **options)
    before = copy.deepcopy(learner.discriminator.state_dict())
    if compiled:
        learner.use_compiled()
    for k in range(4):
        expert, policy = expert_and_policy(oracle, k, images=images, absorbing=absorbing)
        torch.manual_seed(k)  # the learner draws the places of the penalty as one tensor (B, 1)
        result = learner.update_discriminator(policy, expert, global_step=0)
        torch.manual_seed(k)
        place = torch.rand(len(policy["obs"]), 1) if options.get("gradient_penalty") else None
        assert_same_metrics(result.metrics, oracle.update_discriminator(policy, expert, place), tolerance=FLOAT32)
        assert result.num_gradient_steps == 1
        for batch in (expert, policy):
            rewards = oracle.rewards(**batch)
            torch.testing.assert_close(
                learner.discriminator_reward(**batch).double(), rewards.double(), rtol=1e-5, atol=1e-5
            )
            torch.testing.assert_close(
                learner.discriminator_reward(batch["obs"], batch["actions"]).double(),
                oracle.rewards(batch["obs"], batch["actions"]).double(), rtol=1e-5, atol=1e-5,
            )  # fmt: skip
    assert learner.compiled == (compiled and not images)
    assert_same_weights(learner, oracle, before, FIFTH_OF_A_STEP if options.get("dtype") == torch.float32 else FLOAT64)


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("absorbing", [False, True], ids=["", "absorbing"])
@pytest.mark.parametrize("gradient_penalty", [0.0, 2.0], ids=["", "penalty"])
def test_the_discriminator_for_both_kinds_of_actions(kind, absorbing, gradient_penalty):
    compare(kind, absorbing=absorbing, gradient_penalty=gradient_penalty)


@pytest.mark.parametrize(
    "options",
    [
        {"normalize": False},
        {"label_smoothing": 0.25},
        {"label_smoothing": 0.125, "gradient_penalty": 0.5, "reward_type": "logit"},
        {"reward_type": "logsigmoid", "absorbing": True},
        {"reward_type": "logit"},
        {"discriminator_learning_rate": 2**-5},
    ],
    ids=str,
)
def test_the_discriminator_for_every_option(options):
    compare(**options)


@pytest.mark.parametrize("gradient_penalty", [0.0, 1.0])
def test_the_discriminator_of_images(gradient_penalty):
    compare(images=True, dtype=torch.float32, gradient_penalty=gradient_penalty, discriminator_learning_rate=2**-10)


def test_a_discriminator_of_ones_own_needs_nothing_but_logits():
    """Any module that maps observations and actions to logits: labels of one for the expert, Adam, no statistics."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.0, -0.5]).double())

        def forward(self, obs, actions):
            return self.weight[0] * obs[:, 0] + self.weight[1] * actions

    learner, oracle = pair()
    learner = GAIL(policy=learner.model, discriminator=(own := Own()), discriminator_learning_rate=2**-7, **OPTIONS)
    expert, policy = expert_and_policy(oracle, 0)
    before = own.weight.detach().clone()
    learner.update_discriminator(policy, expert, global_step=0)
    probabilities = [
        own_logits.sigmoid()
        for own_logits in ((before[0] * b["obs"][:, 0] + before[1] * b["actions"]) for b in (expert, policy))
    ]
    rows = [torch.stack([b["obs"][:, 0], b["actions"].double()], 1) for b in (expert, policy)]
    gradient = -((1 - probabilities[0])[:, None] * rows[0]).mean(0) + (probabilities[1][:, None] * rows[1]).mean(0)
    torch.testing.assert_close(own.weight.detach(), before - 2**-7 * gradient.sign(), rtol=1e-6, atol=1e-6)


def test_a_logit_of_zero_is_right_about_nobody():
    terms = gail_discriminator_loss(torch.zeros(4), torch.zeros(4))
    assert terms["gail_discriminator_expert_accuracy"] == terms["gail_discriminator_policy_accuracy"] == 0


@compiles
def test_a_compiled_discriminator():
    small = {"discriminator_learning_rate": 2**-10}
    compare(compiled=True, dtype=torch.float32, absorbing=True, gradient_penalty=1.0, **small)


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_the_policy_learns_as_ppo_does_after_its_warm_start(kind):
    """Cloning leaves the deviation of boxes, and no averages of its gradients where PPO's updates begin."""
    learner, oracle = pair(kind)
    deviation = learner.model.log_std.detach().clone() if kind == "box" else None
    for k in range(3):
        batch = rollout(oracle.network, 6, seed=k)
        result = learner.clone(batch)
        assert_same_metrics(result.metrics, oracle.clone(batch["obs"], batch["actions"]), tolerance=FLOAT32)
        assert result.num_gradient_steps == 1
    learner.end_cloning()
    oracle.end_cloning()
    assert kind == "discrete" or torch.equal(learner.model.log_std, deviation)
    assert all(not tensor.any() for tensor in learner.optimizer.state_dict().values())
    for k in range(3):
        batch = rollout(oracle.network, 6, seed=10 + k)
        assert_same_metrics(learner.update(batch, global_step=0).metrics, oracle.update(batch), tolerance=FLOAT32)
    for name, value in oracle.network.state_dict().items():
        torch.testing.assert_close(learner.model.state_dict()[name], value, rtol=FLOAT64, atol=FLOAT64)


def test_a_warm_start_sees_the_experts_observations_as_the_policy_will():
    learner, oracle = pair()
    learner.normalizer = ObservationNormalizer((3,)).double()
    batch = rollout(oracle.network, 6)
    shifted = 50 + 7 * batch["obs"]
    learner.normalizer.observe(shifted.numpy())
    scaled = (shifted - shifted.mean(0)) / (shifted.var(0, correction=0) + 1e-8).sqrt()
    expected = oracle.clone(scaled, batch["actions"])
    assert_same_metrics(
        learner.clone({"obs": shifted, "actions": batch["actions"]}).metrics, expected, tolerance=FLOAT32
    )
