"""Wrappers of one's own in env_kwargs.wrappers.custom: order, errors, trust and exact resume."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import PPO
from rl_training.base import trust
from rl_training.base.options import ConfigError
from rl_training.base.trust import UntrustedCode
from rl_training.cli import main
from rl_training.envs.factory import EnvFactory
from rl_training.envs.wrappers import layers
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import config_of, resume_training
from rl_training.sweeps.plan import Job
from rl_training.sweeps.worker import run_job
from toys import tiny_config

MODULE = '''
import gymnasium as gym
import numpy as np
from pathlib import Path

Path(__file__).with_name("it_ran").touch()


class Shift(gym.ObservationWrapper):
    """Adds a number to every entry."""

    def __init__(self, env, by=1.0):
        super().__init__(env)
        self.by = by
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)

    def observation(self, observation):
        return (observation + self.by).astype(np.float32)


class Double(Shift):
    def observation(self, observation):
        return (observation * 2).astype(np.float32)


class Gusts(gym.Wrapper):
    """Remembers what happened within the episode, and draws from the environment's own generator."""

    def reset(self, **kwargs):
        self.wind = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.wind += self.np_random.normal()
        return (obs + np.float32(0.01 * self.wind)), reward - 0.1 * abs(self.wind), terminated, truncated, info


class Broken(gym.Wrapper):
    def __init__(self, env, size):
        raise KeyError("no such size")


class Forgetful(gym.Wrapper):
    def __init__(self, env):
        self.of = env


class NoWrapper:
    pass


NUMBER = 3
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The folder of a module that can be imported, and leaves a file when it is."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "own_wrappers.py").write_text(MODULE)
    (folder / "fails_at_once.py").write_text("1 / 0")
    (folder / "needs_another.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(trust, "_allowed", set())
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    yield folder
    sys.modules.pop("own_wrappers", None)


def made(*custom, env_id="CartPole-v1", **wrappers):
    env = EnvFactory(env_id, {"wrappers": {"custom": list(custom), **wrappers}}).make(training=True)
    return env, env.reset(seed=1)[0]


def test_the_first_is_innermost_and_arguments_are_its_constructors(module):
    plain = gym.make("CartPole-v1").reset(seed=1)[0]
    _, obs = made({"name": "own_wrappers:Shift", "kwargs": {"by": 3.0}}, "own_wrappers:Double")
    np.testing.assert_allclose(obs, (plain + 3) * 2, rtol=1e-6)
    _, obs = made("own_wrappers:Double", "own_wrappers:Shift")
    np.testing.assert_allclose(obs, plain * 2 + 1, rtol=1e-6)


def test_they_lie_outside_the_time_limit_and_inside_keep_and_frame_stack(module):
    env, obs = made("own_wrappers:Shift", keep=[0], frame_stack=2)
    names = [type(layer).__name__ for layer in layers(env)]
    assert names[:4] == ["FrameStack", "PartialObservation", "Shift", "TimeLimit"] and obs.shape == (2,)


def test_they_see_the_pictures_that_wrappers_make(module):
    pytest.importorskip("ale_py")
    env, _ = made("own_wrappers:Gusts", env_id="ALE/Pong-v5", atari={})
    names = [type(layer).__name__ for layer in layers(env)]
    assert names[:3] == ["Gusts", "FrameStack", "AtariPreprocessing"]


def test_wrappers_of_gymnasium_need_no_module_of_ones_own():
    _, obs = made({"name": "gymnasium.wrappers:TimeAwareObservation", "kwargs": {"normalize_time": True}})
    assert obs.shape == (5,)


def test_what_it_is_given_stays_as_it_is(module):
    kwargs = {"wrappers": {"custom": [{"name": "own_wrappers:Shift", "kwargs": {"by": [1.0] * 4}}]}}
    EnvFactory("CartPole-v1", kwargs).make(training=True).by.append(2.0)
    assert kwargs["wrappers"]["custom"][0]["kwargs"]["by"] == [1.0] * 4


def test_evaluation_can_have_other_wrappers_than_training(module):
    factory = EnvFactory("CartPole-v1", {"training": {"wrappers": {"custom": ["own_wrappers:Gusts"]}}})
    inside = {
        training: [type(layer).__name__ for layer in layers(factory.make(training=training))]
        for training in (True, False)
    }
    assert "Gusts" in inside[True] and "Gusts" not in inside[False]


@pytest.mark.parametrize(
    ("custom", "complaint"),
    [
        (
            "nowhere_at_all:Shift",
            "wrappers.custom: nowhere_at_all:Shift: there is no module 'nowhere_at_all'; looked in .*modules",
        ),
        ("own_wrappers.deeper:Shift", "there is no module 'own_wrappers.deeper'"),
        ("own_wrappers:Shfit", "wrappers.custom: own_wrappers:Shfit: the module 'own_wrappers' has no 'Shfit'"),
        ("own_wrappers:NoWrapper", "own_wrappers:NoWrapper is not a gymnasium.Wrapper but the class NoWrapper"),
        ("own_wrappers:NUMBER", "own_wrappers:NUMBER is not a gymnasium.Wrapper but int"),
        (
            {"name": "own_wrappers:Broken", "kwargs": {"size": 3}},
            "own_wrappers:Broken cannot be made: KeyError: 'no such size'",
        ),
        (
            {"name": "own_wrappers:Shift", "kwargs": {"bye": 3}},
            r"Shift cannot be made: TypeError: .*unexpected keyword argument 'bye'",
        ),
        ("own_wrappers:Forgetful", "own_wrappers:Forgetful cannot be made: AttributeError"),
        ("fails_at_once:Shift", "to import the module 'fails_at_once' failed: ZeroDivisionError: division by zero"),
        (
            "needs_another:Shift",
            "to import the module 'needs_another' failed: No module named 'not_installed_anywhere'",
        ),
        ("gymnasium.wrappers:RecordVideo", "writes files: episodes are filmed by record_video"),
    ],
)
def test_what_is_wrong_with_a_wrapper_is_one_line(module, tmp_path, custom, complaint, capsys):
    with pytest.raises(ValueError, match=complaint):
        made(custom)
    config = tmp_path / "config.yaml"
    config.write_text(f"algo: ppo\nenv_id: CartPole-v1\nenv_kwargs:\n  wrappers:\n    custom: {[custom]}\n")
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "name", ["MyWrapper", "my_module.MyWrapper", "my_module:", ":MyWrapper", "a:b/c-v0", "my module:X", "é:X"]
)
def test_a_name_is_module_and_class(name):
    with pytest.raises(
        ConfigError, match=r"env_kwargs.wrappers.custom.0.name: must be module:Class, such as my_module:MyWrapper"
    ):
        TrainConfig(algo="ppo", env_id="CartPole-v1").replace(env_kwargs={"wrappers": {"custom": [name]}}) and made(
            name
        )


