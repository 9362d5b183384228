"""When an environment fails or hangs, its run says how to get there again: the seed and the actions of the episode."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import incidents, watchdog
from rl_training.envs.incidents import incident
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.saving import TrainingFailure
from toys import Counter


class Weighing(gym.Env):
    """Fails when the actions of an episode, whose weights depend on its seed, have come to more than ten."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    how, weighs = "raises", True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.weight, self.sum, self.t = self.np_random.uniform(1, 2), 0.0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        self.sum += self.weight * abs(float(action[0]))
        obs = np.array([self.sum], np.float32)
        if self.sum > 10 and self.weighs:
            if self.how == "raises":
                raise KeyError("the scales broke")
            obs = np.full(1, np.nan, np.float32)
        return obs, 1.0, False, self.t >= 50, {}


def train(config, **given):
    return get_algorithm_spec(config.algo).train(config, **given)


def report_of(folder: Path) -> dict:
    (path,) = folder.glob("*/environment_failure.json")
    return json.loads(path.read_text())


def fails_again(report: dict) -> bool:
    """Whether the reported actions lead to the failure, with the last one and not before."""
    env = Weighing()
    env.weighs = False
    env.reset(seed=report["seed"])
    sums = []
    for action in report["actions"]:
        env.step(np.asarray(action))
        sums.append(env.sum)
    return sums[-1] > 10 >= sums[-2]


@pytest.mark.parametrize("how", ["raises", "is not a number"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_failure_in_training_can_be_repeated(tiny, tmp_path, monkeypatch, how, num_envs):
    monkeypatch.setattr(Weighing, "how", how)
    config = tiny("sac", env_id="Pendulum-v1", num_envs=num_envs, eval_interval=0)
    with pytest.raises(TrainingFailure, match=r"; what led to it is in .*environment_failure\.json; "):
        train(config, env=Weighing)
    report = report_of(tmp_path)
    assert report["training"] and report["exact"] and report["actions_left_out"] == 0 and report["run_seed"] == 3
    assert report["index"] < num_envs and report["error"].startswith(f"environment {report['index']} (Weighing)")
    assert fails_again(report)


def test_a_failure_in_evaluation_can_be_repeated(tiny, tmp_path):
    config = tiny("sac", env_id="Pendulum-v1", eval_interval=4, learning_starts=99)
    made = []

    def make():
        made.append(Weighing())
        made[-1].weighs = len(made) > 3  # not those of training
        return made[-1]

    with pytest.raises(TrainingFailure, match="in evaluation"):
        train(config, env=make)
    report = report_of(tmp_path)
    assert not report["training"] and report["episode"] == 0 and fails_again(report)


def test_a_report_keeps_the_last_actions_of_a_long_episode(monkeypatch):
    monkeypatch.setattr(incidents, "MOST_NUMBERS", 6)
    history = {"episode": 1, "seed": 2, "actions": [np.array([k, k]) for k in range(10)], "exact": True}
    report = incident(history, training=True)
    assert report["actions"] == [[7, 7], [8, 8], [9, 9]]
    assert report["actions_left_out"] == 7 and not report["exact"]


class Hangs(Counter):
    """Waits for ever at the seventh step of its second episode."""

    def step(self, action):
        if self.resets == 2 and self.t == 6:
            time.sleep(600)
        return super().step(action)

    def reset(self, **given):
        self.resets = getattr(self, "resets", 0) + 1
        return super().reset(**given)


def test_an_environment_that_hangs_ends_the_run_with_a_report(tiny, tmp_path):
    config = tiny("dqn", env_id="CartPole-v1", env_limit_seconds=3.0, checkpoint_interval=8)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingFailure, match=r"a step has taken longer than 3 seconds .* checkpoint is .*_0000000016"):
        train(config, env=lambda: Hangs(limit=10))
    report = report_of(tmp_path)
    assert report["episode"] == 1 and len(report["actions"]) == 7 and report["exact"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_limit_that_is_kept_changes_nothing(tiny):
    from rl_training.experiment.checkpointing import load_checkpoint
    from toys import same_end

    results = [train(tiny("dqn", env_limit_seconds=limit)) for limit in (None, 60.0)]
    same_end(*(load_checkpoint(result.checkpoint_path) for result in results))


def test_a_watchdog_gives_up_a_call_that_cannot_be_interrupted(monkeypatch):
    monkeypatch.setattr(watchdog, "GRACE", 0.05)
    dog, seen = Watchdog(0.05), []

    class Deaf(Counter):
        def step(self, action):
            while len(seen) < 2:
                time.sleep(0.01)
            return super().step(action)

    env = dog.wrap(Deaf(), training=True)
    env.reset(seed=5)
    with dog.watching(seen.append, lambda error: seen.append(dog.incident())):
        env.step(1)
    assert str(seen[0]) == "a step has taken longer than 0.05 seconds"
    assert (seen[1]["seed"], seen[1]["actions"], seen[1]["training"]) == (5, [1], True)


PROGRAM = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from toys import Counter, tiny_config
from rl_training.envs import watchdog
from rl_training.experiment.registry import get_algorithm_spec
watchdog.GRACE = 0.2
mutex, wait = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
wait(mutex)
class Deaf(Counter):
    "Waits for ever for what it holds itself, whatever signals come, at its thirtieth step."
    steps = 0
    def step(self, action):
        Deaf.steps += 1
        if Deaf.steps == 30:
            wait(mutex)
        return super().step(action)
config = tiny_config("dqn", Path(sys.argv[1]), env_limit_seconds=3.0, checkpoint_interval=16)
get_algorithm_spec("dqn").train(config, env=Deaf)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="waits for a mutex of Linux's C library")
def test_a_process_that_hangs_outside_python_is_ended(tmp_path):
    code = PROGRAM.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "a step has taken longer than 3 seconds" in done.stderr.splitlines()[-1]
    assert report_of(tmp_path)["training"]
    (facts,) = tmp_path.glob("*/metadata.json")
    assert json.loads(facts.read_text())["stop_kind"] == "failed"
