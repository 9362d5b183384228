"""Masked logits and masked action values, against plain arithmetic and against learners that know fewer actions."""

import copy

import numpy as np
import pytest
import torch

from compiling import compiles
from masked_toys import rows_with_masks
from oracles.value_based import OPTIONS
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.ppg import ppg_auxiliary_loss
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.base.parts import Part, Parts
from rl_training.models import MLPActorCritic, MLPFQFNetwork, MLPIQNetwork, MLPPPGModel, MLPQNetwork, MLPQRQNetwork
from rl_training.models.heads import Categorical, MaskedCategorical, MultiCategorical
from rl_training.models.masks import ActionMasks
from rl_training.models.parts import PartsNormalizer

A = 5
VECTOR, IMAGE = Part("obs", (), "vector", (3,), given=(3,)), Part("eye", ("eye",), "image", (1, 6, 6), given=(6, 6))
MASK = Part("action_mask", ("action_mask",), "mask", (A,), given=(A,))
PARTS = Parts([VECTOR, MASK])
EYES = Parts([VECTOR, IMAGE, IMAGE._replace(name="b", path=("b",), dtype="uint8", divisor=255.0), MASK])
QUANTILES = {"num_quantiles": 4}
EMBEDDED = {**QUANTILES, "embedding_dim": 5}
FAMILY = {
    "dqn": (DQN, MLPQNetwork, {}, {}),
    "qr_dqn": (QRDQN, MLPQRQNetwork, QUANTILES, QUANTILES),
    "iqn": (IQN, MLPIQNetwork, EMBEDDED, {**QUANTILES, "action_samples": 3}),
    "fqf": (FQF, MLPFQFNetwork, EMBEDDED, {**QUANTILES, "fraction_learning_rate": 0.02}),
}


def rows(n=40, seed=0, parts=PARTS):
    return rows_with_masks(parts, n, np.random.default_rng(seed))


def batch(seed, n=12, allowed=None):
    """Transitions with a random mask in each observation, or ``allowed`` (A,) in all; actions keep to them."""
    rng = np.random.default_rng(seed)
    obs, next_obs = rows(n, seed), rows(n, seed + 100)
    if allowed is not None:
        obs, next_obs = (PARTS.masked(x[:, :3], np.tile(allowed, (n, 1))) for x in (obs, next_obs))
    actions = [rng.choice(np.flatnonzero(mask)) for mask in PARTS.allowed(obs)]
    columns = {"obs": obs, "next_obs": next_obs, "actions": np.array(actions)}
    columns |= {"rewards": rng.normal(size=n).astype("f4"), "dones": (rng.random(n) < 0.3).astype("f4")}
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def policy(kind=MLPActorCritic, head=None, **arguments):
    torch.manual_seed(1)
    return kind(obs_parts=PARTS, head=head or MaskedCategorical(A), hidden_sizes=(8,), **arguments)


def learner(name, **changes):
    made, network, arguments, own = FAMILY[name]
    torch.manual_seed(2)
    weights = network(obs_parts=PARTS, action_dim=A, hidden_sizes=(8, 6), **arguments)
    agent = made(q_network=weights, masks=ActionMasks(PARTS), **{**OPTIONS, **own, **changes})
    with torch.no_grad():
        for parameter in agent.target_network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return agent


# ---- logits


def test_the_gradient_of_a_masked_logit_is_zero_and_no_number_is_lost():
    logits, obs = torch.randn(40, A, requires_grad=True), torch.from_numpy(rows())
    masks, head = ActionMasks(PARTS), Categorical(A)
    allowed = masks.allowed(obs)
    masked = masks.logits(logits, obs)
    other = masks.logits(torch.randn(40, A), obs)
    logprobs, entropy = head.evaluate(masked, torch.multinomial(allowed.float(), 1)[:, 0])
    for quantity in (logprobs, entropy, head.divergence(masked, other), head.divergence(other, masked)):
        [gradient] = torch.autograd.grad(quantity.sum(), logits, retain_graph=True)
        assert (gradient[~allowed] == 0).all() and gradient.isfinite().all() and gradient.abs().sum() > 0


