"""The repository's own files: workflows call targets that exist, versions agree, pins are exact, and no host is named."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

import rl_training

tomllib = pytest.importorskip("tomllib", reason="comes with Python 3.11")

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")]


def make(*words: str) -> str:
    """What make prints, whatever make has started the tests and with which settings."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")}
    env = {name: value for name, value in kept.items() if name not in ("VENV", "CONSTRAINTS", "TORCH")}
    return subprocess.run(["make", *words], cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout


def read_yaml(path: Path):
    return YAML(typ="safe").load(path.read_text())


def commands(workflow) -> list[str]:
    """Every shell command of a workflow, those of a matrix included."""
    found = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    matrices = [job.get("strategy", {}).get("matrix", {}) for job in workflow["jobs"].values()]
    varied = [version["command"] for matrix in matrices for version in matrix.get("versions", [])]
    return [command for command in found if "${{" not in command] + varied


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_make_targets_that_exist(path):
    words = [command.split() for command in commands(read_yaml(path))]
    assert words and all(command[0] == "make" and command[1] in TARGETS for command in words)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_only_read_and_end_by_themselves(path):
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())


def test_the_oldest_supported_versions_are_tested():
    versions = {entry["name"]: entry for entry in _matrix()["versions"]}
    assert f">={versions['oldest']['python']}" == PROJECT["requires-python"]
    torch = next(Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    oldest = re.search(r"TORCH=([\d.]+)", versions["oldest"]["command"])[1]
    assert f">={oldest.removesuffix('.0')}" in str(torch.specifier)


def test_linux_and_macos_are_tested():
    assert {name.partition("-")[0] for name in _matrix()["os"]} == {"ubuntu", "macos"}


def _matrix():
    return read_yaml(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_issue_templates_are_forms_with_different_fields(path):
    form = read_yaml(path)
    if path.name != "config.yml":
        ids = [field["id"] for field in form["body"]]
        assert form["name"] and form["description"] and len(ids) == len(set(ids)) > 0


def test_hooks_are_local_and_call_what_make_installs():
    repositories = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system" and hook["entry"].startswith(".venv/bin/")


def test_pins_are_exact_and_name_no_host_or_build():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text and "@" not in text and "--" not in text
    for pin in PINS:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin


GROUPS = sorted((ROOT / "tests" / "third_party" / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: path.stem)
def test_environments_of_others_are_pinned_exactly_in_each_of_their_groups(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert names == sorted(set(names)), "in the order of the alphabet, each once"
    text = (path.parents[1] / "test_environments.py").read_text()
    assert f'Case("{path.stem}", ' in text.replace('Case(\n            "', 'Case("'), (
        "a group that nothing is tried with"
    )


def extras_of(name):
    """An extra, and those that it consists of."""
    parts = [Requirement(line) for line in PROJECT["optional-dependencies"][name]]
    return {name}.union(*(extras_of(extra) for part in parts if part.name == "rl_training" for extra in part.extras))


def test_every_direct_dependency_is_pinned_within_its_bounds():
    pinned = {pin.name.lower().replace("_", "-"): pin for pin in PINS}
    extras = [line for name in extras_of("dev") for line in PROJECT["optional-dependencies"][name]]
    assert set(PROJECT["optional-dependencies"]) - extras_of("dev") == {
        "robotics",
        "multiagent",
    }  # needs an older MuJoCo than the rest
    for line in [*PROJECT["dependencies"], *extras]:
        requirement = Requirement(line)
        if requirement.name != "rl_training":
            pin = pinned[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), line


def test_the_version_stands_in_three_places_and_is_one():
    assert PROJECT["version"] == rl_training.__version__ == read_yaml(ROOT / "CITATION.cff")["version"]


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert {line.split()[0] for line in make("help").splitlines()} == phony == TARGETS


@pytest.mark.parametrize("torch", ["", "2.11.0"])
def test_make_installs_the_pins_with_the_chosen_torch(torch, tmp_path):
    (tmp_path / ".created").touch()
    make(f"{tmp_path}/pins.txt", f"VENV={tmp_path}", f"TORCH={torch}")
    made, given = (path.read_text().splitlines() for path in (tmp_path / "pins.txt", ROOT / "constraints.txt"))
    assert len(made) == len(given)
    changed = [line for line, pin in zip(made, given) if line != pin]
    assert changed == ([f"torch=={torch}"] if torch else [])


def test_make_without_pins_installs_the_newest(tmp_path):
    (tmp_path / ".created").touch()
    make(f"{tmp_path}/pins.txt", f"VENV={tmp_path}", "CONSTRAINTS=")
    assert (tmp_path / "pins.txt").read_text() == ""
