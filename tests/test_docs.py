"""The documentation is true: snippets run, tables are current, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    (page, i, code)
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "code"), SNIPPETS, ids=[f"{p.name}-{i}" for p, i, _ in SNIPPETS])
def test_python_snippets_run(page, number, code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_derived_parts_are_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}run: make docs"


def test_the_benchmark_pages_hold_every_record():
    words = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make report"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page):
    from rl_training.cli import _parser

    text = page.read_text()
    commands = set(re.findall(r"^rl-training (\w+)", text, re.MULTILINE))
    known = next(action for action in _parser()._actions if action.dest == "command").choices
    assert commands <= set(known)
    targets = set(re.findall(r"^make (\w+)", text, re.MULTILINE)) | set(re.findall(r"`make (\w+)`", text))
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
