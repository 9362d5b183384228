"""Rollouts of MBPO and MOPO against a reference that goes row by row, and their policy's updates against SAC's."""

import copy

import numpy as np
import pytest
import torch

from oracles import mopo as oracle
from oracles.comparing import assert_same_parameters
from oracles.ensemble import EnsembleReference
from oracles.precision import double_precision
from rl_training.algorithms.dynamics import imagine
from rl_training.algorithms.mbpo import MBPO
from rl_training.algorithms.mopo import MOPO
from rl_training.algorithms.sac import SAC
from rl_training.models import MLPMOPOEnsembleModel, MLPSACModel

SOFT = {"gamma": 0.9, "alpha": "auto", "tau": 0.1, "target_entropy": -0.3}


def learner(kind, **options):
    """With elites that are neither the first nor all of the members, and deviations that differ between members."""
    torch.manual_seed(4)
    model = MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=(6, 6), num_ensembles=5, num_elites=2)
    with torch.no_grad():
        model.elites.copy_(torch.tensor([3, 1]))
        for layer in model.layers():
            layer.weight.mul_(2)
            layer.bias.normal_(std=0.5)
        model.standardise(torch.randn(50, 3) * 2 + 0.3)
    policy = MLPSACModel(obs_dim=2, action_dim=1, hidden_sizes=(8, 8))
    rates = {"policy_learning_rate": 3e-3, "model_learning_rate": 1e-3}
    return kind(policy_model=policy, dynamics_model=model, **rates, **{**SOFT, **options})


def ended(obs, actions, next_obs):
    return next_obs[:, 0] + 0.3 * obs[:, 1] - 0.4 * actions[:, 0] > 0.8


LEARNERS = {
    "mbpo": (MBPO, None),
    **{kind: (MOPO, (kind, 0.7)) for kind in ("max_std", "max_deviation", "ensemble_std")},
    "mopo without a penalty": (MOPO, ("max_std", 0.0)),
}


@pytest.mark.parametrize("terminated", [None, ended], ids=["for ever", "terminated"])
@pytest.mark.parametrize(("kind", "penalty"), LEARNERS.values(), ids=LEARNERS)
def test_rollouts_row_by_row(kind, penalty, terminated):
    with double_precision():
        options = {} if penalty is None else {"penalty": penalty[0], "penalty_coef": penalty[1]}
        agent = learner(kind, terminated=terminated, **options)
        ensemble = EnsembleReference(agent.dynamics.model, 1e-3)
        starts = torch.randn(9, 2)
        torch.manual_seed(6)
        ours = list(imagine(agent.imagined_step, agent.imagined_actions, starts, 4, agent.terminated))
        torch.manual_seed(6)
        theirs = oracle.rollouts(ensemble, agent.policy.model.actor, starts, 4, terminated, penalty)
        assert [len(rows["obs"]) for rows in ours] == [len(rows["obs"]) for rows in theirs]
        assert (len(ours[-1]["obs"]) < 9) == (terminated is not None)
        for rows, expected in zip(ours, theirs):
            assert set(rows) == set(expected)
            for name in rows:
                np.testing.assert_allclose(rows[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


def batch(n=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    dones = (torch.rand(n, generator=rng) < 0.3).float()
    columns = {name: torch.randn(n, 2, generator=rng) for name in ("obs", "next_obs")}
    actions = torch.rand(n, 1, generator=rng) * 2 - 1
    return {**columns, "actions": actions, "rewards": torch.randn(n, generator=rng), "dones": dones}


@pytest.mark.parametrize("soft", [{}, {"alpha": 0.3, "target_entropy": None}, {"gamma": 0.5, "tau": 0.7}])
@pytest.mark.parametrize("kind", [MBPO, MOPO])
def test_the_policy_is_updated_as_sac_would_and_the_model_is_left_alone(kind, soft):
    agent = learner(kind, **soft)
    sac = SAC(model=copy.deepcopy(agent.policy.model), learning_rate=3e-3, **{**SOFT, **soft})
    model = agent.dynamics.optimizer.flat.clone()
    for seed in range(3):
        torch.manual_seed(seed)
        theirs = sac.update(batch(seed=seed), global_step=0)
        torch.manual_seed(seed)
        ours = agent.update(batch(seed=seed), global_step=0)
        assert dict(ours.metrics) == dict(theirs.metrics) and ours.num_gradient_steps == 1
    assert_same_parameters(agent.policy.model, sac.model, tolerance=0.0)
    assert_same_parameters(agent.policy.target_model, sac.target_model, tolerance=0.0)
    assert agent.policy.alpha == sac.alpha and torch.equal(model, agent.dynamics.optimizer.flat)


def test_what_is_drawn_of_a_transition_is_reported_with_its_parts():
    with double_precision():
        agent = learner(MOPO, penalty_coef=0.7)
        ensemble = EnsembleReference(agent.dynamics.model, 1e-3)
        obs, actions = torch.randn(4, 2), torch.rand(4, 1)
        torch.manual_seed(0)
        ours = agent.sample_synthetic_transition(obs, actions)
        torch.manual_seed(0)
        with torch.no_grad():
            drawn = torch.stack(oracle.by_random_elites(ensemble, obs, actions))
            unsure = [oracle.uncertainty(ensemble, x, a, "max_std") for x, a in zip(obs, actions)]
            apart = [oracle.uncertainty(ensemble, x, a, "max_deviation") for x, a in zip(obs, actions)]
        theirs = {
            "next_obs": obs + drawn[:, :-1], "raw_rewards": drawn[:, -1], "disagreement": torch.tensor(apart),
            "rewards": drawn[:, -1] - 0.7 * torch.tensor(unsure),
        }  # fmt: skip
        torch.testing.assert_close(ours, theirs)
        assert not any(part.requires_grad for part in ours.values())
        mbpo = learner(MBPO)
        torch.manual_seed(0)
        unpenalised = mbpo.sample_synthetic_transition(obs, actions)
        torch.testing.assert_close(unpenalised, {**theirs, "rewards": drawn[:, -1]})
        torch.manual_seed(0)
        plain = agent.dynamics.model.sample_transition(obs, actions)
        torch.testing.assert_close(
            plain, {**{k: theirs[k] for k in ("next_obs", "disagreement")}, "rewards": drawn[:, -1]}
        )


@pytest.mark.parametrize("kind", [MBPO, MOPO])
def test_policy_and_model_are_compiled_together(kind):
    agent = learner(kind)
    assert not agent.compiled
    agent.use_compiled()
    assert agent.policy.compiled and agent.dynamics.compiled and agent.compiled
