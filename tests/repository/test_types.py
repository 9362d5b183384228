"""What a type checker knows of the managed classes: right options pass, wrong names and types are refused, load gives the class."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rl_training
from rl_training.api import typed
from rl_training.api.explained import meanings
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import describe_options
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

SOURCE = Path(rl_training.__file__).parents[1]
RIGHT = """
from pathlib import Path

import gymnasium as gym
import numpy as np

from rl_training import DQN, PPO, SAC, Callback, ManagedAlgorithm


class Report(Callback):
    pass


class Again(PPO):
    pass


agent = PPO("CartPole-v1", num_envs=8, num_steps=64, hidden_sizes=(64, 64), total_timesteps=20_000, output_dir="runs")
reports = [Report()]
path: Path = agent.learn(callbacks=reports).checkpoint_path
loaded: PPO = PPO.load(Path("runs") / "ppo", device="cpu")
again: Again = Again.load("runs/again", trust=["my_envs"])
action = loaded.predict([0.0, 0.0, 0.0, 0.0])
loaded.predict(np.zeros((3, 4), np.float32), deterministic=False)
action, carried = loaded.predict([0.0], return_state=True, state=None, episode_start=[True])
SAC(lambda: gym.make("Pendulum-v1"), alpha="auto", learning_rate=3e-4, env_kwargs={"max_episode_steps": 100})
DQN("CartPole-v1", epsilon_schedule={"type": "linear", "start": 1.0, "end": 0.1}, early_stopping={"patience": 3})
score: float = agent.evaluate(num_episodes=3)["eval_return_mean"]
agents: list[ManagedAlgorithm] = [agent, loaded]
"""
WRONG = """
from rl_training import DQN, PPO, SAC

PPO("CartPole-v1", num_step=64)
SAC("Pendulum-v1", learning_rate="fast")
DQN("CartPole-v1", clip_coef=0.2)
PPO("CartPole-v1", optimizer="adan")
agent: SAC = PPO.load("run")
PPO("CartPole-v1").predict(print)
PPO("CartPole-v1").predict([0.0], mask=[True])
PPO("CartPole-v1").predict([0.0], return_state=True, episode_start=print)
SAC("Pendulum-v1", dataset_kind="npz")
"""
WRONG_LINES = [4, 5, 6, 7, 8, 9, 10, 11, 12]
SKIPPED = (
    "torch gymnasium minari onnx onnxruntime optuna ray matplotlib h5py ruamel rich jinja2 wandb safetensors imageio"
)
MYPY = f"""
[mypy]
strict = true
follow_imports = silent
ignore_missing_imports = true

[mypy-{",".join(f"{name}.*" for name in SKIPPED.split())}]
follow_imports = skip
"""  # what takes a minute to read, and has no part in what is checked here


def own_keywords(name):
    """The keywords that a class of typed.py writes itself."""
    tree = ast.parse(inspect.getsource(typed))
    kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.target.id for node in kind.body if isinstance(node, ast.AnnAssign)}


@pytest.fixture
def examples(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


def test_mypy_takes_right_options_and_refuses_wrong_ones(examples):
    (examples / "mypy.ini").write_text(MYPY)
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "right.py", "wrong.py"]
    env = {**os.environ, "MYPYPATH": str(SOURCE)}
    done = subprocess.run(words, cwd=examples, env=env, capture_output=True, text=True)
    found = re.findall(r"^(\w+)\.py:(\d+): error", done.stdout, re.MULTILINE)
    assert list(dict.fromkeys(found)) == [("wrong", str(line)) for line in WRONG_LINES], f"{done.stdout}{done.stderr}"
    assert 'did you mean "num_steps"?' in done.stdout


def test_pyright_takes_right_options_and_refuses_wrong_ones(examples):
    pytest.importorskip("pyright")
    config = {"extraPaths": [str(SOURCE)], "include": ["right.py", "wrong.py"]}
    (examples / "pyrightconfig.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(words, cwd=examples, env=env, capture_output=True, text=True)
    errors = json.loads(done.stdout)["generalDiagnostics"]
    found = [(Path(error["file"]).stem, error["range"]["start"]["line"] + 1) for error in errors]
    assert list(dict.fromkeys(found)) == [("wrong", line) for line in WRONG_LINES], done.stdout


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_keywords_are_the_options_and_the_class_says_what_each_means(algo):
    entry, options = ALGORITHMS[algo], get_algorithm_spec(algo).config
    known = set(getattr(typed, f"{entry.public}Keywords").__annotations__)
    assert known == {*options.model_fields, *TrainConfig.model_fields} - {"algo", "env_id"}
    documented = getattr(rl_training, entry.public).__doc__
    own = [name for name in options.model_fields if name not in typed.RunKeywords.__annotations__]
    assert all(f"- ``{name}``: " in documented for name in own)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_keyword_says_what_the_algorithm_does_with_it_and_by_which_default(algo):
    said = meanings("rl_training.api.typed")[f"{ALGORITHMS[algo].public}Keywords"]
    for row in describe_options(get_algorithm_spec(algo).config):
        meaning, default = said[row.name].rsplit("; default: ", 1)
        assert meaning.startswith(row.meaning.replace("null", "None")) and row.bounds in meaning
        assert default.lower() == row.default.lower().replace("null", "none")


def test_a_keyword_stands_again_only_where_it_says_something_else():
    assert "gamma" not in own_keywords("CQLKeywords") and "gamma" in meanings("rl_training.api.typed")["CQLKeywords"]
    assert {"batch_size", "hidden_sizes"} <= own_keywords("DQNKeywords")
    assert own_keywords("QRDQNKeywords") == {"num_quantiles", "kappa"}
    assert "; default: 0" in meanings("rl_training.api.typed")["PETSKeywords"]["eval_interval"]


def test_without_its_sources_a_class_still_says_what_it_is(monkeypatch):
    def missing(module):
        raise OSError("source code not available")

    monkeypatch.setattr("inspect.getsource", missing)
    meanings.cache_clear()
    try:
        assert rl_training.PPO.__doc__.startswith("PPO: clipped") and "num_steps" not in rl_training.PPO.__doc__
    finally:
        meanings.cache_clear()


def test_an_instance_says_what_its_class_says_and_a_subclass_what_it_says_itself():
    class Mine(rl_training.PPO):
        """Mine alone."""

    assert Mine.__doc__ == "Mine alone."
    assert rl_training.PPO("CartPole-v1").__doc__ == inspect.getdoc(rl_training.PPO) == rl_training.PPO.__doc__


def test_the_public_methods_of_a_managed_class_have_types_without_any():
    kind = rl_training.ManagedAlgorithm
    methods = [kind.__init__, kind.learn, kind.evaluate, kind.predict, kind.save, kind.load.__func__]
    methods += [kind.agent.fget, kind.checkpoint_path.fget]
    for method in methods:
        assert "return" in method.__annotations__
        assert not [name for name, kind in method.__annotations__.items() if re.search(r"\bAny\b", kind)], method


def test_importing_a_managed_class_loads_no_torch():
    code = "import sys; from rl_training import PPO; assert PPO.__doc__; assert not {'torch', 'gymnasium'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
