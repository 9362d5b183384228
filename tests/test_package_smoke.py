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


NAMES_ONLY = {  # these name what lies above them and import it when it is asked for: part of the public contract
    "experiment/registry.py", "experiment/default_manager.py", "algorithms/__init__.py",
}  # fmt: skip


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def import_graph() -> dict[str, set[str]]:
    """Which folder imports which, anywhere in its files."""
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE)
        if len(file.parts) == 1 or str(file) in NAMES_ONLY:
            continue
        modules: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = node.module == "rl_training"
                modules |= {f"rl_training.{alias.name}" for alias in node.names} if whole else {node.module}
        ours = {folder_of(module) for module in modules if module.partition(".")[0] == "rl_training"}
        graph.setdefault(file.parts[0], set()).update(ours - {file.parts[0], "__version__"})
    return graph


def documented_graph() -> dict[str, set[str]]:
    """The graph in docs/architecture.md: a line for each folder, below those that it imports."""
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    block = page.split("## What may import what", 1)[1].split("```")[1]
    lines = [line.split("▶") for line in block.strip().splitlines()]
    return {name.strip(): {part.strip() for part in rest[0].split(",")} if rest else set() for name, *rest in lines}


def test_the_import_graph_is_the_documented_one():
    assert import_graph() == documented_graph()


def test_folders_import_only_what_stands_above_them_in_the_documented_graph():
    seen: set[str] = set()
    for folder, imported in documented_graph().items():
        assert imported <= seen, f"{folder} imports {sorted(imported - seen)}, which closes a circle"
        seen.add(folder)


FOREIGN = {  # libraries that a folder does without
    "base": ("gymnasium",),
    "optim": ("gymnasium",),
    "models": ("gymnasium", "pathlib", "logging"),
    "algorithms": ("gymnasium", "pathlib", "logging"),
    "analysis": ("torch", "gymnasium"),
}


def imports(path: Path) -> set[str]:
    """Modules imported at the top of a file, outside ``if TYPE_CHECKING``."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", FOREIGN)
def test_folders_do_without_these_libraries(folder):
    for path in (PACKAGE / folder).rglob("*.py"):
        wrong = {m for m in imports(path) for banned in FOREIGN[folder] if m == banned or m.startswith(f"{banned}.")}
        assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_loops_and_run_know_no_algorithm():
    names = ("run", "driver", "saving", "schedules", "spec", "workflows", "evaluation", "evaluator", "experience")
    loops = [PACKAGE / "runtime" / "loops" / f"{name}.py" for name in ("base", "on_policy", "off_policy", "offline")]
    for path in [*(PACKAGE / "runtime" / f"{name}.py" for name in names), *loops, PACKAGE / "envs" / "collector.py"]:
        name, text = path.stem, path.read_text().lower()
        for algo in rl_training.experiment.registry.ALGORITHMS:
            assert f"algorithms.{algo} " not in text and f'"{algo}"' not in text, (name, algo)


def test_only_the_collector_and_the_evaluator_step_environments():
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("collector.py", "evaluation.py", "masks.py", "replay.py", "wrappers.py"):
            assert "env.step(" not in path.read_text(), path


def test_nothing_random_is_anonymous():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "action_space.sample" not in text and "import random" not in text, path
        assert "np.random.rand" not in text and "np.random.seed" not in text and "np.random.normal" not in text, path
