"""PPO's maths: returns, losses, distributions, normalisers, against numbers computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal

from rl_training.algorithms.ppo import PPO, ppo_loss
from rl_training.base.returns import explained_variance, gae
from rl_training.base.saved import StateError
from rl_training.data import RolloutBuffer
from rl_training.data.reward_scaler import RewardScaler
from rl_training.models import MLPActorCritic
from rl_training.models.heads import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical
from rl_training.models.normalizer import ObservationNormalizer


def advantages(terminated=(0, 0, 0), truncated=(0, 0, 0), final_values=(0, 0, 0), gae_lambda=0.8):
    column = lambda xs: np.array(xs, np.float32)[:, None]  # noqa: E731
    return gae(
        rewards=column([1, 1, 1]), values=column([0.5, 0.5, 0.5]), last_values=np.array([0.5], np.float32),
        terminated=column(terminated), truncated=column(truncated), final_values=column(final_values),
        gamma=0.9, gae_lambda=gae_lambda,
    )[:, 0]  # fmt: skip


def test_gae_by_hand():
    assert advantages() == pytest.approx([2.12648, 1.634, 0.95])


def test_gae_stops_at_a_termination():
    assert advantages(terminated=(0, 1, 0)) == pytest.approx([1.31, 0.5, 0.95])


def test_gae_bootstraps_a_truncation_from_the_true_last_value():
    assert advantages(truncated=(0, 1, 0), final_values=(0, 2.0, 0)) == pytest.approx([2.606, 2.3, 0.95])


def test_final_values_count_only_where_truncated():
    assert advantages(final_values=(7, 7, 7)) == pytest.approx(advantages())


@pytest.mark.parametrize("gae_lambda", [0.0, 0.3, 1.0])
def test_a_perfect_value_function_has_no_advantages_whatever_lambda(gae_lambda):
    tens = np.full((5, 2), 10.0, np.float32)
    nothing = np.zeros((5, 2), np.float32)
    result = gae(rewards=np.ones((5, 2), np.float32), values=tens, last_values=tens[0], terminated=nothing, truncated=nothing,
                 final_values=nothing, gamma=0.9, gae_lambda=gae_lambda)  # fmt: skip
    assert result == pytest.approx(np.zeros((5, 2)), abs=1e-5)


def test_explained_variance_is_one_when_perfect_and_zero_for_a_constant():
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 2.0), returns) == 0.0


def surrogate(advantage: float, ratio: float, **changes) -> dict:
    one = lambda x: torch.tensor([float(x)])  # noqa: E731
    minibatch = {"logprobs": one(0), "new_logprobs": one(np.log(ratio)), "advantages": one(advantage), "returns": one(0),
                 "values": one(0), "new_values": one(0), "entropy": one(0)}  # fmt: skip
    return ppo_loss({**minibatch, **{k: one(v) for k, v in changes.items()}}, clip_coef=0.2, ent_coef=0.1, vf_coef=0.5)


def test_a_good_action_is_clipped_above():
    assert surrogate(advantage=1.0, ratio=1.5)["policy_loss"].item() == pytest.approx(-1.2)


def test_a_bad_action_is_not_clipped_above():
    assert surrogate(advantage=-1.0, ratio=1.5)["policy_loss"].item() == pytest.approx(1.5)


def test_a_bad_action_is_clipped_below():
    assert surrogate(advantage=-1.0, ratio=0.5)["policy_loss"].item() == pytest.approx(0.8)


def test_the_loss_adds_half_the_squared_value_error_and_subtracts_entropy():
    terms = surrogate(advantage=0.0, ratio=1.0, new_values=3.0, returns=1.0, entropy=2.0)
    assert terms["value_loss"].item() == pytest.approx(2.0)
    assert terms["loss"].item() == pytest.approx(0.5 * 2.0 - 0.1 * 2.0)


def test_value_clipping_takes_the_worse_of_both_errors():
    one = lambda x: torch.tensor([float(x)])  # noqa: E731
    minibatch = {"logprobs": one(0), "new_logprobs": one(0), "advantages": one(0), "returns": one(0), "values": one(1),
                 "new_values": one(0), "entropy": one(0)}  # fmt: skip
    terms = ppo_loss(minibatch, clip_coef=0.2, ent_coef=0.0, vf_coef=1.0, clip_values=True)
    assert terms["value_loss"].item() == pytest.approx(0.5 * 0.8**2)  # the move from 1 to 0 counts as one to 0.8


def make_ppo(**changes) -> PPO:
    torch.manual_seed(0)
    policy = MLPActorCritic(obs_dim=3, action_dim=2, hidden_sizes=(8,), **changes)
    return PPO(policy=policy, learning_rate=1e-2, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5)


def rollout_batch(agent: PPO, rows: int = 16) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows, 3)).astype(np.float32)
    acting = agent.act(obs, rng=rng)
    values = {
        "obs": obs,
        "actions": acting.actions,
        "advantages": rng.standard_normal(rows),
        "returns": rng.standard_normal(rows),
    }
    values |= {"logprobs": acting.extras["logprobs"], "values": acting.extras["values"]}
    return {
        k: torch.as_tensor(v, dtype=torch.int64 if v.dtype == np.int64 else torch.float32) for k, v in values.items()
    }


@pytest.mark.parametrize("continuous", [False, True])
def test_before_the_first_step_the_policy_has_not_moved(continuous):
    agent = make_ppo(continuous=continuous)
    metrics = agent.update(rollout_batch(agent), global_step=0).metrics
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0


def test_update_metrics_have_stable_names():
    agent = make_ppo()
    result = agent.update(rollout_batch(agent), global_step=0)
    assert set(result.metrics) >= {"loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"}
    assert result.num_gradient_steps == 1
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_updates_make_better_actions_likelier():
    agent = make_ppo()
    batch = rollout_batch(agent)
    batch["advantages"] = torch.where(batch["actions"] == 1, 1.0, -1.0)
    before = agent.model.evaluate_actions(batch["obs"], torch.ones(16, dtype=torch.int64)).logprobs.mean()
    for _ in range(10):
        agent.update(batch, global_step=0)
    assert agent.model.evaluate_actions(batch["obs"], torch.ones(16, dtype=torch.int64)).logprobs.mean() > before


def test_the_gradient_norm_is_clipped():
    steps = {}
    for limit in (None, 1e-3):
        torch.manual_seed(0)
        policy = MLPActorCritic(obs_dim=3, action_dim=2, hidden_sizes=(8,))
        agent = PPO(policy=policy, learning_rate=1e-2, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=limit)
        agent.update(rollout_batch(agent), global_step=0)
        steps[limit] = (
            agent.optimizer.mean.norm().item() / 0.1
        )  # the first moment after one step is a tenth of the gradient
    assert steps[None] > 1e-3
    assert steps[1e-3] == pytest.approx(1e-3, rel=1e-3)


def test_initialisation_is_nearly_uniform_and_orthogonal():
    torch.manual_seed(0)
    policy = MLPActorCritic(obs_dim=4, action_dim=3, hidden_sizes=(32, 32))
    outputs, _ = policy(torch.randn(64, 4))
    assert outputs.softmax(-1).sub(1 / 3).abs().max() < 0.01
    second = policy.trunk[2].weight[0]
    assert torch.allclose(second.T @ second, 2 * torch.eye(32), atol=1e-4)


def test_the_two_towers_do_not_share_weights():
    policy = MLPActorCritic(obs_dim=4, action_dim=3, hidden_sizes=(8, 8))
    _, values = policy(torch.randn(5, 4))
    values.sum().backward()
    assert policy.trunk[0].weight.grad[0].abs().sum() == 0
    assert policy.trunk[0].weight.grad[1].abs().sum() > 0


@pytest.mark.parametrize("continuous", [False, True])
def test_acting_in_numpy_equals_the_torch_network(continuous):
    agent = make_ppo(continuous=continuous)
    obs = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    acting = agent.act(obs, rng=np.random.default_rng(2))
    truth = agent.model.evaluate_actions(torch.from_numpy(obs), torch.from_numpy(acting.actions))
    assert acting.extras["logprobs"] == pytest.approx(truth.logprobs.detach().numpy(), abs=1e-5)
    assert acting.extras["values"] == pytest.approx(truth.values.detach().numpy(), abs=1e-5)


HEADS = {
    "categorical": (Categorical(3), lambda x: TorchCategorical(logits=x), 1),
    "gaussian": (DiagonalGaussian(2), lambda x: Normal(x[:, :2], x[:, 2:].exp()), 2),
    "bernoulli": (Bernoulli(4), lambda x: TorchBernoulli(logits=x), 2),
}


@pytest.mark.parametrize("name", HEADS)
def test_distributions_agree_with_torch(name):
    head, truth, dims = HEADS[name]
    outputs = torch.randn(6, head.size, generator=torch.Generator().manual_seed(0))
    actions, logprobs = head.sample(outputs.numpy(), np.random.default_rng(0), False)
    expected = truth(outputs)
    expected_logp = expected.log_prob(torch.as_tensor(actions, dtype=torch.float32 if dims == 2 else torch.int64))
    expected_entropy = expected.entropy()
    if dims == 2:
        expected_logp, expected_entropy = expected_logp.sum(-1), expected_entropy.sum(-1)
    logp, entropy = head.evaluate(outputs, torch.as_tensor(actions))
    assert logprobs == pytest.approx(expected_logp.numpy(), abs=1e-5)
    assert logp.numpy() == pytest.approx(expected_logp.numpy(), abs=1e-5)
    assert entropy.numpy() == pytest.approx(expected_entropy.numpy(), abs=1e-5)


def test_independent_choices_add_their_log_probabilities():
    head = MultiCategorical((2, 3))
    outputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    actions, logprobs = head.sample(outputs.numpy(), np.random.default_rng(0), False)
    parts = [TorchCategorical(logits=outputs[:, :2]), TorchCategorical(logits=outputs[:, 2:])]
    expected = sum(part.log_prob(torch.as_tensor(actions[:, i])) for i, part in enumerate(parts))
    assert logprobs == pytest.approx(expected.numpy(), abs=1e-5)
    logp, entropy = head.evaluate(outputs, torch.as_tensor(actions))
    assert logp.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert entropy.numpy() == pytest.approx(sum(part.entropy() for part in parts).numpy(), abs=1e-5)


def test_sampled_frequencies_are_the_probabilities():
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32)).repeat(20_000, 0)
    actions, _ = Categorical(3).sample(logits, np.random.default_rng(0), False)
    assert np.bincount(actions) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.015)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return_without_a_mean():
    scaler, rng = RewardScaler(4, gamma=0.9), np.random.default_rng(0)
    running, seen = np.zeros(4), []
    for _ in range(200):
        rewards, ended = 5 + rng.standard_normal(4), (rng.random(4) < 0.1).astype(np.float32)
        running = running * 0.9 + rewards
        seen.append(running.copy())
        running[ended > 0] = 0
        scaled = scaler(rewards, ended)
    assert scaled == pytest.approx(rewards / np.std(np.concatenate(seen)), rel=1e-4)


def test_no_result_of_an_update_holds_a_graph():
    agent = make_ppo()
    assert not any(result.requires_grad for result in agent._learn(rollout_batch(agent)).values())


def test_returns_that_were_saved_stay_when_the_scaler_goes_on():
    scaler = RewardScaler(2, gamma=0.9)
    scaler.observe(np.ones(2), np.zeros(2))
    state = scaler.state_dict()
    scaler.returns[:] = 0  # as where environments were lost
    assert state["returns"].tolist() == [1, 1]


def test_returns_that_were_loaded_are_the_scalers_own():
    scaler = RewardScaler(2, gamma=0.9)
    state = {**scaler.state_dict(), "returns": torch.tensor([3.0, 4.0], dtype=torch.float64)}
    scaler.load_state_dict(state)
    state["returns"].fill_(99)
    assert scaler.returns.tolist() == [3, 4]


@pytest.mark.parametrize(("name", "value"), [("square", -1.0), ("count", -1), ("mean", math.nan)])
def test_statistics_of_rewards_that_cannot_be_are_refused(name, value):
    scaler = RewardScaler(2, gamma=0.9)
    with pytest.raises(StateError, match=f"^{name}: is {value}, expected a finite number"):
        scaler.load_state_dict({**scaler.state_dict(), name: value})


def test_observation_statistics_are_those_of_everything_seen_and_freeze_in_evaluation():
    normalizer, rng = ObservationNormalizer((3,)), np.random.default_rng(0)
    rows = rng.normal([1, -2, 50], [1, 3, 10], (500, 3)).astype(np.float32)
    for part in np.split(rows, 50):
        normalizer.observe(part)
    normalizer.eval()
    normalizer.observe(np.full((10, 3), 1e6, np.float32))
    expected = (rows - rows.mean(0)) / rows.std(0)
    assert normalizer.host(rows) == pytest.approx(np.clip(expected, -10, 10), abs=1e-3)
    assert normalizer(torch.from_numpy(rows)).numpy() == pytest.approx(normalizer.host(rows), abs=1e-5)


def test_statistics_that_were_moved_are_read_anew():
    normalizer = ObservationNormalizer((3,))
    before = normalizer._scale_elsewhere()[0].copy()
    normalizer._apply(lambda tensor: tensor + 1)  # as a module is moved
    assert (normalizer._scale_elsewhere()[0] == before + 1).all()


def test_normalised_observations_are_clipped():
    normalizer = ObservationNormalizer((1,))
    normalizer.observe(np.random.default_rng(0).standard_normal((100, 1)).astype(np.float32))
    assert normalizer.host(np.array([[1e6]], np.float32)).item() == 10.0


def test_minibatches_hold_every_row_once():
    rollout = RolloutBuffer(4, 2, (1,))
    for t in range(4):
        rollout.add(
            obs=np.array([[t], [10 + t]]), actions=0, logprobs=0, rewards=1, values=0, terminated=0, truncated=0
        )
    rollout.compute_returns_and_advantages(np.zeros(2), 0.99, 0.95)
    rows = [row for minibatch in rollout.iter_minibatches(3, shuffle=True) for row in minibatch["obs"][:, 0].tolist()]
    assert sorted(rows) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_returns_are_advantages_plus_values():
    rollout = RolloutBuffer(2, 1, (1,))
    for value in (0.25, 0.5):
        rollout.add(obs=0, actions=0, logprobs=0, rewards=1.0, values=value, terminated=0, truncated=0)
    rollout.compute_returns_and_advantages(np.array([2.0]), 0.5, 1.0)
    assert rollout.returns[:, 0] == pytest.approx([1 + 0.5 * (1 + 0.5 * 2), 1 + 0.5 * 2])
