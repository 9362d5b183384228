"""Environments in worker processes: the same tensors as in one process, whatever happens to the workers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import toys
from rl_training import Callback
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.nursery import nursery
from rl_training.envs.replay import episode_seed
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.saving import TrainingFailure
from rl_training.runtime.workflows import resume_training
from toys import Broken, Counter, StopAt, same_end

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="worker processes are forks"),
    pytest.mark.filterwarnings("ignore:.*no time limit"),
]
ATARI = {"max_episode_steps": 30, "wrappers": {"atari": {"noop_max": 4, "screen_size": 36, "frame_stack": 2}}}
LIVES = {**ATARI, "wrappers": {"atari": {**ATARI["wrappers"]["atari"], "terminal_on_life_loss": True}}}


def collectors(source, num_envs=3, workers=2, env_kwargs=None, limit=None, **options):
    """The same environments here and in worker processes."""
    factory = EnvFactory(source, env_kwargs or {}, watchdog=None if limit is None else Watchdog(limit))
    there = Collector(factory, num_envs, 7, backend="process", workers=workers, **options)
    return Collector(factory, num_envs, 7, **options), there


def worker_ids(collector):
    return [worker.link._worker for worker in collector._workers._workers]


def assert_alike(here, there, steps, rng, when=lambda t: None):
    """Both collectors see the same, step by step."""
    for t in range(steps):
        when(t)
        actions = here.spaces.random_actions(rng, len(here.obs))
        for a, b in zip(here.step(actions), there.step(actions)):
            assert a.dtype == b.dtype and np.array_equal(a, b)
        assert np.array_equal(here.obs, there.obs)
    assert list(here.recent) == list(there.recent) and here.metrics() == there.metrics()
    toys.assert_same(here.state_dict(), there.state_dict(), "collector")


class Colours(Counter):
    """A picture with channels last."""

    observation_space = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8)

    def _obs(self):
        return np.arange(36 * 40 * 3, dtype=np.uint8).reshape(36, 40, 3) + np.uint8(self.t)


class Lists(Counter):
    """Gives what most environments do not: a list, an array for a reward, numbers for flags."""

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return [float(self.t)], np.array([reward]), int(terminated), int(truncated), info


CASES = [
    ("CartPole-v1", {}),
    ("Pendulum-v1", {"max_episode_steps": 9}),
    ("Hopper-v5", {}),
    ("ALE/Breakout-v5", LIVES),
    (toys.Pictures, {}),
    (Colours, {}),
    (toys.DictCounter, {}),
    (toys.Reaching, {}),
    (Lists, {}),
    (lambda: Counter(actions=gym.spaces.MultiDiscrete([3, 4], start=[1, 2])), {}),
    (lambda: Counter(actions=gym.spaces.MultiBinary(3)), {}),
    (lambda: Counter(actions=gym.spaces.Discrete(3, start=2)), {}),
]


@pytest.mark.parametrize(("source", "env_kwargs"), CASES, ids=lambda case: str(case)[:20])
def test_steps_episodes_and_infos_are_those_of_one_process(source, env_kwargs):
    here, there = collectors(source, env_kwargs=env_kwargs, log_info=["distance"] if source is toys.Reaching else ())
    try:
        assert_alike(here, there, 40, np.random.default_rng(1))
    finally:
        there.close()


@pytest.mark.parametrize(("num_envs", "workers"), [(1, 4), (3, 2), (8, 3)])
def test_environments_are_shared_out_to_workers(num_envs, workers):
    here, there = collectors("CartPole-v1", num_envs, workers)
    try:
        assert len(worker_ids(there)) == min(num_envs, workers)
        assert_alike(here, there, 30, np.random.default_rng(2))
    finally:
        there.close()


def test_there_are_as_many_workers_as_processors_unless_a_number_is_given(monkeypatch):
    monkeypatch.setattr("rl_training.envs.workers.processors", lambda: 3)
    _, there = collectors("CartPole-v1", 8, None)
    assert len(there._workers._workers) == 3
    there.close()


@pytest.mark.parametrize(
    ("algo", "num_envs", "options"),
    [
        ("ppo", 1, {}),
        ("ppo", 3, {"env_id": "Pendulum-v1"}),
        ("sac", 3, {}),
        ("dqn", 8, {"n_step": 3, "prioritized": True}),
        ("dreamer", 2, {"total_timesteps": 96}),
    ],
)
def test_a_run_stopped_and_resumed_equals_one_in_one_process(tiny, algo, num_envs, options):
    total = options.pop("total_timesteps", 96 * num_envs)
    config = tiny(algo, num_envs=num_envs, total_timesteps=total, eval_interval=0, **options)
    spec = get_algorithm_spec(algo)
    here = spec.train(config, run_suffix="here")
    there = config.replace(execution_backend="process", env_workers=2)
    stopped = spec.train(there, run_suffix="there", callbacks=[StopAt(total // 2 + 3)])
    assert 0 < stopped.metrics["global_step"] < total
    resumed = resume_training(stopped.run_dir)
    same_end(load_checkpoint(here.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_a_run_may_go_on_elsewhere(tiny):
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", num_envs=2, eval_interval=0)
    here = spec.train(config, run_suffix="here")
    stopped = spec.train(config.replace(execution_backend="process"), run_suffix="there", callbacks=[StopAt(70)])
    resumed = resume_training(stopped.run_dir, set={"execution_backend": "local"})
    same_end(load_checkpoint(here.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


class Slow(toys.Reaching):
    """Takes a while for each step, so that a worker can be killed in the middle of one."""

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class Killer(Callback):
    """Kills a worker while it steps, at every ``every``-th update, and remembers whom."""

    def __init__(self, every):
        self.every, self.killed = every, []

    def on_train_start(self, trainer):
        workers = trainer._run._collector._workers
        plain = workers.step

        def step(actions):
            plain(actions)
            if trainer._run.step % self.every == 0 and trainer._run.step:
                worker = workers._workers[-1].link._worker
                time.sleep(0.01)
                os.kill(worker, signal.SIGKILL)
                self.killed.append(worker)

        workers.step = step


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_workers_killed_in_the_middle_of_steps_change_nothing(tiny, algo):
    config = tiny(algo, num_envs=4, total_timesteps=128, eval_interval=0)
    spec, killer = get_algorithm_spec(algo), Killer(40)
    here = spec.train(config, run_suffix="here", env=toys.Reaching)
    there = config.replace(execution_backend="process", env_workers=2)
    with pytest.warns(UserWarning, match="environments 2 to 3 was ended by SIGKILL: another one takes its place"):
        killed = spec.train(there, run_suffix="there", env=Slow, callbacks=[killer])
    assert len(set(killer.killed)) == 3
    same_end(load_checkpoint(here.checkpoint_path), load_checkpoint(killed.checkpoint_path))


@pytest.mark.parametrize("source", ["Pendulum-v1", "ALE/Breakout-v5", toys.Pictures, Lists])
def test_a_worker_is_repeated_wherever_it_is_killed(source):
    """Before a step, before an episode begins, twice in an episode; of Atari, games that begin with no seed too."""
    limits = LIVES if str(source).startswith("ALE") else {"max_episode_steps": 9} if source == "Pendulum-v1" else {}
    here, there = collectors(source, env_kwargs=limits)
    begin = there._workers.begin

    def killed(t):
        if t % 7 == 3:
            os.kill(worker_ids(there)[t % 2], signal.SIGKILL)

    def killed_before_it_begins(which):
        os.kill(worker_ids(there)[1], signal.SIGKILL)
        begin(which)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_alike(here, there, 30, np.random.default_rng(3), when=killed)
            there._workers.begin = killed_before_it_begins
            assert_alike(here, there, 40, np.random.default_rng(4))
        assert here.metrics()["episodes"] > 2
    finally:
        there.close()


class HangsOnce(Counter):
    """Hangs at its fifth step if the file is not there yet, and leaves it."""

    def __init__(self, mark):
        super().__init__(limit=9)
        self.mark = Path(mark)

    def step(self, action):
        if self.t == 4 and not self.mark.exists():
            self.mark.touch()
            time.sleep(600)
        return super().step(action)


def test_a_worker_that_hangs_is_repeated(tmp_path):
    mark = str(tmp_path / "mark")
    factory = EnvFactory(lambda: HangsOnce(mark), {}, watchdog=Watchdog(0.3))
    there = Collector(factory, 2, 7, backend="process", workers=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for t in range(20):
            there.step(np.zeros(2, np.int64))
            assert there.obs[:, 0].tolist() == [(t + 1) % 9] * 2
    there.close()
    assert said and all("has not answered for 0.3 seconds: another one" in str(one.message) for one in said)


def test_a_worker_that_hangs_twice_fails_with_what_led_to_it():
    class Sleepy(Counter):
        def step(self, action):
            if action == 1 and self.t == 2:
                time.sleep(600)
            return super().step(action)

    factory = EnvFactory(lambda: Sleepy(limit=9), {}, watchdog=Watchdog(0.3))
    there = Collector(factory, 3, 7, backend="process", workers=1)
    try:
        for action in (1, 0):
            there.step(np.array([0, 0, action]))
        with (
            pytest.warns(UserWarning, match="another one takes its place"),
            pytest.raises(
                EnvironmentFailure, match=r"environment 2 \(custom\): its worker .* 0.3 seconds, twice at"
            ) as e,
        ):
            there.step(np.array([0, 0, 1]))
    finally:
        there.close()
    report = e.value.incident
    assert (report["index"], report["episode"], report["actions"]) == (2, 0, [1, 0, 1])
    assert report["seed"] == episode_seed(7, 2, 0) and report["exact"]


def test_a_limit_counts_for_each_environment_of_a_worker():
    class Pausing(Counter):
        def step(self, action):
            time.sleep(0.12)
            return super().step(action)

    factory = EnvFactory(Pausing, {}, watchdog=Watchdog(0.5))
    there = Collector(factory, 6, 7, backend="process", workers=1)  # 0.72 seconds a step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there.step(np.zeros(6, np.int64))
    there.close()


class Dies(Counter):
    """Ends its process in a third step."""

    def step(self, action):
        if self.t == 2:
            os._exit(3)
        return super().step(action)


def test_a_worker_that_dies_of_its_environment_fails_the_run_with_a_report(tiny, tmp_path):
    config = tiny("dqn", num_envs=2, execution_backend="process", env_workers=2)
    with (
        pytest.warns(UserWarning, match="has ended with code 3"),
        pytest.raises(TrainingFailure, match=r"environment 0 .*: its worker process has ended with code 3, twice"),
    ):
        get_algorithm_spec("dqn").train(config, env=Dies)
    assert list(tmp_path.glob("*/environment_failure.json"))


class Forgetful(Counter):
    """Observes what nobody can repeat."""

    def _obs(self):
        return np.array([time.time_ns() % 1e6], np.float32)


def test_an_environment_that_does_not_repeat_itself_fails_when_its_worker_is_lost():
    there = Collector(EnvFactory(Forgetful, {}), 2, 7, backend="process", workers=1)
    there.step(np.zeros(2, np.int64))
    os.kill(worker_ids(there)[0], signal.SIGKILL)
    with (
        pytest.warns(UserWarning, match="another one"),
        pytest.raises(EnvironmentFailure, match="do not lead to where it was"),
    ):
        there.step(np.zeros(2, np.int64))
    there.close()


class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Broken("raises", at=3),
            "environment 0 (custom) raised KeyError: 'the simulator lost a wheel' at step",
        ),
        (lambda: Broken("nan observation", at=3), "environment 0 (custom): the observation is not finite"),
        (lambda: Broken("nan reward", at=3), "environment 0 (custom) gave the reward nan"),
    ],
)
def test_an_environment_that_fails_says_what_it_says_in_one_process(make, said):
    here, there = collectors(make)
    texts = []
    try:
        for collector in (here, there):
            for _ in range(2):
                collector.step(np.ones(3, np.int64))
            with pytest.raises(EnvironmentFailure) as failed:
                collector.step(np.ones(3, np.int64))
            texts.append((str(failed.value), failed.value.incident))
    finally:
        there.close()
    assert texts[0] == texts[1] and said in texts[0][0]


def test_an_exception_that_only_the_worker_knows_keeps_its_name_and_its_traceback():
    class Own(Counter):
        def step(self, action):
            raise OwnError("this", "that")

    there = Collector(EnvFactory(Own, {}), 1, 7, backend="process")
    with pytest.raises(EnvironmentFailure, match="raised OwnError: this and that at step 0") as failed:
        there.step(np.zeros(1, np.int64))
    there.close()
    assert 'raise OwnError("this", "that")' in str(failed.value.__cause__.__cause__)


def test_arguments_can_be_changed_and_a_lost_worker_has_the_changed_ones(monkeypatch):
    here, there = collectors("toys:Reaching-v0", 2, log_info=["distance"])
    try:
        rng = np.random.default_rng(5)
        assert_alike(here, there, 3, rng)
        for collector in (here, there):
            collector.set_env_kwargs({"limit": 8, "scale": 10.0})
        with pytest.warns(UserWarning, match="another one"):
            assert_alike(here, there, 14, rng, lambda t: os.kill(worker_ids(there)[0], 9) if t in (4, 11) else None)
        assert [episode.length for episode in here.recent] == [5, 5, 8, 8]
        again = Collector(EnvFactory("toys:Reaching-v0", {}), 2, 7, backend="process", log_info=["distance"])
        again.load_state_dict(there.state_dict())
        assert not again.lost.any() and np.array_equal(again.obs, here.obs)
        assert_alike(here, again, 10, rng)
        again.close()
    finally:
        there.close()


def test_ids_registered_only_here_reach_the_workers():
    gym.register("Only-Here-v0", entry_point=lambda: Counter(limit=4))
    there = Collector(EnvFactory("Only-Here-v0", {}), 2, 7, backend="process")
    there.step(np.zeros(2, np.int64))
    there.close()
    del gym.registry["Only-Here-v0"]


def test_what_cannot_be_sent_is_refused_in_one_line():
    made = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match=r"was given as an object.*execution_backend: process, pass a function"):
        Collector(EnvFactory(made, {}), 1, 7, backend="process")
    lock = __import__("threading").Lock()
    with pytest.raises(ValueError, match=r"cannot be sent to worker processes .* pass an id, or a function"):
        Collector(EnvFactory(lambda: (lock, gym.make("CartPole-v1"))[1], {}), 1, 7, backend="process")


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from rl_training import Callback
from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter, tiny_config
class Slow(Counter):
    steps = 0
    def step(self, action):
        self.steps += 1
        time.sleep(600 if self.steps == {hangs} else 0.01)
        return super().step(action)
class Tell(Callback):
    def on_collect_end(self, trainer, result):
        if trainer.global_step == 8:
            print(*(worker.link._worker for worker in trainer._run._collector._workers._workers), flush=True)
config = tiny_config("dqn", Path(sys.argv[1]), num_envs=2, total_timesteps=100_000, buffer_capacity=1000,
                     execution_backend="process", env_workers=2)
result = get_algorithm_spec("dqn").train(config, env=lambda: Slow(limit=9), callbacks=[Tell()])
print("stopped at", result.metrics["global_step"])
"""


