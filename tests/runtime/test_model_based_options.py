"""Every option of PETS, MBPO, MOPO and Dreamer reaches the learner, its networks, its fits and its rollouts."""

from dataclasses import astuple, replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.planning import CEM, ICEM, RandomShooting
from rl_training.algorithms.terminations import LearnedTerminations
from rl_training.base.options import ConfigError
from rl_training.base.state import Rng
from rl_training.data import Mixed
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs import terminations as registry
from rl_training.envs.spaces import Spaces
from rl_training.models.dreamer import SIZES
from rl_training.models.mlp import EnsembleLayerNorm
from rl_training.runtime import dreamer_trainer, mbpo_trainer, mopo_trainer, pets_trainer
from rl_training.runtime.loops.model_based import Imagination, make_fit
from rl_training.runtime.spec import Blueprint

SPACES = SimpleNamespace(
    observation_space=gym.spaces.Box(-1, 1, (3,), np.float32), action_space=gym.spaces.Box(-2, 4, (2,), np.float32)
)


def plan(env_id="Nowhere-v0", actions=None):
    env = (
        SPACES if actions is None else SimpleNamespace(observation_space=SPACES.observation_space, action_space=actions)
    )
    return Blueprint(Spaces.of(env), torch.device("cpu"), env_id)


def widths(module):
    return [tuple(p.shape) for name, p in module.named_parameters() if name.endswith("weight")]


MODEL = {"num_ensembles": 4, "num_elites": 2, "model_hidden_sizes": (5, 6), "model_learning_rate": 0.002}
POLICY = {"hidden_sizes": (7, 8), "policy_learning_rate": 0.004, "gamma": 0.5, "tau": 0.25}


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        (mbpo_trainer, mbpo_trainer.MBPOOptions),
        (mopo_trainer, mopo_trainer.MOPOOptions),
    ],
)
def test_the_learners_of_rollouts_get_their_options(trainer, options):
    agent = trainer.build(options(**MODEL, **POLICY, target_entropy=-0.7), plan())
    model, policy = agent.dynamics.model, agent.policy
    assert widths(model.net) == [(4, 5, 5), (4, 5, 6), (4, 6, 8)] and model.elites.tolist() == [0, 1]
    assert agent.dynamics.optimizer.base_lr == 0.002
    assert widths(policy.model.actor) == [(7, 3), (8, 7), (4, 8)]
    assert widths(policy.model.critics) == [(2, 5, 7), (2, 7, 8), (2, 8, 1)]
    assert {optimizer.base_lr for optimizer in policy.optimizers()} == {0.004} and len(policy.optimizers()) == 3
    assert (float(policy._gamma), policy._tau, policy._target_entropy) == (0.5, 0.25, -0.7)
    assert isinstance(agent.terminations, LearnedTerminations)
    fixed = trainer.build(options(**MODEL, **POLICY, alpha=0.3, layer_norm=True), plan())
    assert fixed.policy.alpha == pytest.approx(0.3) and fixed.policy.alpha_optimizer is None
    assert sum(isinstance(part, EnsembleLayerNorm) for part in fixed.policy.model.modules()) == 2
    few = trainer.build(options(**{**MODEL, "num_elites": 9}), plan())
    assert few.dynamics.model.elites.tolist() == [0, 1, 2, 3]  # no more than there are members


@pytest.mark.parametrize("penalty", ["max_std", "max_deviation", "ensemble_std"])
def test_mopo_gets_its_penalty(penalty):
    agent = mopo_trainer.build(mopo_trainer.MOPOOptions(**MODEL, penalty=penalty, penalty_coef=0.3), plan())
    assert (agent._penalty, agent._penalty_coef) == (penalty, 0.3)
    assert mopo_trainer.build(mopo_trainer.MOPOOptions(**MODEL), plan())._penalty_coef == 1.0


def test_a_fit_gets_its_options():
    options = {"model_batch_size": 9, "model_updates": 8, "model_patience": 7, "model_patience_updates": 6}
    cfg = mbpo_trainer.MBPOOptions(**MODEL, **options, model_holdout_ratio=0.4)
    asked = []
    run = SimpleNamespace(rng=lambda name: asked.append(name) or Rng(0, name), pausing=lambda: False)
    fit = make_fit(run, mbpo_trainer.build(cfg, plan()).dynamics, cfg)
    assert (fit._batch_size, fit.most_updates, fit._patience, fit._patience_updates, fit._ratio) == (9, 8, 7, 6, 0.4)
    assert asked == ["model fit"]


