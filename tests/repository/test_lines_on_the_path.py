"""The script that counts lines between ``learn()`` and the gradient, on a package small enough to count by hand."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "lines_on_the_path.py"
FILES = {
    "api/algorithms.py": '''
class ManagedAlgorithm:
    def learn(self):
        """Two lines of code: this one is none."""
        # nor is this one
        return self._spec.train()

    def evaluate(self):
        return 0
''',
    "runtime/spec.py": """
from toy.tracking.log import write


class Spec:
    def __init__(self, build):
        self.build = build

    def train(self):
        write()

        return self.build().update()

    def state_dict(self):
        return {}
""",
    "runtime/a_trainer.py": """
from toy.algorithms.a import A
from toy.runtime.spec import Spec


def build():
    return A()


def unused():
    return 1


SPECS = {"a": Spec(build)}
""",
    "algorithms/base.py": """
from typing import overload


class Learner:
    PARTS = ("_learn",)

    @overload
    def described(self, x: int) -> int: ...

    @overload
    def described(self, x: str) -> str: ...

    def described(self, x):
        return x

    def update(self):
        return [getattr(self, part)() for part in self.PARTS]

    def _learn(self):
        raise NotImplementedError
""",
    "algorithms/a.py": """
from toy.algorithms.base import Learner


class A(Learner):
    def _learn(self):
        return loss(2)

    def forgotten(self):
        return 3


def loss(x):
    return (
        x
        * RATE
    )


RATE = 0.5
""",
    "tracking/log.py": "def write():\n    print(1)\n",
}


LONGEST = {"sac": 1373, "ppo": 1423, "dreamer": 1366}  # lines that a run calls; lower them with the path


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("lines_on_the_path", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def toy(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "toy"


def counts(walk):
    return {f"{symbol.module}.{symbol.name}": len(lines) for symbol, lines in walk.lines.items()}


def test_every_symbol_from_learn_to_the_loss_is_counted_and_nothing_else(script, toy):
    assert counts(script.path_of(script.Package(toy), "a")) == {
        "api.algorithms.ManagedAlgorithm.learn": 2,
        "runtime.a_trainer.SPECS.a": 1,
        "runtime.a_trainer.build": 2,
        "runtime.spec.Spec": 1,
        "runtime.spec.Spec.__init__": 2,
        "runtime.spec.Spec.train": 3,
        "algorithms.a.A": 1,
        "algorithms.a.A._learn": 2,  # by the string in PARTS of the base class
        "algorithms.a.loss": 5,
        "algorithms.a.RATE": 1,
        "algorithms.base.Learner": 2,  # without the overloads of a method that is not called
        "algorithms.base.Learner.update": 2,
    }


def test_what_is_followed_is_chosen(script, toy):
    walk = script.path_of(script.Package(toy), "a", not_followed=())
    assert counts(walk)["tracking.log.write"] == 2


def test_a_run_is_watched_without_what_is_not_followed_and_what_that_calls(script, toy, monkeypatch):
    monkeypatch.syspath_prepend(toy.parent)
    (toy / "tracking" / "log.py").write_text("from toy.base import text\n\ndef write():\n    text()\n")
    (toy / "base.py").write_text("def text():\n    return 1\n\n\nONE = text()\n")
    spec = importlib.import_module("toy.runtime.a_trainer").SPECS["a"]
    for name in [name for name in sys.modules if name == "toy" or name.startswith("toy.")]:
        monkeypatch.delitem(sys.modules, name)  # no other test's
    for not_followed, more in (((), {"tracking.log.write": 2, "base.text": 2}), (("tracking",), {})):
        watch = script.Watch(script.Package(toy), not_followed)
        sys.setprofile(watch)
        spec.train()
        sys.setprofile(None)
        assert counts(watch) == more | {
            "runtime.spec.Spec": 1,
            "runtime.spec.Spec.train": 3,
            "runtime.a_trainer.build": 2,
            "algorithms.base.Learner": 2,
            "algorithms.base.Learner.update": 2,
            "algorithms.a.A": 1,
            "algorithms.a.A._learn": 2,
            "algorithms.a.loss": 5,
        }


@pytest.mark.parametrize("algo", LONGEST)
def test_the_path_from_learn_to_the_gradient_grows_no_longer(script, algo):
    """In an interpreter of its own: what other tests leave behind may be called while a run is watched."""
    command = [sys.executable, str(SCRIPT), algo, "--run", "--symbols"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split()[1] for line in shown[1:]}
    assert {"api.algorithms.ManagedAlgorithm.learn", "runtime.driver.Driver.drive", "optim.flat.descend"} <= names
    assert not any(name.startswith(script.NOT_FOLLOWED) for name in names)
    lines = int(shown[0].split()[1])
    assert lines <= LONGEST[algo], f"{lines}: scripts/lines_on_the_path.py {algo} --run --symbols shows them"


def test_own_lines_are_those_of_the_algorithms_file_and_its_trainer(script, toy):
    assert script.own_lines(script.Package(toy), "a") == 12 + 7


def test_the_command_prints_counts_and_files(script, toy, capsys):
    assert script.main(["a", "--files", "--package", str(toy)]) == 0
    assert capsys.readouterr().out.split() == (
        [
            "a",
            "24",
            "lines",
            "on",
            "the",
            "path,",
            "19",
            "of",
            "its",
            "own",
            "9",
            "algorithms.a",
            "6",
            "runtime.spec",
            "4",
            "algorithms.base",
            "3",
            "runtime.a_trainer",
            "2",
            "api.algorithms",
        ]
    )


def test_the_package_itself_can_be_counted_and_an_unknown_algorithm_is_refused(script, capsys):
    assert script.main(["ppo"]) == 0
    assert "ppo " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main(["pqo"])
