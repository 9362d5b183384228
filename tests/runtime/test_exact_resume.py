"""A run stopped anywhere and resumed ends, tensor for tensor, as if it had never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from rl_training import Callback
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.runtime.workflows import resume_training
from toys import SMOKE, Counter, StopAt, assert_same, rows_of, same_end

DISCRETE = ("CartPole-v1", "LunarLander-v3", "ALE/Breakout-v5")
CONTINUOUS = ("Pendulum-v1", "Hopper-v5")
CASES = [("ppo", env) for env in (*DISCRETE, *CONTINUOUS)] + [("dqn", env) for env in DISCRETE]
CASES += [(algo, env) for algo in ("qr_dqn", "iqn", "fqf") for env in ("CartPole-v1", "ALE/Breakout-v5")]
CASES += [("sac", env) for env in (*CONTINUOUS, "LunarLander-v3")]
CASES += [("dreamer", env) for env in ("CartPole-v1", "ALE/Breakout-v5")]
CASES += [(algo, env) for algo in ("ppg", "gail") for env in ("CartPole-v1", "Pendulum-v1")]
CASES += [(algo, "Pendulum-v1") for algo in ("bc", "td3_bc", "iql", "cql", "rlpd")]
CASES += [("bc", "ALE/Breakout-v5"), ("cql", "CartPole-v1"), ("rlpd", "Hopper-v5")]
CASES += [(algo, env) for algo in ("pets", "mbpo") for env in CONTINUOUS] + [("mopo", "Pendulum-v1")]
ATARI = {
    "max_episode_steps": 60,
    "wrappers": {"atari": {"noop_max": 4, "screen_size": 36, "frame_stack": 2, "terminal_on_life_loss": True}},
}


def settings(algo: str, env_id: str) -> dict:
    changes: dict = {"env_id": env_id}
    if env_id.startswith("ALE/"):
        changes |= {"env_kwargs": ATARI, "eval_interval": 100} | ({} if algo == "dreamer" else {"hidden_sizes": [16]})
    if env_id == "LunarLander-v3" and algo == "sac":
        changes["env_kwargs"] = {"continuous": True}
    return changes


# three emulators at once are tried with PPO and, for the value-based family, with DQN; three bodies with SAC
SLOW = [("mbpo", "Hopper-v5"), *((algo, "ALE/Breakout-v5") for algo in ("dreamer", "qr_dqn", "iqn", "fqf"))]
ALONE = ("pets",)  # plans for one environment
OFFLINE = ("bc", "td3_bc", "iql", "cql", "mopo")  # step none


@pytest.mark.parametrize(
    ("algo", "env_id", "num_envs"),
    [
        (*case, n)
        for case in CASES
        for n in (1, 3)
        if n == 1 or (case[0] not in (*ALONE, *OFFLINE) and case not in SLOW)
    ],
)
def test_stopped_twice_equals_never_stopped(tiny, algo, env_id, num_envs):
    total = 192 * num_envs
    config = tiny(algo, total_timesteps=total, num_envs=num_envs, **settings(algo, env_id))
    spec = get_algorithm_spec(algo)
    other = config.replace(algo_kwargs={**config.algo_kwargs, "eval_interval": 50}, log_interval=7)
    straight = spec.train(other if num_envs == 1 else config, run_suffix="straight")
    first = spec.train(other, run_suffix="stopped", callbacks=[StopAt(total // 4 + 5)])
    assert total > first.metrics["global_step"] > 0
    second = resume_training(first.run_dir, callbacks=[StopAt(total // 2 + 17)])
    assert total > second.metrics["global_step"] > first.metrics["global_step"]
    last = resume_training(second.checkpoint_path)
    assert last.run_dir == first.run_dir and last.metrics["global_step"] == straight.metrics["global_step"]
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert last.metrics["eval_return_mean"] == straight.metrics["eval_return_mean"]
    if num_envs == 1:  # with three, the straight run is logged and evaluated at other steps, which changes nothing
        assert rows_of(last.run_dir) == rows_of(straight.run_dir)


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        (
            "ppo",
            {
                "env_id": "Pendulum-v1",
                "normalize_observations": True,
                "normalize_rewards": True,
                "learning_rate_schedule": "linear",
            },
        ),
        (
            "ppo",
            {"clip_coef_schedule": {"type": "linear", "start": 0.3, "end": 0.1}, "target_kl": 0.01, "warmup_steps": 40},
        ),
        (
            "gail",
            {
                **{"env_id": "CartPole-v1", "absorbing": True, "gradient_penalty": 1.0, "bc_updates": 5},
                **{"num_envs": 2, "normalize_observations": True},
            },
        ),
        ("sac", {"normalize_observations": True, "alpha": 0.1, "gradient_updates_per_step": 3}),
        ("sac", {"hidden_sizes": [200, 200]}),  # wide enough for another library of matrix products
        (
            "dqn",
            {
                "normalize_observations": True,
                "double": False,
                "train_frequency": 3,
                "num_envs": 2,
                "buffer_capacity": 50,
            },
        ),
        *(
            (algo, {"prioritized": True, "n_step": 3, "noisy": True, "dueling": True, "num_envs": 2})
            for algo in ("dqn", "qr_dqn", "iqn", "fqf")
        ),
        ("iqn", {"stratified": True}),
        *(
            (
                algo,
                {
                    "env_id": "ALE/Breakout-v5",
                    "env_kwargs": ATARI,
                    "eval_interval": 100,  # every environment loads its game anew
                    "hidden_sizes": [16],
                    "prioritized": True,
                    "n_step": 3,
                    "buffer_capacity": 60,
                },
            )
            for algo in ("dqn", "qr_dqn", "iqn", "fqf")
        ),
    ],
)
def test_options_with_state_of_their_own_resume_exactly(tiny, algo, changes):
    config = tiny(algo, total_timesteps=200, **changes)
    spec = get_algorithm_spec(algo)
    straight = spec.train(config, run_suffix="straight")
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(77)])
    resumed = resume_training(stopped.run_dir)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_a_larger_total_continues_from_the_same_state(tiny):
    spec = get_algorithm_spec("dqn")
    long = spec.train(
        tiny("dqn", total_timesteps=200, epsilon_schedule={"type": "constant", "start": 0.1}), run_suffix="long"
    )
    short = spec.train(
        tiny("dqn", total_timesteps=100, epsilon_schedule={"type": "constant", "start": 0.1}), run_suffix="short"
    )
    longer = resume_training(short.checkpoint_path, total_timesteps=200)
    a, b = load_checkpoint(long.checkpoint_path), load_checkpoint(longer.checkpoint_path)
    assert_same(a.algorithm_state, b.algorithm_state)


def test_early_stopping_remembers_its_patience(tiny):
    early = {"patience": 3, "min_delta": 1e9}
    config = tiny("ppo", total_timesteps=640, eval_interval=64, early_stopping=early)
    spec = get_algorithm_spec("ppo")
    straight = spec.train(config, run_suffix="straight")
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(96)])
    resumed = resume_training(stopped.run_dir)
    assert straight.metrics["global_step"] < 640
    assert resumed.metrics["global_step"] == straight.metrics["global_step"]


class Unseeded(Counter):
    """Starts somewhere else every time, whatever the seed."""

    world = 0

    def reset(self, *, seed=None, options=None):
        Unseeded.world += 1
        self.start = Unseeded.world
        return super().reset(seed=seed, options=options)

    def _obs(self):
        return np.array([self.t + 100 * self.start], np.float32)


def test_an_environment_that_cannot_be_rebuilt_is_named_and_goes_on(tiny):
    spec = get_algorithm_spec("dqn")
    stopped = spec.train(tiny("dqn", total_timesteps=100), env=lambda: Unseeded(limit=50), callbacks=[StopAt(40)])
    with pytest.warns(UserWarning, match="cannot be rebuilt from its seed and actions"):
        result = resume_training(stopped.run_dir, env=lambda: Unseeded(limit=50))
    assert result.metrics["global_step"] == 100


PROGRAM = '''
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import conftest
from toys import tiny_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
folder = Path(sys.argv[1])

def strike(number, after, delay):
    """Send this process a signal some time after it has saved a checkpoint beyond a step. From within, so that a busy machine
    cannot make it come too late."""
    saved = []
    while not saved or max(saved) <= after:
        time.sleep(0.002)
        saved = [int(p.name[5:15]) for p in folder.glob("*__killed/checkpoints/step_??????????.ckpt")]
    time.sleep(delay)
    os.kill(os.getpid(), number)

if len(sys.argv) > 2:
    given = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    threading.Thread(target=strike, args=given, daemon=True).start()
runs = list(folder.glob("*__killed"))
if runs and any(runs[0].glob("checkpoints/step_*")):
    resume_training(runs[0])
else:
    import shutil
    for run in runs: shutil.rmtree(run)
    config = tiny_config({algo!r}, folder, total_timesteps={total}, checkpoint_interval=64, {extra})
    get_algorithm_spec({algo!r}).train(config, run_suffix="killed")
print("done")
'''


def program(algo: str, total: int, extra: str = "") -> str:
    return PROGRAM.format(tests=os.path.dirname(os.path.dirname(__file__)), algo=algo, total=total, extra=extra)


def run_program(folder, code, *strike) -> tuple[int, str]:
    """Exit code and complaints of the program; ``strike``: a signal, the step after which it comes, and seconds more."""
    words = [sys.executable, "-c", code, str(folder), *map(str, strike)]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_killed_at_ten_random_moments_it_reaches_the_same_end(tiny, tmp_path):
    """kill -9 in the middle of whatever it does, saving included: every 64 steps here."""
    total = 6_000
    straight = get_algorithm_spec("dqn").train(
        tiny("dqn", total_timesteps=total, checkpoint_interval=64), run_suffix="straight"
    )
    rng, kills, reached = random.Random(0), 0, 0
    while True:
        strike = (int(signal.SIGKILL), reached, rng.uniform(0, 0.08)) if kills < 10 else ()
        code, err = run_program(tmp_path, program("dqn", total), *strike)
        saved = [int(p.name[5:15]) for p in tmp_path.glob("*__killed/checkpoints/step_??????????.ckpt")]
        reached = max(saved, default=0)
        if code == 0:
            break
        assert code == -signal.SIGKILL, err
        kills += 1
    assert kills == 10
    run = next(tmp_path.glob("*__killed"))
    _, state, problems = newest_checkpoint(run)
    assert not problems and not list(run.glob("checkpoints/.*"))
    same_end(load_checkpoint(straight.checkpoint_path), state)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_goes_on_from_there(tiny, tmp_path, number):
    total = 6_000
    straight = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=total), run_suffix="straight")
    code, err = run_program(tmp_path, program("dqn", total), int(number), 0, 0.0)
    assert code == 0, err
    run = next(tmp_path.glob("*__killed"))
    _, stopped, _ = newest_checkpoint(run)
    assert 0 < stopped.trainer_state["step"] < total
    result = resume_training(run)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(result.checkpoint_path))


def test_metrics_after_the_checkpoint_are_written_again_not_twice(tiny):
    spec = get_algorithm_spec("ppo")
    straight = spec.train(tiny("ppo", total_timesteps=256, log_interval=32), run_suffix="straight")
    stopped = spec.train(
        tiny("ppo", total_timesteps=256, log_interval=32), run_suffix="stopped", callbacks=[StopAt(100)]
    )
    with open(stopped.run_dir / "metrics.jsonl", "a") as file:  # what a killed run may leave behind
        file.write(json.dumps({"step": 200, "loss": 1.0}) + "\n" + '{"step": 2')
    resume_training(stopped.run_dir)
    assert rows_of(stopped.run_dir) == rows_of(straight.run_dir)


def test_every_algorithm_is_covered():
    from rl_training.experiment.registry import ALGORITHMS

    assert {algo for algo, _ in CASES} == set(ALGORITHMS) == set(SMOKE)
    assert all(env.startswith("ALE/") or gym.spec(env) for _, env in CASES)


def test_a_run_stopped_while_it_pretrains_goes_on_there(tiny):
    class StopInside(Callback):
        def on_update_end(self, trainer, result):
            if trainer.update_count == 7:
                trainer.request_stop("a test")

    spec = get_algorithm_spec("rlpd")
    config = tiny("rlpd", total_timesteps=60, offline_pretrain_updates=20)
    straight = spec.train(config, run_suffix="straight")
    first = spec.train(config, run_suffix="stopped", callbacks=[StopInside()])
    assert first.metrics["global_step"] == 0 and first.metrics["pretrain_updates_done"] == 7
    last = resume_training(first.run_dir)
    assert last.metrics["pretrain_updates_done"] == 20
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))


@pytest.mark.parametrize("algo", ["pets", "mbpo", "mopo"])
def test_a_run_stopped_in_the_middle_of_a_fit_goes_on_there(tiny, algo, monkeypatch):
    from rl_training.runtime.run import Run

    spec = get_algorithm_spec(algo)
    config = tiny(algo, total_timesteps=90)
    straight = spec.train(config, run_suffix="straight")
    show, inside = Run.show_stage, []

    def stop(self, text, active):
        show(self, text, active)
        if active and len(inside) < 2:
            inside.append(text)
            if len(inside) == 2:
                self.trainer.request_stop("a test")

    monkeypatch.setattr(Run, "show_stage", stop)
    first = spec.train(config, run_suffix="stopped")
    assert load_checkpoint(first.checkpoint_path).buffer_state["fit"]["active"]
    monkeypatch.setattr(Run, "show_stage", show)
    last = resume_training(first.run_dir)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))


@pytest.mark.parametrize("budget", [{"max_updates": 5}, {"max_epochs": 2}])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_spent_budget_stays_spent_on_resume(tiny, algo, budget):
    result = get_algorithm_spec(algo).train(tiny(algo, total_timesteps=400, **budget))
    again = resume_training(result.run_dir)
    for name in ("update_count", "global_step", "epoch"):
        assert again.metrics[name] == result.metrics[name]


def test_resuming_from_an_older_checkpoint_drops_the_abandoned_future(tiny):
    class Stop(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 64:
                trainer.request_stop("test")

    result = get_algorithm_spec("ppo").train(
        tiny("ppo", total_timesteps=128, checkpoint_interval=32, keep_checkpoints=9)
    )
    resume_training(result.run_dir / "checkpoints" / "step_0000000032.ckpt", callbacks=[Stop()])
    assert newest_checkpoint(result.run_dir)[0].name == "step_0000000064.ckpt"
