"""PPG's two phases are those of the paper, written once more in plain torch, over two rounds of both."""

import copy

import pytest
import torch

from compiling import compiles
from on_policy_learners import FIFTH_OF_A_STEP, IMAGES, OPTIONS, SMALL_STEPS, network, oracle_network, rollout
from oracles.comparing import FLOAT32, FLOAT64, assert_changed, assert_same_metrics, assert_same_parameters
from oracles.policies import ActorCritic
from oracles.ppg import PPG as Oracle
from rl_training.algorithms.ppg import PPG
from rl_training.models import MLPPPGModel

AUXILIARY = {"aux_learning_rate": 2**-6, "aux_value_coef": 0.5, "behavior_clone_coef": 2.0, "value_clone_coef": 0.75}


def pair(kind="discrete", *, dtype=torch.float64, architecture="detach", shape=None, **options):
    model = network(kind, MLPPPGModel, dtype, architecture=architecture, **(shape or {}))
    options = {**OPTIONS, **AUXILIARY, "normalize_advantages": False, **options}
    oracle = Oracle(oracle_network(model, kind, detached=architecture == "detach"), **options)
    return PPG(model=model, **options), oracle


def compare(kind="discrete", *, compiled=False, rows=6, teacher="logits", **options):
    """Twice three updates of the policy phase and four of the auxiliary phase, in two passes over the same rows."""
    learner, oracle = pair(kind, **options)
    before = copy.deepcopy(learner.model.state_dict())
    if compiled:
        learner.use_compiled()
    for phase in range(2):
        for k in range(3):
            batch = rollout(oracle.network, rows, seed=10 * phase + k)
            expected = {**oracle.update(batch), "policy_updates": 3 * phase + k + 1}
            assert_same_metrics(learner.update(batch, global_step=0).metrics, expected, tolerance=FLOAT32)
        obs, returns = batch["obs"], batch["returns"]
        orders = [torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(2)]
        theirs = oracle.auxiliary_phase(obs, returns, iter(orders), epochs=2, size=rows // 2)
        logits, frozen = learner.teacher_logits(obs), learner.snapshot_teacher_model()
        steps = [order[start : start + rows // 2] for order in orders for start in (0, rows // 2)]
        for k, (index, expected) in enumerate(zip(steps, theirs)):
            given, model = {"obs": obs[index], "returns": returns[index]}, None
            if teacher == "logits":
                given["teacher_logits"] = logits[index]
            else:
                model = frozen
            result = learner.auxiliary_update(given, teacher_model=model, global_step=0)
            expected["auxiliary_updates"] = 4 * phase + k + 1
            assert_same_metrics(result.metrics, expected, tolerance=FLOAT32)
            assert result.num_gradient_steps == 1
    assert learner.compiled == compiled
    tolerance = (
        FLOAT64 if obs.dtype == torch.float64 else FIFTH_OF_A_STEP
    )  # the divergence's gradient begins as roundings
    assert_same_parameters(learner.model, oracle.network, tolerance=tolerance)
    assert_changed(before, learner.model)


@pytest.mark.parametrize("architecture", ["detach", "dual"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary", "box"])
def test_both_phases_for_every_kind_of_actions(kind, architecture):
    compare(kind, architecture=architecture)


@pytest.mark.parametrize(
    "options",
    [
        {"teacher": "model"},
        {"aux_value_coef": 2.0, "value_clone_coef": 0.25},
        {"behavior_clone_coef": 8.0},
        {"max_grad_norm": None},
        {"clip_values": True, "normalize_advantages": True},
        {"aux_learning_rate": 2**-9},
    ],
    ids=str,
)
def test_both_phases_for_every_option(options):
    compare(**options)


@pytest.mark.parametrize("architecture", ["detach", "dual"])
def test_both_phases_from_images(architecture):
    compare(
        architecture=architecture, dtype=torch.float32, rows=4, shape=IMAGES, aux_learning_rate=2**-10, **SMALL_STEPS
    )


@compiles
def test_compiled_phases():
    compare(compiled=True, dtype=torch.float32, aux_learning_rate=2**-10, **SMALL_STEPS)


@pytest.mark.parametrize(("architecture", "moved"), [("detach", ("value_head",)), ("dual", ("value_head", "trunk"))])
def test_the_value_loss_moves_the_value_network_alone(architecture, moved):
    """With no advantage and no entropy bonus, what the policy phase changes is the value's: never the policy's outputs."""
    learner, oracle = pair(architecture=architecture, ent_coef=0.0)
    batch = rollout(oracle.network, 6)
    before, outputs = copy.deepcopy(learner.model.state_dict()), learner.teacher_logits(batch["obs"])
    learner.update({**batch, "advantages": torch.zeros_like(batch["advantages"])}, global_step=0)
    changed = {
        name.split(".")[0] for name, value in learner.model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == set(moved)
    assert torch.equal(learner.teacher_logits(batch["obs"]), outputs)


def test_every_output_of_the_network_is_what_its_name_says():
    learner, oracle = pair("box")
    obs = torch.randn(5, 3, dtype=torch.float64)
    [policy], truth = oracle.network.policies(obs), oracle.network
    mean, deviation = policy.base_dist.mean, policy.base_dist.stddev
    torch.testing.assert_close(learner.model.policy_logits(obs), torch.cat([mean, deviation.log()], 1))
    torch.testing.assert_close(learner.model.values(obs), truth.values(obs))
    auxiliary = truth.linear("aux_head", truth.features(obs)[0])[:, 0]
    torch.testing.assert_close(learner.model.auxiliary_values(obs), auxiliary)
    assert isinstance(truth, ActorCritic) and not torch.allclose(auxiliary, truth.values(obs))
