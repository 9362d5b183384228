"""What BC's trainer adds: every action space, images, the best episodes alone."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter, Pictures


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2), gym.spaces.Box(-2, 2, (2,))],
)
def test_every_kind_of_action(tiny, space):
    result = get_algorithm_spec("bc").train(tiny("bc", total_timesteps=40), env=lambda: Counter(actions=space))
    assert np.isfinite(result.metrics["loss"])


def test_images(tiny):
    config = tiny("bc", total_timesteps=4, hidden_sizes=[16], dataset_size=40, batch_size=4)
    assert np.isfinite(get_algorithm_spec("bc").train(config, env=Pictures).metrics["loss"])


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_both_losses_fall(tiny, loss):
    config = tiny("bc", total_timesteps=600, loss=loss, dataset_size=16, learning_rate=3e-3)
    result = get_algorithm_spec("bc").train(config)
    assert result.metrics["loss"] < (0.2 if loss == "mse" else 0.5)


def test_the_best_fraction_is_what_is_learned_from(tiny):
    result = get_algorithm_spec("bc").train(tiny("bc", best_fraction=0.1))
    assert result.metrics["dataset_size"] == 30


def test_normalisation_is_the_datas_and_acts_too(tiny):
    result = get_algorithm_spec("bc").train(tiny("bc", normalize_observations=True))
    from rl_training.experiment.checkpointing import load_checkpoint
    from rl_training.runtime.bc_trainer import _build_offline_dataset

    config = tiny("bc", normalize_observations=True)
    state = load_checkpoint(result.checkpoint_path).algorithm_state["normalizer"]
    obs = _build_offline_dataset(config).obs.double().numpy()
    assert np.allclose(state["mean"], obs.mean(0), atol=1e-6)
    assert np.allclose(1 / state["inverse_std"], obs.std(0) + 1e-3, atol=1e-5)


def test_passes_over_the_data_are_epochs(tiny):
    result = get_algorithm_spec("bc").train(
        tiny("bc", total_timesteps=200, dataset_size=160, batch_size=16, max_epochs=3)
    )
    assert result.metrics["epoch"] == 3 and result.metrics["global_step"] == 30