def test_an_unknown_part_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"unknown option of wrappers\.custom; did you mean 'kwargs'"):
        made({"name": "a:B", "kwarg": {}})


CUSTOM = {"wrappers": {"custom": ["own_wrappers:Gusts", {"name": "own_wrappers:Shift", "kwargs": {"by": 0.5}}]}}


def test_a_run_that_is_stopped_in_the_middle_of_an_episode_resumes_exactly(module, tmp_path):
    from toys import StopAt

    def run(folder, callbacks=None):
        config = tiny_config("sac", tmp_path / folder, env_kwargs=CUSTOM, total_timesteps=90, num_envs=2)
        return get_algorithm_spec("sac").train(config, callbacks=callbacks)

    whole = run("whole")
    part = run("part", [StopAt(50)])
    assert part.metrics["global_step"] < 90
    rest = resume_training(part.run_dir)
    a, b = (load_checkpoint(result.checkpoint_path) for result in (whole, rest))
    assert_same(a.algorithm_state, b.algorithm_state)
    assert_same(a.buffer_state, b.buffer_state)


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.fixture
def run(module, tmp_path):
    """A run whose checkpoint names wrappers, seen by a process that has not imported their module."""
    config = tiny_config("ppo", tmp_path / "runs", env_kwargs=CUSTOM, total_timesteps=64)
    result = get_algorithm_spec("ppo").train(config)
    del sys.modules["own_wrappers"]
    (module / "it_ran").unlink()
    return result


def test_a_checkpoint_has_a_wrappers_module_imported_only_if_it_is_trusted(run, module):
    state = load_checkpoint(run.checkpoint_path)
    for use in (
        lambda: PPO.load(run.checkpoint_path),
        lambda: PPO.load(run.checkpoint_path, env=lambda: gym.make("CartPole-v1")),  # its wrappers are the file's still
        lambda: resume_training(run.run_dir, total_timesteps=96),
        lambda: config_of(state),
        lambda: get_algorithm_spec("ppo").load_fn(TrainConfig(**{**state.config, "env_id": "Acrobot-v1"}), state),
    ):
        with pytest.raises(UntrustedCode, match=r"names 'own_wrappers:\w+', and .* --trust own_wrappers"):
            use()
    assert not (module / "it_ran").exists() and "own_wrappers" not in sys.modules
    assert PPO.load(run.checkpoint_path, trust="own_wrappers").predict([0.0] * 4) in (0, 1)


def test_the_command_that_goes_on_names_the_modules_to_trust(module, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    lines = ["algo: ppo", "env_id: CartPole-v1", "total_timesteps: 64", "eval_episodes: 1", f"env_kwargs: {CUSTOM}"]
    config.write_text("\n".join([*lines, "algo_kwargs: {num_steps: 32, minibatch_size: 32}"]))
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path), "--set", "progress=off"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate")]
    assert line.endswith("--trust own_wrappers")
    del sys.modules["own_wrappers"]
    assert main([*line.split()[2:], "--episodes", "1"]) == 0


def test_a_sweeps_worker_resumes_the_wrappers_of_its_own_config_alone(run, module):
    config = load_checkpoint(run.checkpoint_path).config
    name, folder = run.run_dir.name, run.run_dir.parent
    assert "--trust own_wrappers" in run_job(Job(name, {**config, "env_kwargs": {}}, folder, ""))
    assert not (module / "it_ran").exists()
    assert run_job(Job(name, config, folder, "")) == ""
