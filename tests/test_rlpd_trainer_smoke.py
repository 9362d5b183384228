"""What RLPD's trainer adds: pretraining, mixed batches, one meaning of reward for both kinds of data."""

import numpy as np
import pytest

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter


def test_what_it_reports(tiny):
    metrics = get_algorithm_spec("rlpd").train(tiny("rlpd", total_timesteps=60)).metrics
    assert metrics["pretrain_updates_done"] == 5 and metrics["offline_dataset_size"] == 300
    assert (metrics["offline_batch_size"], metrics["online_batch_size"]) == (8, 8)
    assert metrics["online_buffer_size"] == 60
    assert metrics["update_count"] == 5 + 41 and metrics["gradient_steps"] == 3 * metrics["update_count"]


def test_no_pretraining_and_half_and_half_by_default(tiny):
    options = get_algorithm_spec("rlpd").config()
    assert (options.offline_pretrain_updates, options.offline_batch_ratio) == (0, 0.5)
    assert (options.num_critics, options.target_subset, options.layer_norm) == (10, 2, True)
    assert (options.alpha, options.gradient_updates_per_step) == ("auto", 20)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_other_shares(tiny, ratio):
    metrics = get_algorithm_spec("rlpd").train(tiny("rlpd", total_timesteps=40, offline_batch_ratio=ratio)).metrics
    assert metrics["offline_batch_size"] == 16 * ratio


def test_rewards_are_changed_alike_in_the_data_and_online(tiny):
    import gymnasium as gym

    config = tiny("rlpd", total_timesteps=40, reward_scale=3.0, reward_shift=-1.0)
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    result = get_algorithm_spec("rlpd").train(config, env=lambda: Counter(actions=box))  # pays 1 each step
    state = load_checkpoint(result.checkpoint_path).buffer_state
    assert set(state["replay"]["packed"][:, 2].tolist()) == {2.0}
    assert result.metrics["episode_return"] == 3  # as the environment gave it


def test_a_fixed_temperature_is_accepted(tiny):
    assert get_algorithm_spec("rlpd").train(tiny("rlpd", alpha=0.1)).metrics["alpha"] == pytest.approx(0.1)
