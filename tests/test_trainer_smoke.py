"""What PPO's trainer adds: its options reach the learner, and schedules move them."""

import json

import pytest

from rl_training.experiment.registry import get_algorithm_spec
from toys import ImageEnv


def logged(result, name):
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def test_trains_in_whole_rollouts(tiny):
    result = get_algorithm_spec("ppo").train(tiny("ppo", total_timesteps=100, num_envs=2))
    assert result.metrics["global_step"] == 128  # two rollouts of 32 steps of 2 environments
    assert result.metrics["gradient_steps"] == 2 * 2 * 4


def test_learning_rate_clip_and_entropy_follow_their_schedules(tiny):
    schedules = {"learning_rate_schedule": "linear", "learning_rate": 1e-3}
    schedules |= {"clip_coef_schedule": {"type": "linear", "start": 0.4, "end": 0.0}}
    schedules |= {"ent_coef_schedule": {"type": "cosine", "start": 0.1, "end": 0.0}}
    result = get_algorithm_spec("ppo").train(tiny("ppo", total_timesteps=128, log_interval=32, **schedules))
    steps = [0, 32, 64, 96]  # a rollout's updates use the values at its start
    assert logged(result, "lr_scale") == pytest.approx([1 - s / 127 for s in steps])
    assert logged(result, "learning_rate") == pytest.approx([1e-3 * (1 - s / 127) for s in steps])
    assert logged(result, "clip_coef") == pytest.approx([0.4 * (1 - s / 127) for s in steps])
    assert logged(result, "ent_coef")[0] == pytest.approx(0.1)


def test_a_small_target_kl_ends_the_passes_early(tiny):
    spec = get_algorithm_spec("ppo")
    free = spec.train(tiny("ppo", total_timesteps=64, update_epochs=5, learning_rate=0.05))
    held = spec.train(tiny("ppo", total_timesteps=64, update_epochs=5, learning_rate=0.05, target_kl=1e-6))
    assert held.metrics["gradient_steps"] < free.metrics["gradient_steps"]


def test_normalised_observations_travel_with_the_agent(tiny):
    from rl_training import PPO

    agent = PPO(tiny("ppo", env_id="Pendulum-v1", normalize_observations=True, normalize_rewards=True))
    agent.learn()
    normalizer = agent.agent.normalizer
    assert float(normalizer.count) == 128 and not normalizer.training
    assert agent.evaluate()["eval_return_mean"] == agent.evaluate()["eval_return_mean"]


def test_images_are_not_normalised_by_statistics(tiny):
    with pytest.raises(ValueError, match="normalize_observations: images are scaled by their range"):
        get_algorithm_spec("ppo").train(tiny("ppo", normalize_observations=True), env=ImageEnv)
