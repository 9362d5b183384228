"""What MBPO's trainer adds: fits and rollouts at their times, and a buffer of what was imagined."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training import TrainConfig
from rl_training.envs import terminations
from rl_training.envs.factory import EnvFactory
from rl_training.envs.terminations import register_termination
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.loops.model_based import Imagination
from rl_training.runtime.mbpo_trainer import warm_up_steps
from rl_training.runtime.workflows import resume_training
from toys import Counter


def test_what_it_reports(tiny):
    metrics = get_algorithm_spec("mbpo").train(tiny("mbpo", total_timesteps=100, batch_size=40)).metrics
    assert (metrics["real_batch_size"], metrics["synthetic_batch_size"]) == (2, 38)
    assert metrics["model_updates_done"] > 0 and metrics["rollout_rows"] == 50
    assert metrics["synthetic_buffer_size"] == 50  # of the rollouts at steps 40 and 80, the last
    assert metrics["gradient_steps"] == 2 * 61


def test_rollouts_have_an_interval_of_their_own_which_is_by_default_the_fits(tiny, monkeypatch):
    times = []
    refresh = Imagination.refresh

    def watch(self, source, horizon):
        times.append((self._run.step, self._run.reporter.metrics().get("model_updates_done")))
        refresh(self, source, horizon)

    monkeypatch.setattr(Imagination, "refresh", watch)
    for interval, steps in ((None, [20, 40, 80]), (25, [20, 25, 50, 75]), (80, [20, 80])):
        times.clear()
        config = tiny("mbpo", total_timesteps=80, gradient_updates_per_step=1, rollout_refresh_interval=interval)
        get_algorithm_spec("mbpo").train(config)
        assert [step for step, _ in times] == steps
        fits = [20, 40, 80]
        assert [updates for _, updates in times] == [40 * sum(fit <= step for fit in fits) for step in steps]


def test_the_warm_up_is_a_tenth_of_the_run_from_500_to_5000_steps():
    assert [warm_up_steps(total) for total in (80, 3_000, 5_000, 30_000, 50_000, 10**6)] == [40, 500, 500, 3_000, 5_000, 5_000]  # fmt: skip


def test_what_was_chosen_is_said_and_stays_when_a_run_is_made_longer(tiny, capfd):
    config = tiny("mbpo", total_timesteps=60, progress="lines")
    for name in ("learning_starts", "initial_random_steps"):
        config.algo_kwargs.pop(name, None)
    first = get_algorithm_spec("mbpo").train(config)
    said = capfd.readouterr().err
    assert "learning_starts 30, initial_random_steps 30" in said and "target_entropy" not in said
    last = resume_training(first.run_dir, total_timesteps=200)
    chosen = load_checkpoint(last.checkpoint_path).config["algo_kwargs"]
    assert (chosen["learning_starts"], chosen["initial_random_steps"]) == (30, 30)
    assert last.metrics["gradient_steps"] == 2 * 171 and "chosen for this task" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("env_id", "entropy"),
    [("InvertedPendulum-v5", -0.05), ("Hopper-v4", -1.0), ("Pendulum-v1", None), ("my:Hopper-v5", None)],
)
def test_the_papers_environments_have_the_papers_target_entropy(env_id, entropy):
    config = TrainConfig(algo="mbpo", env_id=env_id)
    factory = EnvFactory("Pendulum-v1", {})
    chosen = get_algorithm_spec("mbpo").chosen(config, factory, factory.spaces())
    assert chosen.get("target_entropy") == entropy


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
