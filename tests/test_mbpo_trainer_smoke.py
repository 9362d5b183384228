"""What MBPO's trainer adds: fits and rollouts at their times, and a buffer of what was imagined."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import terminations
from rl_training.envs.terminations import register_termination
from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter


def test_what_it_reports(tiny):
    metrics = get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=100, batch_size=40)).metrics
    assert (metrics["real_batch_size"], metrics["synthetic_batch_size"]) == (2, 38)
    assert metrics["model_updates_done"] > 0 and metrics["rollout_rows"] == 50
    assert metrics["synthetic_buffer_size"] == 50  # of the rollouts at steps 40 and 80, the last
    assert metrics["gradient_steps"] == 2 * 61


def test_rollouts_grow(tiny):
    metrics = (
        get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=100, rollout_schedule=[40, 80, 1, 3])).metrics
    )
    assert metrics["rollout_horizon"] == 3 and metrics["rollout_rows"] == 150


@pytest.mark.parametrize("algo", ["mbpo", "pets"])
def test_where_an_unknown_environment_ends_is_learned_and_said(tiny, capfd, algo):
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    for terminate, said in (
        (False, "rollouts never end: the data shows no termination"),
        (True, "a classifier, learned"),
    ):
        config = tiny(algo, total_timesteps=100, env_id="Counter-v9", progress="lines")
        get_algorithm_spec(algo).train(config, env=lambda: Counter(limit=5, terminate=terminate, actions=box))  # noqa: B023
        text = capfd.readouterr().err
        assert (
            f"where episodes of Counter-v9 terminate is not known; {said}" in text and text.count("is not known") == 1
        )


def test_a_registered_end_that_the_data_contradicts_is_not_used(tiny, capfd):
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    register_termination("Counter-v9", lambda obs, actions, next_obs: next_obs[:, 0] >= 2)
    try:
        config = tiny("mbpo", total_timesteps=60, env_id="Counter-v9", progress="lines")
        get_algorithm_spec("mbpo").train(config, env=lambda: Counter(limit=5, terminate=True, actions=box))
    finally:
        del terminations._TERMINATIONS["Counter-v9"]
    text = capfd.readouterr().err
    assert "the termination registered for Counter-v9 is wrong for" in text and "a classifier, learned" in text


def test_a_checkpoint_does_not_depend_on_what_is_registered(tiny):
    from rl_training.runtime.workflows import evaluate_checkpoint

    register_termination("Pendulum-v1", lambda obs, actions, next_obs: next_obs[:, 0] > 9)
    try:
        result = get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=40))
    finally:
        register_termination("Pendulum-v1", terminations.never)
    assert np.isfinite(evaluate_checkpoint(result.checkpoint_path)["eval_return_mean"])
