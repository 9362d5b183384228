"""PPO's updates are those of the paper, written once more in plain torch: weights and metrics, whatever the options."""

import numpy as np
import pytest
import torch

from compiling import compiles
from on_policy_learners import IMAGES, OPTIONS, SMALL_STEPS, network, oracle_network, rollout
from oracles.comparing import FLOAT32, FLOAT64, assert_changed, assert_same_metrics, assert_same_parameters
from oracles.gae import advantages_and_targets
from oracles.normalisers import ObservationStatistics, RewardScale
from oracles.ppo import PPO as Oracle
from rl_training.algorithms.ppo import PPO
from rl_training.base.returns import explained_variance, gae
from rl_training.data.reward_scaler import RewardScaler
from rl_training.models.normalizer import ObservationNormalizer


def compare(kind="discrete", *, dtype=torch.float64, compiled=False, rows=7, updates=5, shape=None, **options):
    """Updates of the learner and of the oracle on the same minibatches."""
    policy = network(kind, dtype=dtype, **(shape or {}))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    oracle = Oracle(oracle_network(policy, kind), **{**OPTIONS, **options})
    learner = PPO(policy=policy, **{**OPTIONS, **options})
    if compiled:
        learner.use_compiled()
    for k in range(updates):
        batch = rollout(oracle.network, rows, seed=k)
        expected = oracle.update(batch)
        assert_same_metrics(learner.update(batch, global_step=k).metrics, expected, tolerance=FLOAT32)
    assert learner.compiled == compiled
    tolerance = FLOAT64 if dtype == torch.float64 else FLOAT32
    assert_same_parameters(policy, oracle.network, tolerance=tolerance)
    assert_changed(before, policy)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary", "box"])
def test_updates_for_every_kind_of_actions(kind):
    compare(kind)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_values": True},
        {"normalize_advantages": False},
        {"max_grad_norm": None},
        {"max_grad_norm": 2**-6},
        {"clip_coef": 2**-4, "clip_values": True},
        {"ent_coef": 0.0},
        {"ent_coef": 1.0, "vf_coef": 0.25},
        {"learning_rate": 2**-10},
        {"rows": 1},  # one advantage has no deviation: it is taken as it is
        {"shape": {"towers": 1}},
        {"shape": {"hidden_sizes": (8,)}},
    ],
    ids=str,
)
def test_updates_for_every_option(options):
    compare("discrete", **options)


@pytest.mark.parametrize("shape", [{}, {"head_sizes": (6,)}, {"towers": 2}], ids=str)
def test_updates_from_images(shape):
    compare("discrete", shape={**IMAGES, **shape}, dtype=torch.float32, rows=4, updates=3, **SMALL_STEPS)


@compiles
def test_compiled_updates():
    compare("box", dtype=torch.float32, compiled=True, clip_values=True, **SMALL_STEPS)


def test_coefficients_that_a_schedule_has_changed_are_those_of_the_next_update():
    policy = network("discrete")
    oracle, learner = Oracle(oracle_network(policy, "discrete"), **OPTIONS), PPO(policy=policy, **OPTIONS)
    for k, (scale, clip, entropy) in enumerate([(1.0, 0.25, 0.5), (0.5, 0.125, 0.25), (0.25, 0.0625, 0.0)]):
        learner.set_control("clip_coef", clip)
        learner.set_control("ent_coef", entropy)
        for optimizer in learner.optimizers():
            optimizer.scale_lr(scale)
        oracle.clip_coef, oracle.ent_coef = clip, entropy
        oracle.optimizer.param_groups[0]["lr"] = scale * OPTIONS["learning_rate"]
        batch = rollout(oracle.network, 6, seed=k)
        assert_same_metrics(learner.update(batch, global_step=k).metrics, oracle.update(batch), tolerance=FLOAT32)
    assert_same_parameters(policy, oracle.network, tolerance=FLOAT64)


# ---- what comes before an update: advantages and normalisers


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.9, 0.8), (0.9, 0.0), (1.0, 1.0), (0.5, 1.0)])
def test_advantages_are_the_sums_that_define_them_wherever_episodes_end(gamma, gae_lambda):
    rng = np.random.default_rng(0)
    shape = (6, 40)
    rewards, values, final_values = rng.standard_normal((3, *shape)).astype(np.float32)
    last_values = rng.standard_normal(shape[1]).astype(np.float32)
    kinds = rng.choice(
        3, shape, p=[0.6, 0.2, 0.2]
    )  # goes on, terminated, truncated: also twice in a row and at the edges
    terminated, truncated = (kinds == 1).astype(np.float32), (kinds == 2).astype(np.float32)
    assert all((ends[[0, -1]].sum(1) > 0).all() and (ends[1:] * ends[:-1]).any() for ends in (terminated, truncated))
    next_values = np.where(truncated > 0, final_values, np.concatenate([values[1:], last_values[None]]))
    expected, _ = advantages_and_targets(
        *(x.astype(np.float64) for x in (rewards, values, next_values, terminated, truncated)),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    ours = gae(
        rewards=rewards, values=values, last_values=last_values, terminated=terminated, truncated=truncated,
        final_values=final_values, gamma=gamma, gae_lambda=gae_lambda,
    )  # fmt: skip
    np.testing.assert_allclose(ours, expected, atol=2e-5)


def test_explained_variance_is_the_share_of_the_returns_variance_that_values_explain():
    rng = np.random.default_rng(0)
    returns, noise = 3 + 2 * rng.standard_normal((2, 1000))
    values = returns + 5 + 0.5 * noise  # a constant offset is no error
    share = 1 - np.mean((returns - values - np.mean(returns - values)) ** 2) / np.mean((returns - returns.mean()) ** 2)
    assert explained_variance(values, returns) == pytest.approx(share)
    assert np.isnan(explained_variance(values, np.ones_like(values)))


def test_running_statistics_of_observations_are_those_of_all_rows_seen():
    ours, oracle, rng = ObservationNormalizer((2,)), ObservationStatistics(), np.random.default_rng(0)
    for rows in (1, 3, 1, 7):
        batch = rng.normal([5, -1], [0.1, 20], (rows, 2)).astype(np.float32)
        ours.observe(batch)
        oracle.observe(batch)
        if rows > 1:
            seen = rng.normal([5, -1], [0.5, 300], (9, 2)).astype(np.float32)
            np.testing.assert_allclose(ours.host(seen), oracle.normalised(seen), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(
                ours(torch.from_numpy(seen)).numpy(), oracle.normalised(seen), rtol=1e-4, atol=1e-4
            )
            assert np.abs(ours.host(seen)).max() == 10
    np.testing.assert_allclose(ours.exact_mean.numpy(), oracle.mean, rtol=1e-12)
    np.testing.assert_allclose((ours.square / ours.count + 1e-8).sqrt().numpy(), oracle.deviation, rtol=1e-9)


def test_rewards_are_scaled_by_the_deviation_of_returns_that_begin_anew_with_each_episode():
    ours, oracle, rng = RewardScaler(3, 0.9), RewardScale(3, 0.9), np.random.default_rng(0)
    again = RewardScaler(3, 0.9)
    for _ in range(12):
        rewards, ended = rng.normal(2, 1, 3).astype(np.float32), (rng.random(3) < 0.3).astype(np.float32)
        oracle.observe(rewards, ended)
        np.testing.assert_allclose(ours(rewards, ended), oracle.scaled(rewards), rtol=1e-6)
        again.load_state_dict(ours.state_dict())  # what is saved is all there is
        ours, again = again, ours
    assert ours.scaled(np.array([1e9, -1e9])).tolist() == [10, -10]
