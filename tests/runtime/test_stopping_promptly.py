"""A signal stops a run within seconds wherever it is, and the resumed run ends as one that was never stopped: the same
tensors, and the same rows in metrics.jsonl."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time

import pytest

from rl_training import Callback
from rl_training.algorithms.dynamics import ModelFit
from rl_training.base import signals
from rl_training.base.signals import StoppedAtOnce
from rl_training.envs.film import Gif
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.runtime.evaluation import _Player
from rl_training.runtime.gail_trainer import GAILLoop
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training
from toys import Counter, rows_of, same_end


def train(config, **given):
    return get_algorithm_spec(config.algo).train(config, **given)


def facts_of(result):
    return json.loads((result.run_dir / "metadata.json").read_text())


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


class Calls:
    """Replaces a method by one that counts its calls and, at a chosen one, sends this process a signal first."""

    def __init__(self, monkeypatch, owner, name, at, number=signal.SIGTERM):
        self.count, method = 0, getattr(owner, name)

        def counted(*args, **kwargs):
            self.count += 1
            if self.count == at:
                send(number)
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


def stopped_and_resumed(config, monkeypatch, owner, name, at, *, number=signal.SIGTERM):
    """Compare a run that was never stopped with one that a signal stopped at the ``at``-th call of a method and that was
    resumed: returns the result of its first part and of its last, and the checkpoint between them."""
    straight = train(config, run_suffix="straight")
    with monkeypatch.context() as patch:
        calls = Calls(patch, owner, name, at, number)
        first = train(config, run_suffix="stopped")
    assert calls.count == at, "work went on after the signal"
    assert facts_of(first)["stop_kind"] == "signal" and facts_of(first)["step"] == first.metrics["global_step"]
    stopped = load_checkpoint(first.checkpoint_path)
    last = resume_training(first.run_dir)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)
    assert facts_of(last)["stop_kind"] == "finished"
    return first, last, stopped


@pytest.mark.parametrize("number", signals.SIGNALS)
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_an_evaluation_ends_with_its_next_step_and_is_made_by_the_resumed_run(tiny, monkeypatch, algo, number):
    config = tiny(algo, eval_interval=64, total_timesteps=128, checkpoint_interval=128, log_interval=32)
    first, last, _ = stopped_and_resumed(config, monkeypatch, _Player, "_step", 3, number=number)
    assert first.metrics["global_step"] == 64
    assert math.isnan(first.metrics["eval_return_mean"]) and first.metrics["eval_episodes"] == 0
    assert [row["step"] for row in rows_of(last.run_dir) if "eval_return_mean" in row] == [64, 128]


def test_the_last_evaluation_can_be_stopped_too(tiny, monkeypatch):
    config = tiny("dqn", eval_interval=0, total_timesteps=64)
    first, last, _ = stopped_and_resumed(config, monkeypatch, _Player, "_step", 3)
    assert first.metrics["global_step"] == 64 and last.metrics["eval_episodes"] == 1


def test_a_checkpoint_is_written_before_an_evaluation_and_the_best_after_it(tiny, monkeypatch):
    config, seen = tiny("dqn", eval_interval=64, total_timesteps=128, checkpoint_interval=128), []
    play = _Player.play

    def looked(player, episode):
        folder = next(config.output_dir.glob("*/checkpoints"))
        seen.append(sorted(path.name for path in folder.iterdir()))
        return play(player, episode)

    monkeypatch.setattr(_Player, "play", looked)
    result = train(config)
    assert seen[0] == ["step_0000000064.ckpt"]
    assert load_checkpoint(result.run_dir / "checkpoints" / "best.ckpt").metadata["step"] in (64, 128)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_an_evaluation_before_a_crash_is_made_again_and_stands_there_once(tiny, algo):
    class Crash(Callback):
        def on_eval_end(self, trainer, metrics):
            if trainer.global_step == 64:
                raise RuntimeError("power")

    config = tiny(algo, eval_interval=32, total_timesteps=128, log_interval=16)
    straight = train(config, run_suffix="straight")
    with pytest.raises(RuntimeError, match="power"):
        train(config, run_suffix="crashed", callbacks=[Crash()])
    last = resume_training(next(config.output_dir.glob("*__crashed")))
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)


def test_a_video_that_nobody_will_see_is_not_written(tiny, monkeypatch):
    """A gif is written when it is complete, which may take a minute: not if its evaluation was stopped."""
    pytest.importorskip("PIL")
    monkeypatch.setattr("rl_training.envs.film.can_write", lambda suffix: suffix == ".gif")
    kept, close = [], Gif.close
    monkeypatch.setattr(Gif, "close", lambda gif, keep=True: kept.append(keep) or close(gif, keep))
    config = tiny("dqn", eval_interval=64, total_timesteps=128, record_video=1)
    calls = Calls(monkeypatch, _Player, "_step", 3)
    result = train(config)
    assert calls.count == 3 and kept == [False] and not list(result.run_dir.glob("videos/*"))


ROLLOUTS = [
    ("ppo", {"normalize_observations": True, "normalize_rewards": True, "learning_rate_schedule": "linear"}),
    ("ppg", {"aux_frequency": 2}),
    ("gail", {"env_id": "CartPole-v1", "absorbing": True, "normalize_observations": True}),
]


@pytest.mark.parametrize(("algo", "options"), ROLLOUTS)
def test_a_rollout_is_stopped_between_two_steps_and_goes_on_there(tiny, monkeypatch, algo, options):
    """A rollout of a slow environment can take an hour."""
    from rl_training.data.rollout_buffer import RolloutBuffer

    config = tiny(algo, num_envs=2, total_timesteps=192, eval_interval=64, log_interval=32, **options)
    first, *_ = stopped_and_resumed(config, monkeypatch, RolloutBuffer, "add", 32 + 11)
    assert first.metrics["global_step"] == 64 + 22


@pytest.mark.parametrize(("algo", "options"), ROLLOUTS)
def test_learning_from_a_rollout_is_stopped_between_two_passes_and_goes_on_there(tiny, monkeypatch, algo, options):
    """Passes over images can take a minute."""
    config = tiny(algo, num_envs=2, total_timesteps=192, log_interval=32, **{**options, "update_epochs": 3})
    straight, resumed = train(config, run_suffix="straight"), []
    with monkeypatch.context() as patch:
        Calls(patch, Run, "update", 12 + 6)  # twelve minibatches for each rollout, four in a pass
        resumed.append(train(config, run_suffix="stopped"))
    assert resumed[0].metrics["update_count"] == 12 + 8 and facts_of(resumed[0])["stop_kind"] == "signal"
    resumed.append(resume_training(resumed[0].run_dir))
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(resumed[1].checkpoint_path))
    assert rows_of(resumed[1].run_dir) == rows_of(straight.run_dir)


def test_a_run_stopped_within_the_rollout_of_its_last_steps_is_not_finished(tiny, monkeypatch):
    from rl_training.data.rollout_buffer import RolloutBuffer

    first, *_ = stopped_and_resumed(tiny("ppo", total_timesteps=40), monkeypatch, RolloutBuffer, "add", 32 + 11)
    assert first.metrics["global_step"] == 43 and first.metrics["update_count"] == 4


def test_an_episode_that_is_lost_within_a_rollout_ends_there_as_truncated(tiny):
    from test_exact_resume import Unseeded

    class Stopping(Unseeded):
        steps = 0

        def step(self, action):
            Stopping.steps += 1
            if Stopping.steps == 40:
                send()
            return super().step(action)

    config = tiny("ppo", env_id="CartPole-v1", total_timesteps=96, eval_interval=0)
    first = train(config, env=lambda: Stopping(limit=50))
    assert first.metrics["global_step"] % 32
    with pytest.warns(UserWarning, match="cannot be rebuilt from its seed and actions"):
        last = resume_training(first.run_dir, env=lambda: Stopping(limit=50))
    assert last.metrics["global_step"] == 96


@pytest.mark.parametrize("algo", ["pets", "mbpo", "mopo"])
def test_a_fit_is_stopped_between_two_gradient_steps_and_goes_on_there(tiny, monkeypatch, algo):
    """An epoch over much data can take minutes."""
    from rl_training.algorithms.dynamics import EnsembleDynamics

    options = {"env_kwargs": {"max_episode_steps": 9}, "learning_rate_schedule": "linear"}
    options |= {"batch_size": 8} if algo == "pets" else {"model_batch_size": 8}
    config = tiny(algo, total_timesteps=96, eval_interval=48, log_interval=16, **options)
    *_, stopped = stopped_and_resumed(config, monkeypatch, EnsembleDynamics, "learn", 5)
    fit = stopped.buffer_state["fit"]
    assert fit["active"] and fit["position"] > 0


def test_cloning_before_the_first_rollout_is_stopped_between_two_updates(tiny, monkeypatch):
    config = tiny("gail", bc_updates=9, total_timesteps=64, normalize_observations=True)
    first, *_ = stopped_and_resumed(config, monkeypatch, GAILLoop, "_clone", 4)
    assert first.metrics["global_step"] == 0


# ---- work that does not stop


class Stuck(Counter):
    """Waits for ever at the ``at``-th step of its life, after a signal; ``again``: another one comes while it waits."""

    steps, at, again = 0, 0, False

    def step(self, action):
        Stuck.steps += 1
        if Stuck.steps == Stuck.at:
            send()
            if self.again:
                threading.Timer(0.2, send).start()
            time.sleep(600)
        return super().step(action)


def stuck_run(tiny, monkeypatch, at):
    Stuck.steps, Stuck.at = 0, at
    config = tiny("dqn", env_id="CartPole-v1", total_timesteps=96, checkpoint_interval=16, eval_interval=0)
    with pytest.raises(StoppedAtOnce) as stopped:
        train(config, env=Stuck, run_suffix="stuck")
    return config, stopped.value


def test_an_environment_that_does_not_return_ends_after_a_grace_with_the_last_checkpoint(tiny, monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 0.3)
    config, stopped = stuck_run(tiny, monkeypatch, 42)
    run = stopped.run_dir
    assert newest_checkpoint(run)[1].trainer_state["step"] == 32
    assert json.loads((run / "metadata.json").read_text())["status"] == "stopped: received SIGTERM"
    straight, last = train(config, env=Counter, run_suffix="straight"), resume_training(run, env=Counter)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))


def test_a_second_signal_ends_at_once(tiny, monkeypatch):
    monkeypatch.setattr(signals, "ECHO", 0.0)
    monkeypatch.setattr(signals, "GRACE", 600.0)
    monkeypatch.setattr(Stuck, "again", True)
    _, stopped = stuck_run(tiny, monkeypatch, 42)
    assert newest_checkpoint(stopped.run_dir)[1].trainer_state["step"] == 32


def test_what_follows_the_last_save_may_take_its_time(tiny, monkeypatch):
    """A callback that copies files, a logger that uploads."""
    monkeypatch.setattr(signals, "GRACE", 2.0)

    class Slow(Callback):
        def on_update_end(self, trainer, result):
            send()

        def on_train_end(self, trainer, result):
            time.sleep(2.5)

    result = train(tiny("dqn"), callbacks=[Slow()])
    assert facts_of(result)["stop_kind"] == "signal"


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tiny, monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 0.3)
    assert stuck_run(tiny, monkeypatch, 5)[1].run_dir is None


# ---- by the clock


def test_time_alone_brings_checkpoints_and_changes_nothing_else(tiny, monkeypatch):
    """Every ten microseconds here: within rollouts, fits and pretraining too."""
    from rl_training.runtime import saving

    saved, save = [], saving.Saver.save

    def noted(saver, loop, run, evaluator, notes):
        saved.append((run.step, loop.mid_step))
        return save(saver, loop, run, evaluator, notes)

    monkeypatch.setattr(saving, "SHARE", 0)
    for algo in ("ppo", "pets", "rlpd"):
        options = {"total_timesteps": 40, **({"env_kwargs": {"max_episode_steps": 9}} if algo == "pets" else {})}
        straight = train(tiny(algo, checkpoint_minutes=None, **options), run_suffix="straight")
        with monkeypatch.context() as patch:
            patch.setattr(saving.Saver, "save", noted)
            timed = train(tiny(algo, checkpoint_minutes=1e-7, **options), run_suffix="timed")
        same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(timed.checkpoint_path))
        assert rows_of(timed.run_dir) == rows_of(straight.run_dir)
        inside = [step for step, mid_step in saved if mid_step or not step]
        assert len(inside) > 3, f"{algo}: {saved}"
        saved.clear()


def test_a_checkpoint_made_by_the_clock_within_a_rollout_is_as_good_as_any(tiny, monkeypatch):
    from rl_training.runtime import saving

    monkeypatch.setattr(saving, "SHARE", 0)
    config = tiny("ppo", total_timesteps=96, checkpoint_minutes=1e-7, keep_checkpoints=200, log_interval=16)
    straight = train(config, run_suffix="straight")
    within = straight.run_dir / "checkpoints" / "step_0000000045.ckpt"
    again = resume_training(within, output_dir=config.output_dir / "again")
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(again.checkpoint_path))
    assert rows_of(again.run_dir) == [row for row in rows_of(straight.run_dir) if row["step"] > 45]


def test_saving_by_the_clock_takes_at_most_a_tenth_of_the_time(tmp_path):
    from rl_training import TrainConfig
    from rl_training.experiment.runs import RunContext
    from rl_training.runtime.saving import Saver

    for minutes, seconds, wait in ((5.0, 1.0, 300.0), (5.0, 60.0, 600.0), (None, 1.0, math.inf)):
        saver = Saver(RunContext("x", tmp_path), TrainConfig(algo="ppo", env_id="x", checkpoint_minutes=minutes))
        saver._began, saver._ended = 1_000.0, 1_000.0 + seconds
        assert saver.due_at == 1_000.0 + seconds + wait


def test_a_fit_that_is_told_to_pause_yields_nothing_until_its_epoch_is_over():
    import numpy as np

    from rl_training.algorithms.pets import PETS
    from rl_training.base.state import Rng
    from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel

    model = MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=(8,), num_ensembles=2)
    fit = ModelFit(
        PETS(dynamics_model=model, learning_rate=1e-3), Rng(0, "fit"), batch_size=8, holdout_ratio=0.0,
        most_updates=8, pausing=lambda: True,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    data = {"obs": rng.normal(size=(32, 2)), "actions": rng.normal(size=(32, 1)), "rewards": rng.normal(size=32)}
    yielded = list(fit.run({**data, "next_obs": data["obs"]}))
    assert [bool(metrics) for metrics in yielded] == [False, False, False, True] * 2
    assert fit.epoch_updates == 4 and fit.position == 0
