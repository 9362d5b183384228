"""The tool that writes mistakes into a copy: which mistakes it knows, what it leaves alone, and whom it believes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def mutations(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import mutations

    yield mutations
    sys.modules.pop("mutations", None)


def changes(mutations, source: str, attributes=frozenset()) -> set[str]:
    found = mutations.mutants_of("a.py", source.encode(), set(attributes))
    for mutant in found:
        compile(mutant.apply(source.encode()), "a.py", "exec")
    return {mutant.change for mutant in found}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b): return a + b", {"+ → -"}),
        ("def f(a): return -a.mean()", {"-a.mean() → a.mean()", "mean → sum"}),
        ("def f(a): return 0.99 * a", {"* → /", "0.99 → 1.98"}),
        ("def f(a): return a[..., 0]", {"0 → 1"}),
        ("def f(a): return a.amin(1)", {"amin → amax", "amin → mean", "1 → 0"}),
        ("def f(a): return a.detach() - a", {"a.detach() → a", "- → +"}),
        ("def f(a): return (a - 2).clamp(0, a)", {"(a - 2).clamp(0, a) → (a - 2)", "- → +", "2 → 3", "0 → 1", "0, a → a, 0"}),
        ("@torch.no_grad()\ndef f(x):\n    return x", set()),  # more memory, but the same numbers
        ("def f(g, a, b): return g(a, b)", {"a, b → b, a"}),
        ("def f(g, a): return g(a, gamma=a)", {", gamma=a → (nothing)"}),
        ("def f(a, n): return a[:n]", {"n → n - 1"}),
        ("def f(n): return [i for i in range(n)]", {"n → n - 1"}),
        ("def f(a):\n    a.step()", {"a.step() → pass"}),
        ("def f(self):\n    self.count += 1", {"self.count += 1 → pass", "+= → -=", "1 → 0"}),
        ("def f(self, obs):\n    self.obs = obs", {"self.obs = obs → pass"}),
        ("def f(a, b): return a and not b", {"and → or", "not b → b"}),
        ("def f(a, b): return a if b else 2", {"b → True", "b → False", "2 → 3"}),
        ("def f(a): return [x for x in a if x]", {"x → True"}),
        ("def f(n):\n    if n > 3:\n        g()", {"n > 3 → True", "n > 3 → False", "> → >=", "3 → 4", "g() → pass"}),
        ("def f(a) -> bool: return a.any()", {"a.any() → not (a.any())", "any → all"}),
        ("def f(obs, next_obs): return (obs, next_obs)", {"obs → next_obs", "next_obs → obs"}),
        ("def f(b): return b['obs'], b['next_obs']", {"'obs' → \"next_obs\"", "'next_obs' → \"obs\""}),
        ("def f(s): return s.terminated, s.truncated", {"terminated → truncated", "truncated → terminated"}),
        ("gamma: float = opt(0.99, 'discount', le=1)", {"0.99 → 1.98"}),
    ],
)  # fmt: skip
def test_a_line_has_these_mistakes(mutations, source, expected):
    assert changes(mutations, source) == expected


def test_a_target_network_is_mistaken_for_the_one_it_follows(mutations):
    found = changes(mutations, "def f(self): return self.target_model, self.model", {"target_model", "model"})
    assert found == {"target_model → model", "model → target_model"}


@pytest.mark.parametrize(
    "source",
    [
        '"""Says 1 + 1."""',
        "def f(a: 'int' = None, *b: list[1]) -> dict[0, 1]: pass",
        "def f(a): raise ValueError(a + 1)",
        "def f(a): warnings.warn(a, stacklevel=2)",
        "def f(a): return f'{a + 1}'",
        "def f(a, b): return isinstance(a, b), allclose(a, b)",
        "def f(a): return zeros(a, device=a)",
        "def f(a, eps): return a + eps",
        "__all__ = ['a', 'b']",
        "if TYPE_CHECKING:\n    a = 1",
        "def __repr__(self): return 'a' + str(1)",
    ],
)
def test_what_cannot_matter_is_left_alone(mutations, source):
    assert changes(mutations, source) == set()


def test_a_mutant_is_known_by_its_words_not_by_its_place(mutations):
    source = b"def f(a):\n    return a + 1\n"
    ids = {m.id for m in mutations.mutants_of("a.py", source, set())}
    assert ids == {m.id for m in mutations.mutants_of("a.py", b"import b\n\n\n" + source, set())}


def test_equal_mistakes_on_one_line_are_told_apart(mutations):
    found = mutations.mutants_of("a.py", b"def f(a): return a + a + a", set())
    assert [(m.change, m.nth) for m in found] == [("+ → -", 0), ("+ → -", 1)] and len({m.id for m in found}) == 2


TOY = {
    "src/toy/__init__.py": "",
    "src/toy/maths.py": """
