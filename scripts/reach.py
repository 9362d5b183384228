"""Which tests reach which lines of a package: a map that is made once, and mended where test files have changed.

As a plugin of pytest (``-p reach``), this file records what each test reaches, how long it takes and which shared
fixtures it uses; ``Map`` starts that in a copy of the tree and answers questions. What runs inside torch.compile, or in
a process that is killed, is not seen.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from mutations import Mutant, attributes_of, mutants_of

__all__ = ["Map", "Tree", "forget"]

TOGETHER = 20  # test files in a part
SITE = """import os
if os.environ.get("REACH_CONTEXT"):  # a process that a test has started
    import atexit, coverage
    c = coverage.Coverage(data_file=os.environ["REACH_DATA"], data_suffix=True, config_file=False,
                          context=os.environ["REACH_CONTEXT"], source=[os.environ["REACH_SOURCE"]])
    c.start()
    atexit.register(lambda: (c.stop(), c.save()))
"""


class Tree:
    """A repository with a package in ``src`` and tests in ``tests``, and copies of it in ``.mutants``."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache = root.resolve(), root.resolve() / ".mutants"
        self.package = next(p.parent.name for p in sorted(self.root.glob("src/*/__init__.py")))
        self.source = self.root / "src" / self.package
        self.cache.mkdir(exist_ok=True)
        (self.cache / ".gitignore").write_text("*\n")

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True).stdout

    def copy(self, name: str) -> Path:
        """A copy of every file that git knows or would add, brought up to date."""
        place = self.cache / name
        files = {f for f in self.git("ls-files", "-co", "--exclude-standard").splitlines() if (self.root / f).is_file()}
        old = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        for file in old - files:
            (place / file).unlink()
        for file in files:
            target = place / file
            if file not in old or target.read_bytes() != (self.root / file).read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / file, target)
                forget(target)
        return place

    def environment(self, copy: Path, *paths: Path) -> dict[str, str]:
        """The environment in which a copy is tested: its own package and tests before everything else."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [*paths, copy / "src", copy / "tests"])),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.cache / "hypothesis"),
        }

    @cached_property
    def mutants(self) -> dict[str, list[Mutant]]:
        """Every mutant of every file of the package."""
        sources = {str(p.relative_to(self.source)): p.read_bytes() for p in sorted(self.source.rglob("*.py"))}
        attributes = set().union(*(attributes_of(source) for source in sources.values()))
        return {file: mutants_of(file, source, attributes) for file, source in sources.items()}

    def changed_lines(self, commit: str) -> dict[str, set[int]]:
        """Lines of the package that a commit does not have, by file."""
        lines: dict[str, set[int]] = defaultdict(set)
        file = ""
        for line in self.git("diff", "-U0", "--no-color", commit, "--", f"src/{self.package}").splitlines():
            if line.startswith("+++ "):
                file = line.removeprefix(f"+++ b/src/{self.package}/")
            elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
                first, count = int(match[1]), int(match[2] or 1)
                lines[file] |= set(range(first, first + count))
        return lines


def forget(file: Path) -> None:
    """Remove what Python has compiled of a file: a mistake may have the size and the second of the original."""
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


class Recorder:
    """The plugin of pytest."""

    def __init__(self) -> None:
        import coverage

        self.data = os.environ["REACH_DATA"]
        places = [os.environ["REACH_SOURCE"]]
        self.coverage = coverage.Coverage(data_file=self.data, data_suffix=True, config_file=False, source=places)
        self.coverage.start()
        self.failed: set[str] = set()

    def enter(self, context: str) -> None:
        os.environ["REACH_CONTEXT"] = context
        self.coverage.switch_context(context)

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.started = time.monotonic()
        definitions = [d for found in item._fixtureinfo.name2fixturedefs.values() for d in found]
        self.shared = sorted({f"fixture {d.baseid} {d.argname}" for d in definitions if d.scope != "function"})
        self.enter(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.monotonic() - self.started, 3)
        row = {"test": nodeid, "seconds": seconds, "failed": nodeid in self.failed, "shared": self.shared}
        with open(f"{self.data}.tests.{os.getpid()}", "a") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()


def pytest_configure(config: Any) -> None:
    import pytest

    class WithFixtures(Recorder):
        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any) -> Any:
            """What a fixture of a module does is done for every test that uses it, whichever came first."""
            if fixturedef.scope == "function":
                return (yield)
            before = os.environ.get("REACH_CONTEXT", "")
            self.enter(f"fixture {fixturedef.baseid} {fixturedef.argname}")
            try:
                return (yield)
            finally:
                self.enter(before)

    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(WithFixtures(), "reach-recorder")


class Map:
    """Tests by the lines they reach, in parts: each made of some test files, with the source as it was then."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.folder = tree, tree.cache / "map"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._reached: dict[tuple[str, str], dict[int, list[str]]] = {}
        self._moved: dict[tuple[str, str], dict[int, int]] = {}
        self._read()

    def _read(self) -> None:
        parts = sorted(self.folder.glob("*.json"), key=lambda p: int(p.stem))
        self.parts: dict[str, Any] = {p.stem: json.loads(p.read_text()) for p in parts}
        self.tests: dict[str, Any] = {}
        self.files: dict[str, str] = {}  # what each test file looked like
        for name, part in self.parts.items():  # a later part says everything of the files it is made of
            self.files |= part["files"]
            self.tests = {t: row for t, row in self.tests.items() if t.split("::")[0] not in part["files"]}
            self.tests |= {row["test"]: {**row, "part": name} for row in part["tests"]}
        for name in set(self.parts) - {row["part"] for row in self.tests.values()}:
            for path in (self.folder / f"{name}.json", self.folder / f"{name}.coverage"):
                path.unlink(missing_ok=True)
            del self.parts[name]

    def update(self, tests: list[str], jobs: int) -> None:
        """Add test files, or folders of them, that are not in the map as they are now; kept after every part."""
        old = [(file, digest) for file, digest in self._test_files(tests).items() if self.files.get(file) != digest]
        for i in range(0, len(old), TOGETHER):
            print(f"mapping test files {i + 1} to {min(i + TOGETHER, len(old))} of {len(old)}", flush=True)
            self._make(dict(old[i : i + TOGETHER]), jobs)

    def _test_files(self, tests: list[str]) -> dict[str, str]:
        found = []
        for place in (self.tree.root / test for test in tests):
            if not place.exists():
                sys.exit(f"{place}: no such test file or folder")
            found += [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        return {str(p.relative_to(self.tree.root)): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in found}

    def _make(self, files: dict[str, str], jobs: int) -> None:
        """Run test files and add what they reach."""
        import coverage

        began, copy = time.monotonic(), self.tree.copy("mapped")
        name = str(1 + max((int(part) for part in self.parts), default=0))
        with tempfile.TemporaryDirectory() as scratch:
            data, site = Path(scratch) / "data", Path(scratch) / "site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(SITE)
            env = self.tree.environment(copy, site, Path(__file__).parent)
            env |= {"REACH_DATA": str(data), "REACH_SOURCE": str(copy / "src" / self.tree.package)}
            words = [
                "-q",
                "--tb=line",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:cov",
                "-p",
                "reach",
                f"--basetemp={scratch}/tmp",
            ]
            words += ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else ["-n0"]
            subprocess.run([sys.executable, "-m", "pytest", *words, *sorted(files)], cwd=copy, env=env, check=False)
            rows = [json.loads(line) for path in Path(scratch).glob("data.tests.*") for line in path.open()]
            combined = coverage.Coverage(data_file=str(self.folder / f"{name}.coverage"), config_file=False)
            combined.combine([str(p) for p in Path(scratch).glob("data.*") if ".tests." not in p.name])
            combined.save()
        sources = {str(p.relative_to(self.tree.source)): p.read_text() for p in self.tree.source.rglob("*.py")}
        part = {"files": files, "tests": rows, "sources": sources, "copy": str(copy)}
        (self.folder / f"{name}.json").write_text(json.dumps(part))
        self._read()
        print(f"mapped {len(rows)} tests of {len(files)} files in {time.monotonic() - began:.0f} s")
        for row in rows:
            if row["failed"]:
                print(f"  fails in the copy, so it is left out: {row['test']}")

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that may notice a mutant, cheapest first."""
        first, last = mutant.lines
        found = set() if mutant.once else self._reaching(mutant.file, range(first, last + 1))
        if mutant.once:  # it runs at import: tests that then run anything of the file, or else of what imports it
            found = self._reaching(mutant.file, None) | self._naming(mutant.file)
            found = found or set().union(*(self._reaching(user, None) for user in self._importers(mutant.file)))
        elif not found and not any(mutant.line in self._then(part, mutant.file) for part in self.parts):
            near = [m.lines for m in self.tree.mutants[mutant.file] if m.where == mutant.where]  # the line is new
            found = self._reaching(mutant.file, {line for a, b in near for line in range(a, b + 1)})
        return sorted(found, key=lambda test: (self.tests[test]["seconds"], test))

    def _reaching(self, file: str, lines: Collection[int] | None) -> set[str]:
        """Tests that reach any of a file's lines; ``None``: any line, after the import."""
        found: set[str] = set()
        for part in self.parts:
            then, contexts = self._then(part, file), self._contexts(part, file)
            places: Iterable[int] = contexts if lines is None else [then[line] for line in lines if line in then]
            here = {context for place in places for context in contexts.get(place, [])}
            for test, row in self.tests.items():
                if row["part"] == part and not row["failed"] and (test in here or not here.isdisjoint(row["shared"])):
                    found.add(test)
        return found

    def _contexts(self, part: str, file: str) -> dict[int, list[str]]:
        """Tests and shared fixtures by line, as the file was when the part was made."""
        import coverage

        if (part, file) not in self._reached:
            data = coverage.CoverageData(str(self.folder / f"{part}.coverage"))
            data.read()
            place = Path(self.parts[part]["copy"]) / "src" / self.tree.package / file
            self._reached[part, file] = data.contexts_by_lineno(str(place))
        return self._reached[part, file]

    def _then(self, part: str, file: str) -> dict[int, int]:
        """Where today's lines of a file stood when the part was made."""
        if (part, file) not in self._moved:
            before = self.parts[part]["sources"].get(file, "").splitlines()
            now = (self.tree.source / file).read_text().splitlines()
            blocks = difflib.SequenceMatcher(None, now, before, autojunk=False).get_matching_blocks()
            self._moved[part, file] = {a + i + 1: b + i + 1 for a, b, size in blocks for i in range(size)}
        return self._moved[part, file]

    def _naming(self, file: str) -> set[str]:
        """Tests of the files that name a module: they may look at what its import has left."""
        package, _, stem = self._module(file).rpartition(".")
        words = re.compile(rf"\b{re.escape(package)}(\.{stem}\b| import .*\b{stem}\b)")
        files = {name for name in self.files if words.search((self.tree.root / name).read_text())}
        return {test for test, row in self.tests.items() if test.split("::")[0] in files and not row["failed"]}

    def _importers(self, file: str) -> list[str]:
        pattern = re.compile(rf"^\s*(from|import) {re.escape(self._module(file))}\b", re.MULTILINE)
        files = {str(p.relative_to(self.tree.source)): p.read_text() for p in self.tree.source.rglob("*.py")}
        return [name for name, text in files.items() if pattern.search(text)]

    def _module(self, file: str) -> str:
        return f"{self.tree.package}.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
