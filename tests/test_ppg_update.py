"""PPG's maths: what the value may move, the divergence that holds the policy, the frozen teacher."""

import pytest
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Normal, kl_divergence

from rl_training.algorithms.ppg import PPG, ppg_auxiliary_loss
from rl_training.models import MLPPPGModel
from rl_training.models.heads import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical


def model(**changes):
    torch.manual_seed(0)
    return MLPPPGModel(**{"obs_dim": 3, "action_dim": 2, "hidden_sizes": (16, 16), **changes})


def learner(network=None, **changes):
    options = {
        **{"learning_rate": 1e-2, "aux_learning_rate": 1e-2, "clip_coef": 0.2, "ent_coef": 0.0, "vf_coef": 0.5},
        **{"aux_value_coef": 1.0, "behavior_clone_coef": 1.0, "value_clone_coef": 1.0},
    }
    return PPG(model=network or model(), **{**options, **changes})


def rollout(agent, rows=32):
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(rows, 3, generator=generator)
    with torch.no_grad():
        actions = torch.randint(2, (rows,), generator=generator)
        _, logprobs, values, _ = agent.model.evaluate_actions(obs, actions)
    drawn = {name: torch.randn(rows, generator=generator) for name in ("advantages", "returns")}
    return {"obs": obs, "actions": actions, "logprobs": logprobs, "values": values, **drawn}


def gradients(network, loss):
    loss.backward()
    return {name: p.grad is not None and bool(p.grad.abs().sum() > 0) for name, p in network.named_parameters()}


def test_the_value_has_no_say_in_a_shared_trunk():
    moved = gradients(network := model(), network.values(torch.randn(5, 3)).square().sum())
    assert {name for name, yes in moved.items() if yes} == {"value_head.weight", "value_head.bias"}


def test_the_auxiliary_value_shapes_the_trunk_and_nothing_of_the_value():
    moved = gradients(network := model(), network.auxiliary_values(torch.randn(5, 3)).square().sum())
    assert moved["trunk.0.weight"] and moved["aux_head.weight"] and not moved["value_head.weight"]


@pytest.mark.parametrize("shape", [{}, {"obs_dim": None, "obs_shape": (2, 36, 36)}])
def test_two_trunks_keep_policy_and_value_apart(shape):
    network = model(architecture="dual", **shape)
    obs = torch.randn(5, 3) if not shape else torch.randint(256, (5, 2, 36, 36), dtype=torch.uint8)
    before = network.policy_logits(obs).detach()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network.values(obs).square().sum().backward()
    optimizer.step()
    assert torch.equal(network.policy_logits(obs), before)


def test_the_divergence_by_hand_and_its_direction():
    teacher, student = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert Categorical(2).divergence(teacher, student).item() == pytest.approx(0.3681, abs=1e-4)
    assert Categorical(2).divergence(student, teacher).item() == pytest.approx(0.5108, abs=1e-4)


def test_divergences_agree_with_torchs():
    p, q = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    normal = lambda x: Normal(x[:, :3], x[:, 3:].exp())  # noqa: E731
    torch.testing.assert_close(DiagonalGaussian(3).divergence(p, q), kl_divergence(normal(p), normal(q)).sum(-1))
    switches = kl_divergence(TorchBernoulli(logits=p), TorchBernoulli(logits=q)).sum(-1)
    torch.testing.assert_close(Bernoulli(6).divergence(p, q), switches)
    parts = Categorical(2).divergence(p[:, :2], q[:, :2]) + Categorical(4).divergence(p[:, 2:], q[:, 2:])
    torch.testing.assert_close(MultiCategorical((2, 4)).divergence(p, q), parts)


def test_a_student_like_its_teacher_is_not_pulled():
    logits = torch.randn(4, 3, requires_grad=True)
    Categorical(3).divergence(logits.detach(), logits).sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)


def test_the_auxiliary_loss_adds_its_three_parts_by_weight():
    logits = torch.tensor([[0.9, 0.1]]).log()
    batch = {"policy_logits": torch.zeros(1, 2), "teacher_logits": logits, "values": torch.tensor([1.0])}
    batch |= {"auxiliary_values": torch.tensor([4.0]), "returns": torch.tensor([2.0])}
    terms = ppg_auxiliary_loss(batch, aux_value_coef=2.0, behavior_clone_coef=3.0, value_clone_coef=5.0)
    assert terms["aux_value_loss"].item() == 2.0 and terms["value_clone_loss"].item() == 0.5
    assert terms["auxiliary_loss"].item() == pytest.approx(2 * 2.0 + 3 * 0.3681 + 5 * 0.5, abs=1e-3)


def test_the_first_minibatch_changes_nothing_it_is_measured_by():
    metrics = (agent := learner()).update(rollout(agent), global_step=0).metrics
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6) and metrics["clip_fraction"] == 0
    assert metrics["policy_updates"] == 1


def test_the_policy_phase_leaves_the_auxiliary_head_alone():
    agent = learner()
    before = agent.model.aux_head.weight.clone()
    for _ in range(3):
        agent.update(rollout(agent), global_step=0)
    assert torch.equal(agent.model.aux_head.weight, before)


def test_an_auxiliary_phase_learns_the_values_and_holds_the_policy():
    agent = learner(model(architecture="dual"))
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(256, 3, generator=generator)
    returns = obs[:, 0] * 2 - obs[:, 1]
    teacher = agent.teacher_logits(obs)
    error = lambda: (agent.model.values(obs) - returns).square().mean().item()  # noqa: E731
    before = error()
    for _ in range(60):
        agent.auxiliary_update({"obs": obs, "returns": returns, "teacher_logits": teacher}, global_step=0)
    moved = agent.model.head.divergence(teacher, agent.teacher_logits(obs)).mean().item()
    assert error() < 0.2 * before and moved < 0.02 and agent.auxiliary_updates == 60


def test_a_teacher_is_a_frozen_copy():
    agent = learner()
    obs, teacher = torch.randn(8, 3), agent.snapshot_teacher_model()
    before = teacher.policy_logits(obs)
    batch = {"obs": obs, "returns": torch.randn(8)}
    metrics = agent.auxiliary_update(batch, teacher_model=teacher, global_step=0).metrics
    assert torch.equal(teacher.policy_logits(obs), before) and not torch.equal(agent.model.policy_logits(obs), before)
    assert {"auxiliary_loss", "aux_value_loss", "behavior_clone_loss", "value_clone_loss"} <= set(metrics)
    with pytest.raises(ValueError, match="teacher_logits or a teacher_model"):
        agent.auxiliary_update(batch, global_step=0)


def test_both_optimizers_move_the_same_weights():
    agent = learner()
    first = agent.model.trunk[0].weight
    assert first.data_ptr() == agent.optimizer.flat.data_ptr() == agent.aux_optimizer.flat.data_ptr()
    assert agent.optimizer.mean is not agent.aux_optimizer.mean
