"""What TD3+BC's trainer adds: nothing but its options; observations are normalised by the data."""

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec


def test_observations_are_normalised_by_default_and_the_statistics_are_saved(tiny):
    result = get_algorithm_spec("td3_bc").train(tiny("td3_bc"))
    state = load_checkpoint(result.checkpoint_path).algorithm_state
    assert state["normalizer"]["inverse_std"].min() > 0 and state["normalizer"]["mean"].abs().sum() > 0
    plain = get_algorithm_spec("td3_bc").train(tiny("td3_bc", normalize_observations=False))
    assert "normalizer" not in load_checkpoint(plain.checkpoint_path).algorithm_state


def test_a_step_is_an_update(tiny):
    metrics = get_algorithm_spec("td3_bc").train(tiny("td3_bc", total_timesteps=70)).metrics
    assert metrics["global_step"] == metrics["update_count"] == metrics["gradient_steps"] == 70