def running(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def begun(tmp_path, hangs=0):
    """A script's run, once its workers step, with their ids. Nothing in the script guards it from being imported."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(toys.__file__).parent), hangs=hangs))
    words = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    return run, [int(word) for word in run.stdout.readline().split()]


def ended(pids):
    for _ in range(6_000):  # two minutes, on a machine that does other things too
        if not any(map(running, pids)):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_of_the_whole_group_saves_the_run_and_leaves_nobody(tmp_path):
    run, workers = begun(tmp_path)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: workers hear it too
    assert "stopped at" in run.communicate(timeout=300)[0]
    assert len(workers) == 2 and ended(workers)
    assert list(tmp_path.glob("*/checkpoints/step_*.ckpt"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_is_killed_leaves_nobody_not_even_a_worker_that_hangs(tmp_path):
    run, workers = begun(tmp_path, hangs=5)
    children = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == run.pid]
    run.kill()
    run.wait()
    run.stdout.close()
    assert len(workers) == 2 and children and ended([*workers, *children])


def parent_of(path):
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_closing_ends_the_workers():
    _, there = collectors("CartPole-v1")
    there.step(np.zeros(3, np.int64))
    workers = worker_ids(there)
    there.close()
    assert all(nursery().fate(worker) == "has ended with code 0" for worker in workers)


def test_the_environment_that_showed_its_spaces_is_closed_before_workers_make_theirs():
    closed = []

    class Closing(Counter):
        def close(self):
            closed.append(os.getpid())

    there = Collector(EnvFactory(Closing, {}), 2, 7, backend="process", workers=1)
    assert closed == [os.getpid()]
    there.close()
    assert closed == [os.getpid()]


def test_a_collector_that_is_dropped_ends_its_workers():
    _, there = collectors("CartPole-v1")
    there.step(np.zeros(3, np.int64))
    workers = worker_ids(there)
    del there
    gc.collect()
    assert all(nursery().fate(worker) == "has ended with code 0" for worker in workers)
