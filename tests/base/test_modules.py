"""Modules that a user names may lie in the current directory; those that a file names are not looked for there."""

from __future__ import annotations

import io
import sys

import pytest

from rl_training.base import modules, trust
from rl_training.base.modules import MissingModule, directories_added, import_named, look_here, look_in
from rl_training.cli import main
from rl_training.envs.factory import EnvFactory
from rl_training.sweeps import backends
from rl_training.sweeps.backends import _run_remote
from rl_training.sweeps.plan import Job

NAME = "module_of_the_current_directory"
MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Here-v0", entry_point=CartPoleEnv, max_episode_steps=20)
class Same(gym.Wrapper): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current directory: a module of the user's, and files with the names of installed modules."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(MODULE)
    for name in ("numpy", "tensorboard", "colorsys"):
        (folder / f"{name}.py").write_text("open('it_ran', 'w')")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
    monkeypatch.setattr(modules, "_added", [])
    monkeypatch.setattr(trust, "_allowed", set())
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    yield folder
    sys.modules.pop(NAME, None)
    assert not (folder / "it_ran").exists()


TRAIN = ["train", "--algo", "ppo", "--total-timesteps", "64", "--eval-episodes", "1", "--set", "progress=off"]
TRAIN += ["--set", "algo_kwargs.num_steps=32", "--set", "algo_kwargs.minibatch_size=32", "--output-dir", "runs"]


def trained(here, capsys):
    assert main([*TRAIN, "--env", f"{NAME}:Here-v0"]) == 0
    del sys.modules[NAME]
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate")]
    return line.split()[2:]


def test_an_environment_by_flag_is_found_here_and_the_path_is_as_before(here, capsys):
    path = list(sys.path)
    trained(here, capsys)
    assert sys.path == path


def test_a_wrapper_in_a_config_is_found_here(here, capsys):
    (here / "own.yaml").write_text(f"env_id: CartPole-v1\nenv_kwargs: {{wrappers: {{custom: ['{NAME}:Same']}}}}\n")
    words = [word for word in TRAIN if word not in ("--algo", "ppo")]
    assert main([*words, "--config", "own.yaml", "--set", "algo=ppo"]) == 0


def test_the_directory_comes_last_and_only_for_what_is_nowhere_else(here):
    look_here(["numpy.linalg", "colorsys", "gymnasium"])
    assert str(here) not in sys.path
    look_here(["nowhere_at_all"])
    assert str(here) not in sys.path
    look_here(["colorsys", f"{NAME}.sub"])
    assert sys.path[-1] == str(here) and directories_added() == [str(here)]
    import colorsys

    assert hasattr(colorsys, "rgb_to_hsv")


def test_what_a_run_names_is_not_looked_for_here_unless_the_user_names_it_too(here, capsys, monkeypatch):
    words = trained(here, capsys)
    evaluate = words[: words.index("--trust")]
    assert main([*evaluate, "--episodes", "1"]) == 2
    monkeypatch.setenv(trust.VARIABLE, NAME)  # says what may be imported, and not where from
    assert main([*evaluate, "--episodes", "1"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"there is no module '{NAME}'; looked in " in last
    assert last.endswith(f"; not in {here}, where one of this name lies: --trust {NAME} has it taken from there")
    assert NAME not in sys.modules
    assert main([*words, "--episodes", "1"]) == 0


def test_the_config_file_of_a_run_is_no_word_of_the_users(here, capsys):
    words = trained(here, capsys)
    again = ["train", "--config", f"{words[1]}/config.yaml", "--output-dir", "again"]
    assert main(again) == 2
    assert f"there is no module '{NAME}'; looked in " in capsys.readouterr().err
    assert main([*again, "--trust", NAME]) == 0


def test_a_missing_module_says_where_it_was_looked_for(here, tmp_path, monkeypatch, capsys):
    look_in([str(here)])
    with pytest.raises(MissingModule, match=f"there is no module 'nowhere_at_all'; looked in .*{here}$"):
        import_named("nowhere_at_all.deeper")
    with pytest.raises(MissingModule, match=r"there is no module 'rl_training.nothing'; looked in .*rl_training$"):
        import_named("rl_training.nothing")
    with pytest.raises(ValueError, match="cannot make the environment 'nowhere_at_all:X-v0': there is no module"):
        EnvFactory("nowhere_at_all:X-v0", {}).spaces()
    assert main([*TRAIN, "--env", "nowhere_at_all:X-v0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_random_data_of_an_environment_here(here, capsys):
    words = ["collect", "--random", "--env", f"{NAME}:Here-v0", "--steps", "5", "--output", "data.npz"]
    assert main(words) == 0 and main(["dataset", "info", "data.npz", "--env", f"{NAME}:Here-v0"]) == 0


def test_the_workers_of_a_sweep_find_it_too(here, monkeypatch):
    """They begin with the import path of the sweep's process: tests/sweeps/test_odd_sweeps.py starts one."""
    commands = []

    class Started:
        returncode = 0
        stdin = io.BytesIO()

        def __init__(self, command, **rest):
            commands.append(command)

        def poll(self):
            return self.returncode

        terminate = wait = lambda self, *timeout: 0

    monkeypatch.setattr(backends.subprocess, "Popen", Started)
    main(["sweep", *TRAIN[1:], "--env", f"{NAME}:Here-v0", "--seeds", "1"])
    [[_, _, code]] = commands
    assert str(here) in code and code.index(str(here)) > code.index("site-packages")


def test_tasks_on_other_nodes_are_told_where_to_look(here, tmp_path):
    job = Job("run", {"algo": "ppo", "env_id": f"{NAME}:Nowhere-v0"}, tmp_path / "sweep", "")
    assert f"there is no module '{NAME}'" in _run_remote(job, str(tmp_path), [])
    assert "Nowhere" in (said := _run_remote(job, str(tmp_path), [str(here)])) and "no module" not in said
