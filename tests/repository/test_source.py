"""What holds for all of the source: a name stands for one thing in the whole package, and functions are short."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from rl_training.experiment.registry import ALGORITHMS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rl_training"
LONGEST = 50  # lines of a function, its docstring included
ALIAS = re.compile(r"[A-Z][a-z]\w*")  # a module's other constants have names in capitals, and are its own
SEVERAL = {  # names that more than one module defines, and why that helps a reader
    "add": "every group of commands adds its own to the parser",
    "build": "every trainer has one, which its spec names: options and a blueprint to a learner",
    "main": "what runs where a module is started as a program: the command line, and a worker of a sweep",
}


def defined(tree):
    """The public functions, classes and type aliases that a module defines."""
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name) and ALIAS.fullmatch(t.id)]
        yield from (name for name in names if not name.startswith("_"))


def test_no_two_modules_define_the_same_public_name():
    homes = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name in defined(ast.parse(path.read_text())):
            homes[name].add(str(path.relative_to(SOURCE)))
    assert len(homes) > 500 and {"PPO", "td_target", "Tensors"} <= set(homes)
    for entry in ALGORITHMS.values():  # by the contract, the class people use and its learner share a name
        assert homes.pop(entry.public) == {f"algorithms/{entry.name}.py", "api/typed.py"}
    several = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in several.items() if name not in SEVERAL} == {}
    assert set(several) == set(SEVERAL), "a reason that is not needed any more"


def test_functions_have_at_most_fifty_lines():
    functions = 0
    found = [path for folder in ("src", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    for path in (path for path in found if ".venvs" not in path.parts):  # of peers, where somebody has installed them
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                lines = node.end_lineno - node.lineno + 1
                assert lines <= LONGEST, f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"
    assert functions > 1_000


def test_no_two_test_files_register_the_same_environment():
    """Else what a test trains in would depend on which file was imported last."""
    homes = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register") and node.args
            if called and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                homes[node.args[0].value].add(str(path.relative_to(ROOT)))
    assert len(homes) > 10
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