@pytest.mark.parametrize(("capacity", "rows"), [(None, 10 * 2 * 3), (37, 37)])
def test_rollouts_are_kept_in_a_buffer_of_their_size(capacity, rows):
    cfg = mbpo_trainer.MBPOOptions(rollout_batch_size=10, rollouts_retained=2, synthetic_buffer_capacity=capacity)
    run = SimpleNamespace(spaces=plan().spaces, device=torch.device("cpu"), rng=lambda name: Rng(0, name))
    imagination = Imagination(run, None, cfg, longest=3)
    assert imagination.buffer.capacity == rows
    mixed = imagination.mixed(imagination.buffer)
    assert isinstance(mixed, Mixed) and mixed.counts(100) == [5, 95]


def test_rollouts_have_the_length_of_their_schedule():
    horizon = mbpo_trainer.MBPOLoop._horizon
    shrinking = SimpleNamespace(_cfg=mbpo_trainer.MBPOOptions(rollout_schedule=(10, 20, 4, 2)))
    assert [horizon(shrinking, step) for step in (0, 15, 10**12)] == [4, 3, 2]
    plain = SimpleNamespace(_cfg=mbpo_trainer.MBPOOptions(rollout_horizon=6))
    assert horizon(plain, 0) == horizon(plain, 10**12) == 6


PETS = {"num_ensembles": 4, "model_hidden_sizes": (5,), "model_learning_rate": 0.002, "planning_horizon": 6}
PETS |= {"planning_candidates": 30, "planning_topk": 7, "planning_iterations": 3, "planning_alpha": 0.4}
SEARCH = {"candidates": 30, "elites": 7, "iterations": 3, "alpha": 0.4}


@pytest.mark.parametrize(
    ("planner", "expected"), [("cem", CEM(**SEARCH)), ("icem", ICEM(**SEARCH)), ("random", RandomShooting(90))]
)
def test_pets_gets_its_options(planner, expected):
    options = pets_trainer.PETSOptions(**PETS, planner=planner, planning_particles=12, propagation="ts1")
    agent = pets_trainer.build(options, plan())
    assert agent._planner == expected and agent.optimizer.base_lr == 0.002
    assert (agent._horizon, agent._particles, agent._propagation) == (6, 12, "ts1")
    assert widths(agent.model.net) == [(4, 5, 5), (4, 5, 8)] and len(agent.model.elites) == 4
    assert agent._rewards is None and agent.terminations.function is None
    narrow = pets_trainer.PETSOptions(planning_candidates=5, planning_topk=9)
    assert narrow.search() == CEM(candidates=5, elites=5, iterations=8, alpha=0.1)


def test_registered_functions_see_actions_in_the_environments_units(monkeypatch):
    """Actions of the agent's in [-1, 1] are [-2, 4] in the environment."""
    monkeypatch.setitem(
        registry._TERMINATIONS, "Known-v0", lambda obs, actions, next_obs: actions[:, 0] > next_obs[:, 0]
    )
    monkeypatch.setitem(registry._REWARDS, "Known-v0", lambda obs, actions, next_obs: obs[:, 0] + actions[:, 1])
    agent = pets_trainer.build(pets_trainer.PETSOptions(**PETS), plan("Known-v0"))
    obs, actions = np.ones((2, 3), np.float32), np.array([[0.9, -1.0], [0.8, 0.0]], np.float32)
    next_obs = np.full((2, 3), 3.5, np.float32)
    assert agent.terminations.known and agent.terminations.function(obs, actions, next_obs).tolist() == [True, False]
    assert agent._rewards(obs, actions, next_obs).tolist() == [-1.0, 2.0]
    monkeypatch.setitem(registry._TERMINATIONS, "Never-v0", registry.never)
    never = pets_trainer.build(pets_trainer.PETSOptions(**PETS), plan("Never-v0"))
    assert never.terminations.known and never.terminations.function is None