RATE = 0.5


def followed(x, target):
    return x + RATE * (target - x)


def first(n):
    return list(range(n))


def elsewhere(x):
    return x + 1


def alone(x):
    return x * 2
""",
    "tests/test_maths.py": """
import subprocess
import sys

import pytest
from toy import maths


@pytest.fixture(scope="module")
def numbers():
    return maths.first(3)


def test_there_are_numbers(numbers):
    assert numbers


def test_which_numbers_there_are(numbers):
    assert numbers == [0, 1, 2]


def test_half_way():
    assert maths.followed(0, 2) == 1


def test_in_a_process_of_its_own():
    code = "from toy import maths; assert maths.elsewhere(1) == 2"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
""",
    "scripts/mutants_ignored.yaml": """
- {file: maths.py, in: alone, text: return x * 2, change: 2 → 3, reason: nobody calls it}
""",
}


@pytest.fixture
def toy(judged, tmp_path):
    """A copy of that repository for each test: some of them change it."""
    return shutil.copytree(judged, tmp_path / "toy", symlinks=True)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A repository of one file, whose mutants have been run once."""
    root = tmp_path_factory.mktemp("toy")
    for name, text in TOY.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    ask(root, "run")
    return root


def ask(root: Path, command: str, *words: str) -> str:
    line = [sys.executable, str(SCRIPTS / "mutants.py"), command, "--files", "*", "--root", str(root), *words]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(line, env=env, check=True, capture_output=True, text=True).stdout


def verdicts(root: Path) -> dict[str, tuple[str, str]]:
    rows = map(json.loads, (root / ".mutants" / "results.jsonl").open())
    return {f"{row['in']}: {row['change']}": (row["result"], row.get("by", "").split("::")[-1]) for row in rows}


def test_a_mutant_dies_by_a_test_that_reaches_it_at_import_in_a_shared_fixture_or_in_another_process(toy):
    assert verdicts(toy) == {
        ": 0.5 → 1.0": ("killed", "test_half_way"),
        "followed: + → -": ("killed", "test_half_way"),
        "followed: * → /": ("killed", "test_half_way"),
        "followed: - → +": ("survived", ""),
        "first: n → n - 1": ("killed", "test_which_numbers_there_are"),
        "elsewhere: + → -": ("killed", "test_in_a_process_of_its_own"),
        "elsewhere: 1 → 0": ("killed", "test_in_a_process_of_its_own"),
        "alone: * → /": ("unreached", ""),
    }
    assert (toy / "src/toy/maths.py").read_text() == TOY["src/toy/maths.py"]


def test_the_score_leaves_out_what_is_ignored_and_the_record_says_why(toy):
    printed = ask(toy, "report")
    assert "{'mutants': 8, 'killed': 6, 'survived': 1, 'unreached': 1, 'score': 75.0}" in printed
    assert "maths.py:6 survived, operator, in followed\n    return x + RATE * (target - x)\n    - → +" in printed
    ask(toy, "record", "--name", "all")
    recorded = json.loads((toy / "benchmarks/results/mutants/all.json").read_text())
    assert recorded["all"]["score"] == 75.0 and recorded["ignored"][0]["reason"] == "nobody calls it"
    assert [row["in"] for row in recorded["survivors"]] == ["followed", "alone"]


def test_what_is_known_is_not_run_again_and_a_new_test_kills_a_survivor(toy):
    assert ask(toy, "run") == "{}\n"
    with (toy / "tests/test_maths.py").open("a") as file:
        file.write("\n\ndef test_from_three_to_five():\n    assert maths.followed(3, 5) == 4\n")
    printed = ask(toy, "run", "--again")
    assert "mapping test files 1 to 1 of 1" in printed and verdicts(toy)["followed: - → +"] == (
        "killed",
        "test_from_three_to_five",
    )


def test_lines_that_differ_from_a_commit_are_judged_alone_though_the_map_is_older(toy):
    changed = TOY["src/toy/maths.py"].replace("    return list", "    n = n + 0\n    return list")
    (toy / "src/toy/maths.py").write_text(changed)
    printed = ask(toy, "list", "--since", "HEAD")
    assert [line.split(": ", 1)[1] for line in printed.splitlines()[:-1]] == ["+ → -", "0 → 1"]
    assert "killed" in ask(toy, "run", "--since", "HEAD", "--kinds", "constant")
    (toy / "src/toy/maths.py").write_text(TOY["src/toy/maths.py"])
