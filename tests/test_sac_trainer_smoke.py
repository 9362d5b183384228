"""What SAC's trainer adds: random warm-up, updates per step, a fixed or tuned temperature."""

import numpy as np
import pytest

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec


def test_the_first_actions_are_uniformly_random(tiny):
    result = get_algorithm_spec("sac").train(
        tiny("sac", total_timesteps=400, initial_random_steps=400, learning_starts=400)
    )
    actions = load_checkpoint(result.checkpoint_path).buffer_state["replay"]["packed"][:, 3].numpy()
    assert np.abs(actions).max() <= 1 and actions.std() == pytest.approx(1 / np.sqrt(3), abs=0.04)


def test_several_updates_per_step(tiny):
    result = get_algorithm_spec("sac").train(
        tiny("sac", total_timesteps=50, learning_starts=20, gradient_updates_per_step=4)
    )
    assert result.metrics["gradient_steps"] == 31 * 4


def test_the_temperature_is_tuned_or_fixed(tiny):
    spec = get_algorithm_spec("sac")
    assert spec.train(tiny("sac", alpha=0.25)).metrics["alpha"] == pytest.approx(0.25)
    assert spec.train(tiny("sac", alpha="auto")).metrics["alpha"] != 1.0
    with pytest.raises(ValueError, match=r"algo_kwargs\.alpha: must be 'auto' or at least 0, got -1"):
        spec.options(tiny("sac", alpha=-1.0))


def test_dimensions_without_bounds_are_mentioned(tiny):
    import gymnasium as gym

    from toys import Counter

    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.warns(UserWarning, match="no bounds in some dimensions"):
        get_algorithm_spec("sac").train(tiny("sac", total_timesteps=40), env=lambda: Counter(actions=space))
