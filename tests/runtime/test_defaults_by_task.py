"""Defaults that depend on the task: chosen once, written down, said, and never changed behind a run's back."""

from __future__ import annotations

import json

import numpy as np
import pytest

import toys
from rl_training import PPO, SAC, TrainConfig
from rl_training.cli import main
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.experiment.yaml_config import read_config
from rl_training.runtime.workflows import resume_training


def config(algo: str, env_id: str = "Pendulum-v1", **fields) -> TrainConfig:
    return TrainConfig(**{"algo": algo, "env_id": env_id, "total_timesteps": 100_000, **fields})


def completed(algo: str, env_id: str = "Pendulum-v1", **fields) -> dict:
    return get_algorithm_spec(algo).complete(config(algo, env_id, **fields)).algo_kwargs


@pytest.mark.parametrize(("num_envs", "num_steps"), [(1, 2048), (8, 256), (3, 682), (4096, 1)])
def test_a_rollout_of_vectors_has_2048_steps_over_all_environments(num_envs, num_steps):
    assert completed("ppo", num_envs=num_envs)["num_steps"] == num_steps


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_on_policy_learning_from_vectors_is_normalised_and_takes_ten_passes_of_small_minibatches(algo):
    chosen = completed(algo, "CartPole-v1")
    assert {"num_steps": 2048, "update_epochs": 10, "minibatch_size": 64}.items() <= chosen.items()
    assert chosen["normalize_observations"] is True and chosen["normalize_rewards"] is True


def test_boxes_of_actions_are_explored_by_three_fifths_of_a_unit_at_first():
    assert completed("ppo")["initial_log_std"] == -0.5
    assert "initial_log_std" not in completed("ppo", "CartPole-v1")


def test_ppg_learns_from_vectors_with_a_trunk_each():
    assert completed("ppg")["architecture"] == "dual"


def test_on_policy_learning_from_images_is_not_normalised():
    chosen = completed("ppo", "rl_training.envs.catch:Catch-v0")
    assert (chosen["num_steps"], chosen["normalize_observations"], chosen["normalize_rewards"]) == (128, False, False)


@pytest.mark.parametrize(
    ("env_id", "horizon", "planner"),
    [("Pendulum-v1", 20, "cem"), ("InvertedPendulum-v5", 40, "icem"), ("MountainCarContinuous-v0", 40, "icem")],
)
def test_pets_looks_further_ahead_by_smoother_plans_where_episodes_may_terminate(env_id, horizon, planner):
    chosen = completed("pets", env_id)
    assert (chosen["planning_horizon"], chosen["planner"]) == (horizon, planner)
    chosen = completed("pets", env_id, algo_kwargs={"planning_horizon": 7, "planner": "random"})
    assert (chosen["planning_horizon"], chosen["planner"]) == (7, "random")


@pytest.mark.parametrize(("total", "warm_up"), [(1_000_000, 10_000), (100_000, 10_000), (30_000, 3_000), (8_000, 800)])
def test_sac_spends_a_tenth_of_a_run_on_random_steps_and_at_most_ten_thousand(total, warm_up):
    chosen = completed("sac", total_timesteps=total)
    rest = {"learning_rate": 1e-3, "alpha": "auto"}
    assert chosen == {"learning_starts": warm_up, "initial_random_steps": warm_up, **rest}


@pytest.mark.parametrize(
    ("env_id", "alpha"), [("HalfCheetah-v5", 0.2), ("MountainCarContinuous-v0", "auto"), ("Pendulum-v1", "auto")]
)
def test_sacs_temperature_is_fixed_where_episodes_have_a_thousand_steps(env_id, alpha):
    assert completed("sac", env_id)["alpha"] == alpha
    assert completed("sac", env_id, algo_kwargs={"alpha": 0.5})["alpha"] == 0.5
    assert "alpha" not in completed("rlpd", env_id)


def test_a_target_entropy_that_is_set_is_aimed_for():
    assert completed("sac", "HalfCheetah-v5", algo_kwargs={"target_entropy": -3.0})["alpha"] == "auto"


def test_a_time_limit_of_ones_own_counts():
    assert completed("sac", env_kwargs={"max_episode_steps": 1000})["alpha"] == 0.2


@pytest.mark.parametrize(
    "algo", [name for name in ALGORITHMS if "learning_starts" in get_algorithm_spec(name).config.model_fields]
)
def test_no_run_is_spent_on_its_warm_up(algo):
    env_id = "CartPole-v1" if algo in ("dqn", "qr_dqn", "iqn", "fqf") else "Pendulum-v1"
    assert completed(algo, env_id, total_timesteps=1_500)["learning_starts"] <= 500  # MBPO's first fit needs as many
    assert completed(algo, env_id, total_timesteps=10_000_000)["learning_starts"] <= 10_000


