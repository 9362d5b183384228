"""What IQL's trainer adds: nothing but its options."""

import pytest

from rl_training.experiment.registry import get_algorithm_spec


def test_the_expectile_orders_the_values(tiny):
    spec = get_algorithm_spec("iql")
    low, high = (
        spec.train(tiny("iql", total_timesteps=400, expectile=e, learning_rate=3e-3)).metrics for e in (0.1, 0.9)
    )
    assert high["value_mean"] > low["value_mean"]


def test_an_expectile_of_one_is_refused(tiny):
    with pytest.raises(ValueError, match=r"algo_kwargs\.expectile: should be less than 1, got 1"):
        get_algorithm_spec("iql").options(tiny("iql", expectile=1.0))
