"""What MBPO's trainer adds: fits and rollouts at their times, and a buffer of what was imagined."""

import pytest

from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter


def test_what_it_reports(tiny):
    metrics = get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=100, batch_size=40)).metrics
    assert (metrics["real_batch_size"], metrics["synthetic_batch_size"]) == (2, 38)
    assert metrics["model_updates_done"] > 0 and metrics["rollout_rows"] == 50
    assert metrics["synthetic_buffer_size"] == 2 * 50  # rollouts at steps 40 and 80
    assert metrics["gradient_steps"] == 2 * 61


def test_rollouts_grow(tiny):
    metrics = (
        get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=100, rollout_schedule=[40, 80, 1, 3])).metrics
    )
    assert metrics["rollout_horizon"] == 3 and metrics["rollout_rows"] == 150


def test_an_unknown_environment_is_said_to_have_no_known_end(tiny):
    import gymnasium as gym
    import numpy as np

    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    with pytest.warns(UserWarning, match="where episodes of Counter-v9 terminate is not known"):
        get_algorithm_spec("mbpo").train(
            tiny("mbpo", total_timesteps=40, env_id="Counter-v9"), env=lambda: Counter(actions=box)
        )