def test_entropy_divergence_and_probabilities_are_those_of_the_allowed_actions_alone():
    generator = np.random.default_rng(0)
    p, q, obs = generator.normal(size=(40, A)), generator.normal(size=(40, A)), rows()
    masks, head = ActionMasks(PARTS), Categorical(A)
    on_rows = torch.from_numpy(obs)
    ours = [masks.logits(torch.from_numpy(x), on_rows) for x in (p, q)]
    for i, allowed in enumerate(PARTS.allowed(obs)):
        soft = [np.exp(x[i, allowed]) / np.exp(x[i, allowed]).sum() for x in (p, q)]
        taken = int(np.flatnonzero(allowed)[-1])
        logp, entropy = head.evaluate(ours[0][i : i + 1], torch.tensor([taken]))
        assert logp.item() == pytest.approx(np.log(soft[0][-1]))
        assert entropy.item() == pytest.approx(-(soft[0] * np.log(soft[0])).sum(), abs=1e-12)
        divergence = head.divergence(ours[0][i : i + 1], ours[1][i : i + 1])
        assert divergence.item() == pytest.approx((soft[0] * np.log(soft[0] / soft[1])).sum(), abs=1e-12)


class Draws:
    """A generator whose numbers are all the same."""

    def __init__(self, number):
        self.number = number

    def random(self, shape, dtype):
        return np.full(shape, self.number, dtype)


@pytest.mark.parametrize("number", [0.0, np.nextafter(np.float32(1), np.float32(0)), 1.0])
def test_the_ends_of_the_unit_interval_draw_no_masked_action(number):
    allowed = np.array([False, True, True, False, False])
    logits = np.where(allowed, np.float32([9, 0.1, 0.2, 9, 9]), np.float32(-1e8))[None]
    actions, logprobs = MaskedCategorical(A).sample(logits, Draws(number), False)
    assert allowed[actions].all() and -1 < logprobs[0] < 0
    both = MultiCategorical((2, 3), MaskedCategorical).sample(logits, Draws(number), False)[0]
    assert both[0, 0] == 1 and both[0, 1] == 0


@pytest.mark.parametrize("kind", [MLPActorCritic, MLPPPGModel])
def test_policies_act_in_numpy_as_in_torch_and_never_by_a_masked_action(kind):
    network, obs = policy(kind), rows(200)
    for array, tensor in zip(network.host()(obs), network(torch.from_numpy(obs))):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert network.host().in_numpy
    allowed, each = PARTS.allowed(obs), np.arange(len(obs))
    for deterministic in (False, True):
        assert allowed[each, network.act(torch.from_numpy(obs), deterministic=deterministic).actions.numpy()].all()


def test_two_towers_see_the_vectors_alone():
    plain = MLPActorCritic(obs_dim=3, action_dim=A, hidden_sizes=(8,))
    network = policy()
    for ours, theirs in zip(network.parameters(), plain.parameters()):
        theirs.data.copy_(ours.data)
    obs = torch.from_numpy(rows())
    outputs, values = plain(obs[:, :3])
    assert torch.equal(network(obs)[1], values)
    assert torch.equal(network(obs)[0], torch.where(obs[:, 3:] > 0, outputs, -1e8))


def test_an_update_of_ppo_leaves_what_was_always_masked_where_it_was():
    network = policy()
    agent = PPO(policy=network, learning_rate=0.05, clip_coef=0.2, ent_coef=0.1, vf_coef=0.5)
    allowed = np.array([True, False, True, False, True])
    data = batch(0, allowed=allowed)
    before = network.policy_head.weight.detach().clone()
    numbers = {name: torch.randn(12) for name in ("logprobs", "advantages", "returns", "values")}
    metrics = agent.update({**data, **numbers, "logprobs": -1 - numbers["logprobs"].abs()}, global_step=0).metrics
    moved = (network.policy_head.weight.detach() != before).any(1).numpy()
    assert np.array_equal(moved, allowed) and all(np.isfinite(value) for value in metrics.values())
    assert -metrics["entropy_loss"] <= np.log(3) + 1e-6


def test_the_auxiliary_phase_of_ppg_compares_allowed_actions_alone():
    network, obs = policy(MLPPPGModel), torch.from_numpy(rows())
    teacher = policy(MLPPPGModel)
    with torch.no_grad():
        teacher.policy_head.bias += torch.arange(A).float()
    logits, values, auxiliary = network.all_outputs(obs)
    given = {"values": values, "auxiliary_values": auxiliary, "returns": values.detach()}
    given |= {"policy_logits": logits, "teacher_logits": teacher.policy_logits(obs).detach()}
    coefs = dict.fromkeys(("aux_value_coef", "behavior_clone_coef", "value_clone_coef"), 1.0)
    terms = ppg_auxiliary_loss(given, **coefs, head=network.head)
    expected = []
    for student, other, allowed in zip(logits.detach().double(), given["teacher_logits"].double(), obs[:, 3:] > 0):
        p, q = other[allowed].softmax(0), student[allowed].softmax(0)
        expected.append((p * (p / q).log()).sum())
    assert terms["behavior_clone_loss"].item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