def test_pets_plans_for_one_environment():
    with pytest.raises(ConfigError, match="pets plans for one environment at a time"):
        pets_trainer.PETSLoop(SimpleNamespace(config=SimpleNamespace(num_envs=2)), None, pets_trainer.PETSOptions())


# ---- Dreamer

DREAMER = {"world_model_learning_rate": 0.1, "actor_learning_rate": 0.2, "critic_learning_rate": 0.3, "gamma": 0.4}
DREAMER |= {"optimizer": "laprop", "max_grad_norm": 5.0, "entropy_coef": 0.6, "imagination_horizon": 7}
DREAMER |= {"imagination_batch_size": 8}


@pytest.mark.parametrize("actions", [None, gym.spaces.Discrete(5)])
def test_dreamer_gets_its_options(monkeypatch, actions):
    monkeypatch.setattr(dreamer_trainer, "Dreamer", dict)
    cfg = dreamer_trainer.DreamerOptions(**DREAMER, gae_lambda=0.9, size="nano", features_dim=11, action_embed_dim=12)
    given = dreamer_trainer.build(cfg, plan(actions=actions))
    assert given == {
        **DREAMER, "lam": 0.9, "obs_shape": (3,), "normalizer": None, "device": torch.device("cpu"),
        **({"num_actions": 5} if actions else {"action_dim": 2}),
        "size": replace(SIZES["nano"], units=11, embed=12),
    }  # fmt: skip
    scaled = dreamer_trainer.build(dreamer_trainer.DreamerOptions(normalize_observations=True), plan())
    assert scaled["normalizer"].mean.shape == (3,) and scaled["size"] == SIZES["tiny"]
    with pytest.raises(ValueError, match="given by size"):
        dreamer_trainer.build(cfg, replace(plan(), network=nn.Linear))


def test_dreamers_options_reach_its_optimizers_and_losses():
    learner = dreamer_trainer.build(dreamer_trainer.DreamerOptions(**DREAMER, gae_lambda=0.9, size="nano"), plan())
    rates = (learner.world_optimizer.base_lr, learner.actor_optimizer.base_lr, learner.critic_optimizer.base_lr)
    assert rates == (0.1, 0.2, 0.3) and learner._slow_rate == 0.02
    assert (learner._gamma, learner._lam, learner._entropy_coef) == (0.4, 0.9, 0.6)
    assert (learner._horizon, learner._starts) == (7, 8)
    learner.set_control("entropy_coef", 0.01)
    assert learner._entropy_coef == 0.01


@pytest.mark.parametrize(("capacity", "rows"), [(1_000, 2 * 50 + 2 * 6), (20, 20)])
def test_sequences_are_kept_in_a_buffer_of_their_size_and_no_more_than_a_run_can_have(capacity, rows):
    """An episode of one step has two observations."""
    run = SimpleNamespace(
        config=SimpleNamespace(total_timesteps=50, num_envs=2), spaces=plan().spaces, device=torch.device("cpu"),
        rng=lambda name: Rng(0, name),
    )  # fmt: skip
    buffer = dreamer_trainer.make_sequences(
        run, dreamer_trainer.DreamerOptions(buffer_capacity=capacity, sequence_length=4), 4
    )
    assert (buffer.capacity, buffer.num_envs, buffer.sequence_length) == (rows, 2, 4)
    with pytest.raises(ConfigError, match="cannot hold sequences of 4"):
        dreamer_trainer.make_sequences(run, dreamer_trainer.DreamerOptions(buffer_capacity=6, sequence_length=4), 4)


def test_the_sizes_of_the_paper_and_three_smaller_ones():
    """deter, hidden, latents, classes, units, depth, blocks, embed, stages."""
    early, later = (1, 2, 4, 8), (2, 3, 4, 4)
    assert {name: astuple(size) for name, size in SIZES.items()} == {
        "nano": (32, 16, 4, 4, 16, 2, 1, None, early),
        "tiny": (256, 128, 16, 16, 128, 8, 1, None, early),
        "small": (512, 256, 32, 16, 256, 16, 1, None, early),
        "1m": (512, 64, 32, 4, 64, 4, 8, None, later),
        "12m": (2048, 256, 32, 16, 256, 16, 8, None, later),
    }


# ---- defaults, by the papers unless they are ours

