"""The installed package: entry points, typing marker, presets outside the repository, import layers."""

import ast
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import rl_training

PACKAGE = Path(rl_training.__file__).parent


def test_version_and_typing_marker():
    assert metadata.version("rl_training") == rl_training.__version__
    assert (resources.files("rl_training") / "py.typed").is_file()


@pytest.mark.parametrize("command", [["-m", "rl_training"], [str(Path(sys.executable).parent / "rl-training")]])
def test_both_entry_points_answer(command):
    words = [sys.executable, *command] if command[0] == "-m" else command
    done = subprocess.run([*words, "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"rl-training {rl_training.__version__}"


def test_presets_work_in_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert rl_training.load_config("configs/ppo/cartpole.yaml").env_id == "CartPole-v1"
    assert rl_training.load_config("ppo/cartpole").algo == "ppo"


def imports(path: Path) -> set[str]:
    """Modules imported at the top of a file, outside ``if TYPE_CHECKING``."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


LAYERS = {  # a folder, and what it may not import
    "models": (
        "gymnasium",
        "pathlib",
        "logging",
        "rl_training.algorithms",
        "rl_training.data",
        "rl_training.envs",
        "rl_training.runtime",
    ),
    "algorithms": (
        "gymnasium",
        "pathlib",
        "logging",
        "rl_training.data",
        "rl_training.envs",
        "rl_training.runtime",
        "rl_training.api",
    ),
    "data": ("gymnasium", "rl_training.envs", "rl_training.runtime", "rl_training.api"),
    "envs": ("rl_training.algorithms", "rl_training.models", "rl_training.runtime", "rl_training.api"),
    "experiment": ("rl_training.algorithms", "rl_training.models", "rl_training.api"),
    "runtime": ("rl_training.api", "rl_training.cli"),
    "analysis": (
        "torch",
        "gymnasium",
        "rl_training.algorithms",
        "rl_training.models",
        "rl_training.envs",
        "rl_training.runtime",
        "rl_training.api",
        "rl_training.cli",
    ),
}


@pytest.mark.parametrize("folder", LAYERS)
def test_layers(folder):
    for path in (PACKAGE / folder).glob("*.py"):
        wrong = {m for m in imports(path) for banned in LAYERS[folder] if m == banned or m.startswith(f"{banned}.")}
        if folder == "experiment" and path.name == "default_manager.py":
            wrong -= {m for m in wrong if m.startswith("rl_training.runtime")}
        assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_loops_and_run_know_no_algorithm():
    for name in ("loops", "run", "spec", "workflows", "collector", "evaluation"):
        text = (PACKAGE / "runtime" / f"{name}.py").read_text().lower()
        for algo in rl_training.experiment.registry.ALGORITHMS:
            assert f"algorithms.{algo} " not in text and f'"{algo}"' not in text, (name, algo)


def test_only_the_collector_and_the_evaluator_step_environments():
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("collector.py", "evaluation.py", "replay.py", "wrappers.py"):
            assert "env.step(" not in path.read_text(), path


def test_nothing_random_is_anonymous():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "action_space.sample" not in text and "import random" not in text, path
        assert "np.random.rand" not in text and "np.random.seed" not in text and "np.random.normal" not in text, path
