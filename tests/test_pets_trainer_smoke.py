"""What PETS's trainer adds: fits in proportion to steps, plans that carry over, one environment."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.algorithms.terminations import deciding
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.pets_trainer import PETSLoop, PETSOptions
from toys import Counter


def test_fits_are_in_proportion_to_the_steps_between_them(tiny):
    metrics = get_algorithm_spec("pets").train(tiny("pets", total_timesteps=95, model_updates_per_step=0.5)).metrics
    assert metrics["gradient_steps"] == 3 * 15 and metrics["epoch"] == 3  # at steps 30, 60 and 90
    assert {"pets_model_loss", "reward_mae", "delta_obs_mae", "ensemble_disagreement"} <= set(metrics)


def test_by_default_a_fit_makes_five_passes_over_the_data_and_at_least_a_thousand_updates(tiny):
    config = tiny("pets", total_timesteps=35, model_updates_per_step=None)
    assert get_algorithm_spec("pets").train(config).metrics["gradient_steps"] == 1_000
    loop = PETSLoop.__new__(PETSLoop)
    loop._cfg, loop._starts = PETSOptions(), 200
    assert [loop.updates_of_a_fit(rows) for rows in (200, 6_400, 12_801)] == [1_000, 1_000, 5 * 401]
    assert loop.expected_updates(600) == 3_000 and loop.expected_updates(150) == 0


def test_the_plan_in_hand_is_saved_and_begins_anew_with_an_episode(tiny):
    result = get_algorithm_spec("pets").train(tiny("pets", total_timesteps=60))
    assert load_checkpoint(result.checkpoint_path).buffer_state["carry"]["value"].abs().sum() > 0
    ended = get_algorithm_spec("pets").train(tiny("pets", total_timesteps=60, env_kwargs={"max_episode_steps": 20}))
    assert load_checkpoint(ended.checkpoint_path).buffer_state["carry"]["value"].abs().sum() == 0


def test_several_environments_are_refused_with_a_reason(tiny):
    with pytest.raises(ValueError, match="num_envs: pets plans for one environment at a time"):
        get_algorithm_spec("pets").train(tiny("pets", num_envs=2))


@pytest.mark.parametrize("planner", ["cem", "icem", "random"])
@pytest.mark.parametrize("propagation", ["tsinf", "ts1"])
def test_every_way_to_plan(tiny, planner, propagation):
    config = tiny("pets", total_timesteps=36, planner=planner, propagation=propagation)
    assert np.isfinite(get_algorithm_spec("pets").train(config).metrics["eval_return_mean"])


def test_a_loaded_agent_plans_with_the_registered_terminations(tiny):
    pytest.importorskip("mujoco")
    spec = get_algorithm_spec("pets")
    config = tiny("pets", env_id="InvertedPendulum-v5", total_timesteps=40)
    agent = spec.load_fn(config, load_checkpoint(spec.train(config).checkpoint_path))
    upright, fallen = np.zeros((1, 4), np.float32), np.array([[0.0, 0.5, 0.0, 0.0]], np.float32)
    terminated = deciding(agent.terminations)
    assert terminated(upright, np.zeros((1, 1)), fallen).tolist() == [True]
    assert terminated(upright, np.zeros((1, 1)), upright).tolist() == [False]


def test_a_loaded_agent_plans_with_the_terminations_that_were_learned(tiny):
    spec, env = get_algorithm_spec("pets"), lambda: Counter(7, terminate=True, actions=Box(-1, 1, (1,), np.float32))
    config = tiny("pets", env_id="Counter-v0", total_timesteps=60, model_updates_per_step=30)
    state = load_checkpoint(spec.train(config, env=env).checkpoint_path)
    agent, _ = spec.load(config, state, env=env)
    obs = np.arange(7, dtype=np.float32)[:, None]
    terminated = deciding(agent.terminations)
    assert terminated(obs, np.zeros((7, 1), np.float32), obs + 1).tolist() == 6 * [False] + [True]
    plans = torch.zeros(1, 3, 1)
    early, late = (agent.values_of(torch.tensor([t]), plans, 30).item() for t in (1.0, 6.0))
    assert late < early - 1  # a plan from the last step collects one reward, not three


def test_a_pets_agent_that_knows_its_terminations_can_be_pickled(tiny):
    spec = get_algorithm_spec("pets")
    config = tiny("pets", env_id="InvertedPendulum-v5")
    agent = spec.build(spec.options(config), spec.blueprint(config, EnvFactory(config.env_id, {}), None, "cpu"))
    fallen = np.array([[0.0, 0.5, 0.0, 0.0]], np.float32)
    again = pickle.loads(pickle.dumps(agent))
    assert deciding(again.terminations)(fallen, np.zeros((1, 1)), fallen).tolist() == [True]
