"""RLPD's maths: symmetric slices, bounded critics, random pairs, who steps how often."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.rlpd import RLPD, rlpd_loss
from rl_training.algorithms.sac import sac_loss, temperature_loss
from rl_training.data import Mixed, ReplayBuffer
from rl_training.models import MLPSACModel
from rl_training.models.mlp import EnsembleLayerNorm, ensemble_mlp


def agent(model=None, **options):
    torch.manual_seed(0)
    model = model or MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16), num_critics=10, layer_norm=True)
    return RLPD(model=model, **{"learning_rate": 1e-3, "gamma": 0.9, "alpha": 0.2, "tau": 0.005, **options})


def batch(rows=8):
    generator = torch.Generator().manual_seed(0)
    return {
        "obs": torch.randn(rows, 3, generator=generator), "actions": torch.rand(rows, 2, generator=generator) * 2 - 1,
        "rewards": torch.ones(rows), "next_obs": torch.randn(rows, 3, generator=generator), "dones": torch.zeros(rows),
    }  # fmt: skip


def full(value, rows=64):
    buffer = ReplayBuffer(rows, (1,), (1,))
    zeros = np.zeros((rows, 1), np.float32)
    buffer.add(obs=zeros, actions=zeros, rewards=np.full(rows, value), next_obs=zeros, dones=np.zeros(rows))
    return buffer


@pytest.mark.parametrize(
    ("size", "slices", "ratio"), [(256, 20, 0.5), (10, 3, 0.3), (7, 4, 0.5), (8, 5, 0.25), (6, 2, 1.0)]
)
def test_every_slice_has_exactly_its_share_of_prior_data(size, slices, ratio):
    mixed = Mixed((full(1.0), ratio), (full(0.0), 1 - ratio), slices=slices)
    rewards = mixed.sample(size * slices)["rewards"]
    assert [int(part.sum()) for part in rewards.split(size)] == [int(size * ratio)] * slices


def test_layer_normalisation_bounds_values_far_outside_the_data():
    obs, actions = torch.randn(4, 3), torch.tensor([[0.5, -0.7]]).expand(4, 2)
    for layer_norm in (True, False):
        torch.manual_seed(1)
        model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(32, 32), num_critics=10, layer_norm=layer_norm)
        far, farther = (torch.stack(model.q_values(obs, factor * actions)) for factor in (1e5, 1e6))
        if layer_norm:
            assert (far - farther).abs().max() < 1e-3
        else:
            assert (farther / far).median().item() == pytest.approx(10, rel=0.05)


def test_an_ensemble_with_norms_equals_its_members_one_by_one():
    torch.manual_seed(0)
    ensemble = ensemble_mlp(3, (4, 8, 8, 2), layer_norm=True)
    for layer in ensemble:
        if isinstance(layer, EnsembleLayerNorm):
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.normal_(layer.bias)
    x = torch.randn(5, 4)
    together = ensemble(x)
    for k in range(3):
        y = x
        for layer in ensemble:
            if isinstance(layer, EnsembleLayerNorm):
                y = torch.nn.functional.layer_norm(y, (8,), layer.weight[k, 0], layer.bias[k, 0])
            elif hasattr(layer, "weight"):
                y = y @ layer.weight[k] + layer.bias[k]
            else:
                y = layer(y)
        assert torch.allclose(together[k], y, atol=1e-5)
    chosen = torch.tensor([2, 0])
    assert torch.allclose(ensemble(x, chosen), together[chosen], atol=1e-6)


class Members(MLPSACModel):
    """Critic k always says k + 1."""

    def __init__(self):
        super().__init__(obs_dim=3, action_dim=2, hidden_sizes=(4,), num_critics=10)
        self.asked = []

    def q_values(self, obs, actions, members=None):
        said = torch.arange(1.0, 11.0) if members is None else members + 1.0
        self.asked.append(said)
        return tuple(
            value + 0 * (self.critics(torch.cat([obs, actions], -1))[0, :, 0] + actions.sum(-1)) for value in said
        )


def test_targets_are_the_smaller_of_two_distinct_critics_and_the_actor_takes_the_mean_of_all():
    learner = agent(Members(), backup_entropy=False, alpha=0.0)
    rows = {**batch(1), "rewards": torch.zeros(1)}
    targets = [learner.update(rows, global_step=0).metrics["target_q_mean"] / 0.9 for _ in range(3000)]
    pairs = learner.target_model.asked
    assert all(len(said) == 2 and said[0] != said[1] for said in pairs)
    assert targets == pytest.approx([said.min().item() for said in pairs], abs=1e-4)
    assert np.mean(targets) == pytest.approx(11 / 3, abs=0.1)  # the expected minimum of two of {1..10}
    assert learner.update(rows, global_step=0).metrics["actor_loss"] == pytest.approx(-5.5, abs=1e-4)


def test_critics_and_targets_step_for_every_slice_and_the_actor_once():
    learner, steps = agent(updates_per_batch=5), {"critic": 0, "actor": 0, "alpha": 0, "target": 0}
    for name in ("critic", "actor"):
        optimizer = getattr(learner, f"{name}_optimizer")

        def step(grad, name=name, inner=optimizer.step):
            steps[name] += 1
            inner(grad)

        optimizer.step = step
    move = learner._move_target

    def counted():
        steps["target"] += 1
        move()

    learner._move_target = counted
    result = learner.update(batch(40), global_step=0)
    assert steps == {"critic": 5, "actor": 1, "alpha": 0, "target": 5} and result.num_gradient_steps == 5
    with pytest.raises(ValueError, match="8 rows cannot be cut into 5 equal batches"):
        learner.update(batch(8), global_step=0)


def test_a_tuned_temperature_aims_for_minus_half_the_action_dimension():
    learner, logp = agent(alpha="auto"), torch.tensor([1.0, 2.0])
    [(_, loss)] = learner._temperature_steps(logp, 6)
    assert loss.item() == temperature_loss(learner.log_alpha.value, logp, -3.0).item()
    before = learner.alpha
    learner.update(batch(), global_step=0)
    assert learner.alpha != before


def test_a_plain_sac_model_will_do():
    learner = agent(MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,)))
    metrics = learner.update(batch(), global_step=0).metrics
    assert {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"} <= set(metrics)
    with pytest.raises(ValueError, match="target_subset must lie between 1 and the 2 critics, got 3"):
        agent(MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,)), target_subset=3)


def test_the_loss_is_sacs():
    assert rlpd_loss is sac_loss


def test_values_stay_bounded_on_an_experts_data_alone():
    """Rewards up to 1 and γ = 0.9: no value beyond 2 / (1 - γ), although only a sliver of the actions was ever seen."""
    learner = agent(learning_rate=3e-3, updates_per_batch=4, tau=0.05)
    rows = {**batch(256), "actions": torch.full((256, 2), 0.9)}
    largest = max(learner.update(rows, global_step=0).metrics["q_value_max"] for _ in range(100))
    assert 5 < largest <= 2 * 1 / (1 - 0.9)
