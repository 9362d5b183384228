"""What MOPO's trainer adds: one fit before the first update, rollouts every so often, real rewards as they are."""

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec


def test_what_it_reports(tiny):
    metrics = get_algorithm_spec("mopo").train(tiny("mopo", total_timesteps=100, batch_size=40)).metrics
    assert (metrics["real_batch_size"], metrics["synthetic_batch_size"]) == (2, 38)
    assert metrics["model_updates_done"] == 40 and metrics["model_fits_cut_short"] == 1
    assert metrics["synthetic_buffer_size"] == 4 * 2 * 50  # at updates 0, 30, 60 and 90
    assert metrics["dataset_size"] == 300 and metrics["global_step"] == metrics["gradient_steps"] == 100


def test_a_penalty_lowers_imagined_rewards_and_leaves_real_ones_alone(tiny):
    spec = get_algorithm_spec("mopo")
    means = []
    for coef in (0.0, 5.0):
        result = spec.train(tiny("mopo", total_timesteps=30, penalty_coef=coef))
        packed = load_checkpoint(result.checkpoint_path).buffer_state["imagination"]["packed"]
        means.append(packed[:, 4].mean().item())
    assert means[1] < means[0] - 2