# ---- action values


@pytest.mark.parametrize("double", [False, True])
def test_targets_of_dqn_row_by_row(double):
    agent, data = learner("dqn", double_q=double), batch(0)
    q, target = (network(data["next_obs"]).detach() for network in (agent.q_network, agent.target_network))
    expected, everywhere = [], []
    for i, allowed in enumerate(PARTS.allowed(data["next_obs"].numpy())):
        choosing = (q if double else target)[i]
        best = max(np.flatnonzero(allowed), key=lambda a: choosing[a])
        everywhere.append(int(choosing.argmax()) != best)
        chosen = target[i, best]
        expected.append(data["rewards"][i] + 0.9 * (1 - data["dones"][i]) * chosen)
    predicted = agent.q_network(data["obs"]).detach()[torch.arange(12), data["actions"]]
    agent.update(data, global_step=0)
    torch.testing.assert_close(agent.last_td_errors, torch.stack(expected) - predicted, rtol=1e-5, atol=1e-6)
    assert any(everywhere)  # without masks, targets would be others


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("double", [False, True])
def test_with_one_mask_for_all_a_learner_learns_what_one_that_knows_only_the_allowed_actions_learns(name, double):
    kept = np.array([1, 2, 4])
    made, network, arguments, own = FAMILY[name]
    masked = learner(name, double_q=double)
    fewer = made(
        q_network=network(obs_dim=3, action_dim=len(kept), hidden_sizes=(8, 6), **arguments),
        **{**OPTIONS, **own, "double_q": double},
    )
    pairs = [(masked.q_network, fewer.q_network), (masked.target_network, fewer.target_network)]
    for ours, theirs in pairs:
        for mine, his in zip(ours.parameters(), theirs.parameters()):
            his.data.copy_(_of_kept(mine.data, his.shape, kept))
    for seed in range(3):
        data = batch(seed, allowed=np.isin(np.arange(A), kept))
        plain = {name: x[:, :3] if name.endswith("obs") else x for name, x in data.items()}
        plain["actions"] = torch.from_numpy(np.searchsorted(kept, data["actions"].numpy()))
        results = []
        for agent, given in ((masked, data), (fewer, plain)):
            torch.manual_seed(seed)
            results.append(agent.update(given, global_step=0).metrics)
        for metric in results[1]:
            assert results[0][metric] == pytest.approx(results[1][metric], rel=1e-4, abs=1e-6), metric
    for mine, his in zip(masked.q_network.parameters(), fewer.q_network.parameters()):
        torch.testing.assert_close(_of_kept(mine.data, his.shape, kept), his.data, rtol=1e-4, atol=1e-6)


def _of_kept(parameter, shape, kept):
    """A parameter, or the rows of the last layer's that belong to the kept actions."""
    if parameter.shape == shape:
        return parameter
    by_action = parameter.reshape(A, -1, *parameter.shape[1:])
    return by_action[kept].reshape(shape)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("network", [{}, {"dueling": True, "noisy": True}])
def test_greedy_and_random_actions_are_allowed_and_the_best_of_those(name, network):
    made, kind, arguments, own = FAMILY[name]
    q_network = kind(obs_parts=PARTS, action_dim=A, hidden_sizes=(8, 6), **arguments, **network)
    agent = made(q_network=q_network, masks=ActionMasks(PARTS), **{**OPTIONS, **own})
    agent.set_eval_mode()
    obs, rng = rows(300), np.random.default_rng(0)
    allowed, each = PARTS.allowed(obs), np.arange(300)
    greedy = agent.act(obs, deterministic=True).actions
    values = agent.policy_module()(torch.from_numpy(obs)).detach().numpy()
    assert allowed[each, greedy].all() and (values[~allowed] == -np.inf).all()
    np.testing.assert_allclose(values[each, greedy], values.max(1), rtol=1e-5, atol=1e-6)
    for epsilon in (0.0, 0.5, 1.0):
        agent.set_control("epsilon", epsilon)
        assert allowed[each, agent.act(obs, rng=rng).actions].all()
        assert allowed[each, agent.q_network.act(torch.from_numpy(obs), epsilon).numpy()].all()


