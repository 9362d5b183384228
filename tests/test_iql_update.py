"""IQL's maths: expectiles, weights, and that no action outside the data is ever evaluated."""

import math

import pytest
import torch

from rl_training.algorithms.iql import IQL, advantage_weights, expectile_loss
from rl_training.models import MLPIQLModel


def batch(rows=8, **changes):
    generator = torch.Generator().manual_seed(0)
    data = {
        "obs": torch.randn(rows, 3, generator=generator), "actions": torch.rand(rows, 2, generator=generator) * 2 - 1,
        "rewards": torch.ones(rows), "next_obs": torch.randn(rows, 3, generator=generator), "dones": torch.zeros(rows),
    }  # fmt: skip
    return {**data, **changes}


def agent(model=None, **options):
    torch.manual_seed(0)
    model = model or MLPIQLModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16))
    return IQL(model=model, **{"learning_rate": 1e-3, "gamma": 0.9, "tau": 0.005, **options})


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.9])
def test_the_expectile_of_two_equally_likely_values(tau):
    values, guess = torch.tensor([0.0, 1.0]), torch.zeros((), requires_grad=True)
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(expectile_loss(values - guess, tau), guess)
        guess.data -= 0.1 * gradient
    assert guess.item() == pytest.approx(tau, abs=1e-4)  # of {0, 1}, the τ-expectile is τ


def test_weights_are_exponential_and_bounded():
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 50.0]), 3.0, 100.0)
    assert weights.tolist() == pytest.approx([math.exp(-3), 1.0, math.exp(3), 100.0])


def test_values_are_asked_for_the_datas_actions_alone():
    asked = []

    class Watched(MLPIQLModel):
        def q_values(self, obs, actions, members=None):
            asked.append(actions.clone())
            return super().q_values(obs, actions, members)

    rows = batch()
    agent(Watched(obs_dim=3, action_dim=2, hidden_sizes=(8,))).update(rows, global_step=0)
    assert asked and all(torch.equal(actions, rows["actions"]) for actions in asked)


def test_targets_bootstrap_from_the_value_network_and_stop_at_terminations():
    learner = agent()
    rows = batch(dones=torch.tensor([0.0, 1.0] * 4))
    values = learner.model.values(rows["next_obs"]).detach()
    target = learner.update(rows, global_step=0).metrics["target_q_mean"]
    assert target == pytest.approx((1 + 0.9 * values * (1 - rows["dones"])).mean().item(), abs=1e-5)


def test_each_network_learns_from_its_own_loss_alone():
    learner = agent()
    parts = {"value_optimizer": "value", "critic_optimizer": "critics", "actor_optimizer": "actor"}
    for frozen in parts:
        before = {name: getattr(learner, name).flat.clone() for name in parts}
        for name in parts:
            getattr(learner, name).lr.fill_(0.0 if name != frozen else 1e-2)
        learner.update(batch(), global_step=0)
        moved = {name for name in parts if not torch.equal(before[name], getattr(learner, name).flat)}
        assert moved == {frozen}


def test_the_actors_rate_falls_by_a_cosine_and_the_others_stay(tiny):
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.callbacks import Callback

    seen = []

    class Watch(Callback):
        def on_update_end(self, trainer, result):
            seen.append((trainer.algorithm.actor_optimizer.lr.item(), trainer.algorithm.critic_optimizer.lr.item()))

    get_algorithm_spec("iql").train(tiny("iql", total_timesteps=101, learning_rate=1e-3), callbacks=[Watch()])
    assert seen[0] == pytest.approx((1e-3, 1e-3))
    assert seen[50] == pytest.approx((0.5e-3, 1e-3), rel=0.03)
    assert seen[-1][0] < 1e-6 and seen[-1][1] == pytest.approx(1e-3)


def test_actions_stay_in_the_box_and_the_best_one_is_the_mean():
    import numpy as np

    learner = agent()
    obs = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    drawn = learner.act(obs, rng=np.random.default_rng(1)).actions
    assert np.abs(drawn).max() == 1.0  # a deviation of 1 reaches the bounds
    best = learner.act(obs, deterministic=True).actions
    assert np.allclose(best, learner.model.policy(torch.from_numpy(obs))[0].detach().numpy(), atol=1e-6)


def test_a_rate_of_the_actors_own_is_what_its_schedule_multiplies():
    learner = agent(actor_learning_rate=5e-4)
    learner.set_control("actor_rate", 0.5)
    assert float(learner.actor_optimizer.lr) == pytest.approx(2.5e-4)
    assert float(learner.critic_optimizer.lr) == pytest.approx(1e-3)


def test_a_wrong_argument_is_one_of_the_class_that_was_called():
    with pytest.raises(TypeError, match=r"^IQL\(\) got an unexpected keyword argument 'expectil'"):
        agent(expectil=0.7)