@pytest.mark.parametrize("algo", ["sac", "rlpd", "mbpo"])
def test_a_warm_up_that_is_set_is_random_throughout(algo):
    assert completed(algo, algo_kwargs={"learning_starts": 77})["initial_random_steps"] == 77
    assert completed(algo, algo_kwargs={"learning_starts": 77, "initial_random_steps": 5})["initial_random_steps"] == 5


def test_what_is_set_stays_even_where_it_equals_the_static_default():
    static = get_algorithm_spec("ppo").config()
    given = {"num_steps": static.num_steps, "normalize_rewards": static.normalize_rewards}
    chosen = completed("ppo", algo_kwargs=given)
    assert {name: chosen[name] for name in given} == given
    assert chosen["minibatch_size"] == 64


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_every_option_that_a_task_decides_exists_and_passes_validation(algo):
    spec = get_algorithm_spec(algo)
    env_id = "CartPole-v1" if "box" not in spec.actions else "Pendulum-v1"
    whole = spec.complete(config(algo, env_id))
    assert set(whole.algo_kwargs) <= set(spec.config.BY_TASK) <= set(spec.config.model_fields)
    assert bool(whole.algo_kwargs) == bool(spec.config.BY_TASK)
    spec.options(whole)


@pytest.fixture
def short_ppo(tmp_path) -> PPO:
    return PPO(
        "Pendulum-v1",
        total_timesteps=64,
        num_steps=32,
        eval_episodes=1,
        hidden_sizes=(8,),
        output_dir=tmp_path,
        compile=False,
        progress="lines",
    )


def test_a_run_writes_down_and_says_what_its_task_decided(short_ppo, capsys):
    result = short_ppo.learn()
    printed = capsys.readouterr()
    said = next(line for line in (printed.out + printed.err).splitlines() if "chosen for this task" in line)
    assert "minibatch_size 64" in said and "normalize_rewards true" in said and "num_steps" not in said
    written = read_config(result.run_dir / "config.yaml").algo_kwargs
    assert written["num_steps"] == 32 and written["minibatch_size"] == 64 and written["normalize_observations"] is True
    assert load_checkpoint(result.checkpoint_path).config["algo_kwargs"] == json.loads(json.dumps(written))


def test_a_resumed_run_keeps_what_was_chosen_although_its_total_has_changed(tmp_path):
    agent = SAC(
        "Pendulum-v1",
        total_timesteps=300,
        batch_size=8,
        hidden_sizes=(8,),
        eval_episodes=1,
        output_dir=tmp_path,
        compile=False,
    )
    first = agent.learn()
    again = resume_training(first.run_dir, total_timesteps=600)
    chosen = load_checkpoint(again.checkpoint_path).config["algo_kwargs"]
    assert (chosen["learning_starts"], chosen["learning_rate"]) == (30, 1e-3)


def test_a_checkpoint_is_loaded_with_the_choices_of_its_run_by_the_config_that_left_them_open(short_ppo):
    result = short_ppo.learn()
    spec = get_algorithm_spec("ppo")
    learner = spec.load_fn(short_ppo.config, load_checkpoint(result.checkpoint_path), "cpu")
    assert learner.normalizer is not None
    assert np.isfinite(short_ppo.predict(np.zeros(3, np.float32))).all()


def test_a_file_saved_before_tasks_decided_anything_loads_with_the_defaults_of_then(short_ppo):
    state = load_checkpoint(short_ppo.learn().checkpoint_path)
    state.config["algo_kwargs"] = {"num_steps": 32, "hidden_sizes": [8]}
    state.algorithm_state.pop("normalizer")
    learner = get_algorithm_spec("ppo").load_fn(TrainConfig(**state.config), state, "cpu")
    assert learner.normalizer is None


def test_config_prints_what_a_run_would_take(capsys):
    assert main(["config", "--algo", "ppo", "--env", "Pendulum-v1", "--num-envs", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algo_kwargs"]["num_steps"] == 512


def test_show_marks_the_options_that_a_task_decides(capsys):
    assert main(["show", "sac"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("learning_rate "))
    assert "by task" in line and "0.001" in line


def test_an_environment_of_ones_own_decides_as_an_id_does(tmp_path):
    agent = PPO(
        toys.Counter, total_timesteps=64, eval_episodes=1, hidden_sizes=(8,), output_dir=tmp_path, compile=False
    )
    assert read_config(agent.learn().run_dir / "config.yaml").algo_kwargs["num_steps"] == 2048