def test_exploration_is_uniform_over_what_is_allowed():
    agent = learner("dqn")
    agent.set_control("epsilon", 1.0)
    allowed = np.array([False, True, True, False, True])
    obs = PARTS.masked(np.zeros((6000, 3), np.float32), np.tile(allowed, (6000, 1)))
    for actions in (
        agent.act(obs, rng=np.random.default_rng(0)).actions,
        agent.q_network.act(torch.from_numpy(obs), 1),
    ):
        drawn = np.bincount(np.asarray(actions), minlength=A)
        assert drawn[~allowed].sum() == 0 and np.abs(drawn[allowed] - 2000).max() < 150


@pytest.mark.parametrize("name", FAMILY)
def test_values_of_rows_with_masks_are_computed_in_numpy(name):
    assert learner(name)._values._forward.in_numpy


@pytest.mark.parametrize("masks", [True, False])
def test_no_random_number_is_drawn_where_nothing_is_explored(masks):
    obs, rng = rows(20), np.random.default_rng(0)
    plain = DQN(q_network=MLPQNetwork(obs_dim=3 + A, action_dim=A, hidden_sizes=(8,)), **OPTIONS)
    agent = learner("dqn") if masks else plain
    for epsilon in (0.0, 0.5):
        before = rng.bit_generator.state
        agent.set_control("epsilon", epsilon)
        agent.act(obs, rng=rng)
        assert (rng.bit_generator.state == before) is (epsilon == 0)


def test_a_network_that_chooses_by_its_own_act_is_refused():
    class Own(MLPQNetwork):
        def act(self, obs, epsilon=0.0):
            return torch.zeros(len(obs), dtype=torch.long)

    with pytest.raises(ValueError, match=r"Own chooses by its own act.*override forward"):
        DQN(q_network=Own(obs_parts=PARTS, action_dim=A), masks=ActionMasks(PARTS), **OPTIONS)


def test_rows_without_a_mask_have_none_to_be_read():
    with pytest.raises(ValueError, match=r"^observations of obs .* have no mask of actions$"):
        ActionMasks(Parts([VECTOR]))


def test_a_policy_that_forgets_the_masks_is_told():
    class Forgets(MLPActorCritic):
        def masked(self, outputs, obs):
            return outputs

    torch.manual_seed(0)
    network = Forgets(obs_parts=PARTS, head=MaskedCategorical(A), hidden_sizes=(8,))
    agent = PPO(policy=network, learning_rate=0.01, clip_coef=0.2, ent_coef=0.1, vf_coef=0.5)
    with pytest.raises(ValueError, match="Forgets chose an action that the environment's mask forbids"):
        agent.act(rows(200), rng=np.random.default_rng(0))


@pytest.mark.parametrize("kind", [MLPQNetwork, MLPActorCritic])
def test_masks_beside_images_lie_between_the_floats_and_the_bytes(kind):
    size = {"action_dim": A} if kind is MLPQNetwork else {"head": MaskedCategorical(A)}
    network, rng = kind(obs_parts=EYES, hidden_sizes=(8,), **size), np.random.default_rng(0)
    bare = Parts([part for part in EYES.all if part.kind != "mask"])
    plain = rng.integers(256, size=(6, bare.width), dtype=np.uint8)
    bare.floats_of(plain)[:] = rng.normal(size=(6, bare.floats))
    allowed = rng.random((6, A)) < 0.5
    obs = EYES.masked(plain, allowed)
    assert np.array_equal(EYES.allowed(obs), allowed)
    assert torch.equal(ActionMasks(EYES).allowed(torch.from_numpy(obs)), torch.from_numpy(allowed))
    for part, rows_of in zip(bare.all, bare.unpack(plain)):
        [index] = [i for i, other in enumerate(EYES.all) if other.name == part.name]
        assert np.array_equal(EYES.unpack(obs)[index], rows_of)
    assert network(torch.from_numpy(obs)) is not None


def test_the_normaliser_leaves_masks_alone():
    normalizer, obs = PartsNormalizer(PARTS), rows(50)
    normalizer.observe(5 * obs)
    assert normalizer.mean.shape == (3,)
    for scaled in (normalizer.host(obs), normalizer(torch.from_numpy(obs)).numpy()):
        assert np.array_equal(scaled[:, 3:], obs[:, 3:]) and not np.allclose(scaled[:, :3], obs[:, :3])


@compiles
def test_compiled_updates_keep_to_the_masks():
    eager = learner("dqn", double_q=True)
    compiled = copy.deepcopy(eager)
    compiled.use_compiled()
    for seed in range(3):
        metrics = []
        for agent in (eager, compiled):
            torch.manual_seed(seed)
            metrics.append(agent.update(batch(seed), global_step=0).metrics)
        assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], rel=1e-3)
    assert compiled.compiled