DEFAULTS = {
    pets_trainer.PETSOptions: {
        "num_ensembles": 5, "model_hidden_sizes": (200, 200, 200), "model_learning_rate": 1e-3, "batch_size": 32,
        "learning_starts": 200, "initial_random_steps": 200, "train_frequency": 200, "model_updates_per_step": None,
        "planner": "cem", "planning_horizon": 20, "planning_candidates": 100, "planning_topk": 10,
        "planning_iterations": 8, "planning_particles": 5, "planning_alpha": 0.1, "propagation": "tsinf",
        "eval_interval": 0, "standardise_targets": True,
    },
    mbpo_trainer.MBPOOptions: {
        "num_ensembles": 7, "num_elites": 5, "model_hidden_sizes": (200,) * 4, "model_learning_rate": 1e-3,
        "model_batch_size": 256, "model_patience": 5, "model_patience_updates": 200, "model_holdout_ratio": 0.2,
        "model_updates": None, "model_train_frequency": 250, "rollout_batch_size": 100_000, "rollout_horizon": 1,
        "rollouts_retained": 1, "synthetic_batch_ratio": 0.95, "policy_learning_rate": 3e-4, "batch_size": 256,
        "gradient_updates_per_step": 20, "gamma": 0.99, "tau": 0.005, "alpha": "auto", "hidden_sizes": (256, 256),
        "learning_starts": 5_000, "initial_random_steps": 5_000, "rollout_refresh_interval": None,
        "rollout_schedule": None, "standardise_targets": False, "target_entropy": None, "layer_norm": False, "synthetic_buffer_capacity": None,
    },
    mopo_trainer.MOPOOptions: {
        "rollout_batch_size": 10_000, "rollout_horizon": 5, "rollouts_retained": 5, "rollout_refresh_interval": 1_000,
        "penalty_coef": 1.0, "penalty": "max_std", "synthetic_batch_ratio": 0.95, "batch_size": 256,
    },
    dreamer_trainer.DreamerOptions: {
        "size": "tiny", "batch_size": 16, "sequence_length": 64, "learning_starts": 1_000, "train_frequency": 8,
        "world_model_updates": 1, "actor_critic_updates": 1, "imagination_horizon": 15, "imagination_batch_size": None,
        "world_model_learning_rate": 3e-4, "actor_learning_rate": 1e-4, "critic_learning_rate": 1e-4,
        "optimizer": "adam", "max_grad_norm": 100.0, "normalize_observations": False, "gamma": 0.997,
        "gae_lambda": 0.95, "entropy_coef": 3e-4, "buffer_capacity": 100_000,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", DEFAULTS, ids=lambda options: options.TITLE)
def test_defaults_are_those_that_the_documentation_gives(options):
    assert {name: getattr(options(), name) for name in DEFAULTS[options]} == DEFAULTS[options]


def test_the_entropy_that_mbpo_aims_for_and_its_warm_up_are_the_papers():
    entropies = {"Hopper": -1.0, "Walker2d": -3.0, "HalfCheetah": -3.0, "Ant": -4.0, "Humanoid": -2.0}
    assert {**entropies, "InvertedPendulum": -0.05, "InvertedDoublePendulum": -0.5} == mbpo_trainer.TARGET_ENTROPIES
    assert [mbpo_trainer.warm_up_steps(total) for total in (600, 2_000, 30_000, 400_000)] == [300, 500, 3_000, 5_000]


# ---- data that lacks what comes after a termination


def test_a_model_does_not_learn_from_transitions_whose_successor_is_not_known():
    rows = torch.arange(6.0)[:, None]
    dones = torch.tensor([0.0, 0, 1, 0, 0, 1])
    data = TransitionDataset(obs=rows, actions=rows, rewards=rows[:, 0], next_obs=rows + 1, dones=dones)
    assert mopo_trainer.with_final_observations(data) is data
    lacking = replace(data, meta={"final_observations": False})
    with pytest.warns(UserWarning, match="2 transitions are left out"):
        kept = mopo_trainer.with_final_observations(lacking)
    assert kept.obs[:, 0].tolist() == [0, 1, 3, 4] and not kept.dones.any()
    whole = replace(lacking, dones=torch.zeros(6))
    assert mopo_trainer.with_final_observations(whole) is whole
