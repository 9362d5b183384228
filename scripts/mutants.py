"""Mutation testing: write mistakes into a copy of the package, one at a time, and see whether some test notices.

    python scripts/mutants.py map                      which tests reach which lines (the whole suite, once: minutes)
    python scripts/mutants.py run --sample 600         600 mistakes over all rooms; goes on where it was interrupted
    python scripts/mutants.py run --since main         mistakes on the lines that differ from a commit
    python scripts/mutants.py run --files 'algorithms/sac.py' --tests tests/test_sac_update.py tests/oracles
    python scripts/mutants.py run --again              once more those that survived, after a test was added
    python scripts/mutants.py report                   the score by room, and every survivor as a line
    python scripts/mutants.py record NAME              the same as benchmarks/results/mutants/NAME.json

A mutant is killed when a test fails with it. Only tests that reach its line are run: those that killed its neighbours
first, then the cheapest; all of them before it is said to survive ("unsettled": not all, with --quick or --tests). A server that has loaded the libraries, and nothing
of the package, forks a process for each. Lines that run while a module is imported are reached by every test that runs
anything of the module. What runs inside torch.compile, or in a process that is killed, is not seen by the map.

Everything is kept in ``.mutants/`` of the tree: copies, map, results. Mutants that change nothing are listed with the
reason in scripts/mutants_ignored.yaml. A test file that has changed since the map was made is mapped again by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import importlib
import json
import os
import platform
import py_compile
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from queue import Empty, Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from mutations import Mutant, attributes_of, mutants_of

ROOMS = {  # what is judged: files of the package; the first that fits
    "kernels": ["models/kernels/*"],
    "models": ["models/*"],
    "terminations": ["envs/terminations.py", "algorithms/terminations.py"],
    "algorithms": ["algorithms/*"],
    "optim": ["optim/*"],
    "data": ["data/*"],
    "wrappers": ["envs/wrappers.py", "envs/catch.py"],
    "collector": ["envs/collector.py", "envs/factory.py", "envs/spaces.py", "envs/replay.py", "envs/remote.py"],
    "evaluation": ["runtime/evaluation.py", "runtime/evaluator.py"],
    "schedules": ["runtime/schedules.py", "runtime/controls.py", "runtime/clock.py", "runtime/counters.py"],
    "loops": ["runtime/loops/*", "runtime/*_trainer.py", "runtime/absorbing_states.py", "runtime/expert_data.py",
              "runtime/critic_options.py", "runtime/experience.py", "runtime/run.py"],
    "base": ["base/returns.py", "base/moments.py", "base/metrics.py", "base/batches.py"],
}  # fmt: skip
FIRST, SECOND = 25, 60.0  # a mutant meets this many tests; then all within so many seconds; then all
LIBRARIES = (  # what the server loads before it forks
    "numpy", "torch", "torch.distributions", "torch._dynamo", "gymnasium", "pydantic", "ruamel.yaml", "unittest.mock",
    "safetensors.torch", "hypothesis", "hypothesis.strategies", "hypothesis.extra.numpy", "pytest", "pytest_timeout",
)  # fmt: skip
OPTIONS = ["-q", "-x", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]


# the tree and its copies ----------------------------------------------------------------------------------------------


class Tree:
    """The repository under test, with a package in ``src`` and tests in ``tests``."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache = root.resolve(), root.resolve() / ".mutants"
        self.package = next(p.parent.name for p in sorted(self.root.glob("src/*/__init__.py")))
        self.source = self.root / "src" / self.package
        self.results = self.cache / "results.jsonl"

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True).stdout

    def copy(self, number: int) -> Path:
        """A copy of every file that git knows or would add, brought up to date; the mistakes are written there."""
        place = self.cache / f"copy{number}"
        files = {f for f in self.git("ls-files", "-co", "--exclude-standard").splitlines() if (self.root / f).is_file()}
        old = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        for file in old - files:
            (place / file).unlink()
        for file in files:
            content, target = (self.root / file).read_bytes(), place / file
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / file, target)
                _forget(target)
        return place

    def environment(self, copy: Path, *paths: Path) -> dict[str, str]:
        """The environment in which a copy is tested: its own package and tests before everything else."""
        places = [*paths, copy / "src", copy / "tests"]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
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


def _forget(file: Path) -> None:
    """Remove what Python has compiled of a file: a mistake may have the size and the second of the original."""
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def room_of(file: str) -> str:
    return next((room for room, patterns in ROOMS.items() if any(fnmatch(file, p) for p in patterns)), "elsewhere")


# the map: which tests reach which lines -------------------------------------------------------------------------------

SITE = """import os
if os.environ.get("MUTANTS_CONTEXT"):  # a process that a test has started
    import atexit, coverage
    c = coverage.Coverage(data_file=os.environ["MUTANTS_DATA"], data_suffix=True, config_file=False,
                          context=os.environ["MUTANTS_CONTEXT"], source=[os.environ["MUTANTS_SOURCE"]])
    c.start()
    atexit.register(lambda: (c.stop(), c.save()))
"""


class Recorder:
    """A pytest plugin that records what each test reaches, how long it takes, and which shared fixtures it uses."""

    def __init__(self) -> None:
        import coverage

        self.data = os.environ["MUTANTS_DATA"]
        source = os.environ["MUTANTS_SOURCE"]
        self.coverage = coverage.Coverage(data_file=self.data, data_suffix=True, config_file=False, source=[source])
        self.coverage.start()
        self.failed: set[str] = set()
        self.shared: dict[str, set[str]] = defaultdict(set)

    def enter(self, context: str) -> None:
        os.environ["MUTANTS_CONTEXT"] = context
        self.coverage.switch_context(context)

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        self.started = time.monotonic()
        self.enter(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        row = {
            "test": nodeid,
            "seconds": round(time.monotonic() - self.started, 3),
            "failed": nodeid in self.failed,
            "shared": sorted(self.shared[nodeid]),
        }
        with open(f"{self.data}.tests.{os.getpid()}", "a") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()


def pytest_configure(config: Any) -> None:
    """This file is a plugin of pytest while the map is made."""
    if "MUTANTS_DATA" not in os.environ or (
        config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    ):
        return
    import pytest

    class WithFixtures(Recorder):
        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
            """What a fixture of a module does is done for every test that uses it, whichever came first."""
            if fixturedef.scope == "function":
                return (yield)
            before = os.environ.get("MUTANTS_CONTEXT", "")
            self.enter(f"fixture {fixturedef.baseid} {fixturedef.argname}")
            try:
                return (yield)
            finally:
                self.enter(before)

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_call(self, item: Any) -> None:
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                self.shared[item.nodeid] |= {
                    f"fixture {d.baseid} {d.argname}" for d in definitions if d.scope != "function"
                }

    config.pluginmanager.register(WithFixtures(), "mutants-recorder")


class Map:
    """Tests by the lines they reach, in parts: each made of some test files, with the source as it was then."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.folder = tree, tree.cache / "map"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._reached: dict[tuple[str, str], dict[int, list[str]]] = {}
        self._moved: dict[tuple[str, str], dict[int, int]] = {}
        self.read()

    def read(self) -> None:
        parts = sorted(self.folder.glob("*.json"), key=lambda p: int(p.stem))
        self.parts: dict[str, Any] = {p.stem: json.loads(p.read_text()) for p in parts}
        self.tests: dict[str, Any] = {}
        for name, part in self.parts.items():  # a later part says everything of the files it is made of
            self.tests = {t: row for t, row in self.tests.items() if t.split("::")[0] not in part["files"]}
            self.tests |= {row["test"]: {**row, "part": name} for row in part["tests"]}
        for name in set(self.parts) - {row["part"] for row in self.tests.values()}:
            for path in (self.folder / f"{name}.json", self.folder / f"{name}.coverage"):
                path.unlink(missing_ok=True)
            del self.parts[name]

    def outdated(self, tests: list[str]) -> list[str]:
        """Test files that are not in the map as they are now."""
        known: dict[str, str] = {}
        for part in self.parts.values():
            known |= part["files"]
        return [file for file, digest in self._test_files(tests).items() if known.get(file) != digest]

    def _test_files(self, tests: list[str]) -> dict[str, str]:
        root, found = self.tree.root, []
        for place in (root / test for test in tests):
            if not place.exists():
                sys.exit(f"{place}: no such test file or folder")
            found += [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in found}

    def make(self, tests: list[str], jobs: int) -> None:
        """Run test files, or folders of them, and add what they reach."""
        import coverage

        copy = self.tree.copy(0)
        files = self._test_files(tests)
        name = str(1 + max((int(part) for part in self.parts), default=0))
        with tempfile.TemporaryDirectory() as scratch:
            data, site = Path(scratch) / "data", Path(scratch) / "site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(SITE)
            env = self.tree.environment(copy, site, Path(__file__).parent)
            env |= {"MUTANTS_DATA": str(data), "MUTANTS_SOURCE": str(copy / "src" / self.tree.package)}
            words = [
                "-q",
                "--tb=line",
                "-p",
                "no:cacheprovider",
                "-p",
                "mutants",
                "-p",
                "no:cov",
                f"--basetemp={scratch}/tmp",
            ]
            words += ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else ["-n0"]
            command = [sys.executable, "-m", "pytest", *words, *sorted(files)]
            began = time.monotonic()
            subprocess.run(command, cwd=copy, env=env, check=False)
            rows = [json.loads(line) for path in Path(scratch).glob("data.tests.*") for line in path.open()]
            combined = coverage.Coverage(data_file=str(self.folder / f"{name}.coverage"), config_file=False)
            recorded = [str(p) for p in Path(scratch).glob("data.*") if ".tests." not in p.name]
            combined.combine(recorded)
            combined.save()
        part = {
            "files": files,
            "tests": rows,
            "sources": {str(p.relative_to(self.tree.source)): p.read_text() for p in self.tree.source.rglob("*.py")},
            "copy": str(copy),
        }
        (self.folder / f"{name}.json").write_text(json.dumps(part))
        self.read()
        bad = sorted(row["test"] for row in rows if row["failed"])
        print(f"mapped {len(rows)} tests of {len(files)} files in {time.monotonic() - began:.0f} s")
        print("".join(f"  fails in the copy, so it is left out: {test}\n" for test in bad), end="")

    def _lines(self, part: str, file: str) -> dict[int, list[str]]:
        """Contexts by line, as the file was when the part was made."""
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
            same = {a + i + 1: b + i + 1 for a, b, size in blocks for i in range(size)}
            self._moved[part, file] = same
        return self._moved[part, file]

    def reaching(self, file: str, lines: Iterable[int] | None) -> set[str]:
        """Tests that reach any of a file's lines; ``None``: those that reach anything that runs after its import."""
        found: set[str] = set()
        for part in self.parts:
            then, contexts = self._then(part, file), self._lines(part, file)
            places = contexts if lines is None else [then[line] for line in lines if line in then]
            here = {context for place in places for context in contexts.get(place, []) if context}
            found |= {
                t for t, row in self.tests.items() if row["part"] == part and (t in here or here & set(row["shared"]))
            }
        return {test for test in found if not self.tests[test]["failed"]}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Tests that may notice a mutant, cheapest first."""
        first, last = mutant.lines
        found = set() if mutant.once else self.reaching(mutant.file, range(first, last + 1))
        if not found and (mutant.once or not any(mutant.line in self._then(part, mutant.file) for part in self.parts)):
            found = self.reaching(mutant.file, self._around(mutant))
        if not found and mutant.once:
            for user in self._importers(mutant.file):
                found |= self.reaching(user, None)
        return sorted(found, key=lambda test: (self.tests[test]["seconds"], test))

    def _around(self, mutant: Mutant) -> Iterable[int] | None:
        """For a line that is new: the function around it. For one that runs at import: everything."""
        near = [m.lines for m in self.tree.mutants[mutant.file] if m.where == mutant.where]
        return None if mutant.once else {line for first, last in near for line in range(first, last + 1)}

    def _importers(self, file: str) -> list[str]:
        module = f"{self.tree.package}.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        pattern = re.compile(rf"^\s*(from|import) {re.escape(module)}\b", re.MULTILINE)
        return [
            str(p.relative_to(self.tree.source))
            for p in self.tree.source.rglob("*.py")
            if pattern.search(p.read_text())
        ]


# running mutants ------------------------------------------------------------------------------------------------------


class Chosen:
    """A pytest plugin that runs the given tests, in the given order, and remembers which one failed."""

    def __init__(self, order: list[str]) -> None:
        self.order = {test: i for i, test in enumerate(order)}
        self.failed, self.ran = "", 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        if report.failed:
            self.failed = self.failed or report.nodeid


def attempt(tests: list[str], answer: int, cpu_seconds: int) -> None:
    """In a forked process: run tests and write the result into a pipe."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    chosen = Chosen(tests)
    with tempfile.TemporaryDirectory() as scratch:
        words = [*OPTIONS, f"--basetemp={scratch}/tmp", *sorted({test.split("::")[0] for test in tests})]
        code = pytest.main(words, plugins=[chosen])
    result = {"code": int(code), "by": chosen.failed, "ran": chosen.ran}
    os.write(answer, json.dumps(result).encode())


def serve() -> None:
    """Load the libraries; then, for every line of tests that comes in, fork, run them, and print the result."""
    sys.dont_write_bytecode = True
    for library in LIBRARIES:
        try:
            importlib.import_module(library)
        except ImportError:
            continue
    sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            try:
                attempt(task["tests"], send, task["cpu_seconds"])
            finally:
                os._exit(0)
        os.close(send)
        ready, _, _ = select.select([receive], [], [], task["seconds"])
        words = os.read(receive, 65536) if ready else b""
        os.close(receive)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and whatever the tests have left running
        _, status = os.waitpid(child, 0)
        slow = not ready or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
        result = json.loads(words) if words else {"code": -1, "by": "time limit" if slow else "crash", "ran": 0}
        print(json.dumps(result), flush=True)


class Worker(threading.Thread):
    """A server with a copy of its own, which takes mutants from a queue until there are none."""

    def __init__(self, number: int, bench: Bench) -> None:
        super().__init__(daemon=True)
        self.bench, self.copy = bench, bench.tree.copy(number)
        env = {**bench.tree.environment(self.copy), "PYTHONDONTWRITEBYTECODE": "1"}
        compiling = [sys.executable, "-m", "compileall", "-q", "src"]
        subprocess.run(compiling, cwd=self.copy, check=False)
        self.server = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            cwd=self.copy, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.server.stdin and self.server.stdout
        self.into, self.out = self.server.stdin, self.server.stdout

    def run(self) -> None:
        self.out.readline()
        while True:
            try:
                mutant = self.bench.queue.get_nowait()
            except Empty:
                break
            self.bench.keep(mutant, self.judge(mutant))
        self.into.close()
        self.server.wait()

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """Put the mistake into the copy, and try tests in stages until one notices."""
        original = (self.bench.tree.source / mutant.file).read_bytes()
        changed = mutant.apply(original)
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError:
            return {"result": "nonsense"}
        tests = self.bench.tests_of(mutant)
        if not tests:
            return {"result": "unsettled" if self.bench.only else "unreached", "reached_by": 0}
        file = self.copy / "src" / self.bench.tree.package / mutant.file
        began, ran = time.monotonic(), 0
        _forget(file)
        file.write_bytes(changed)
        try:
            for stage in self.bench.stages(mutant, tests):
                result = self.ask(stage)
                ran += result["ran"]
                if result["code"] == 5 or (result["code"] == 0 and result["ran"] == 0):
                    continue  # none of these tests exists any more
                if result["code"] != 0:
                    by = result["by"] or "collection"
                    verdict = "timeout" if by == "time limit" else "killed"
                    return {"result": verdict, "by": by, "ran": ran, "seconds": round(time.monotonic() - began, 1)}
        finally:
            file.write_bytes(original)
            py_compile.compile(str(file), doraise=False)
        verdict = "unsettled" if self.bench.only or (self.bench.quick and ran < len(tests)) else "survived"
        seconds = round(time.monotonic() - began, 1)
        return {"result": verdict, "ran": ran, "reached_by": len(tests), "seconds": seconds}

    def ask(self, tests: list[str]) -> dict[str, Any]:
        """A limit on processor time finds loops; the one on time, which others' work lengthens, finds what waits."""
        expected = sum(self.bench.map.tests[test]["seconds"] for test in tests)
        cpu_seconds = int(3 * expected + 15)
        self.into.write(json.dumps({"tests": tests, "cpu_seconds": cpu_seconds, "seconds": 5 * cpu_seconds}) + "\n")
        self.into.flush()
        answer: dict[str, Any] = json.loads(self.out.readline())
        return answer


class Bench:
    """Everything the workers share: the queue, the map, who killed what, and the file of results."""

    def __init__(self, tree: Tree, tests: Map, mutants: list[Mutant], only: list[str], quick: bool) -> None:
        self.tree, self.map, self.quick, self.total = tree, tests, quick, len(mutants)
        self.only = tuple(only)
        self.queue: Queue[Mutant] = Queue()
        for mutant in mutants:
            self.queue.put(mutant)
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        self.counts: Counter[str] = Counter()
        self._lock, self._began = threading.Lock(), time.monotonic()

    def tests_of(self, mutant: Mutant) -> list[str]:
        with self._lock:
            found = self.map.tests_of(mutant)
        return [test for test in found if not self.only or test.startswith(self.only)]

    def stages(self, mutant: Mutant, tests: list[str]) -> Iterable[list[str]]:
        """What killed neighbours and the cheapest; what fits into a minute; the rest."""
        known = self.killers[mutant.file + mutant.where] + self.killers[mutant.file]
        near = [test for test, _ in known.most_common(8) if test in set(tests) and self.map.tests[test]["seconds"] < 20]
        rest = [test for test in tests if test not in near]
        yield near + rest[:FIRST]
        seconds, middle = 0.0, []
        for test in rest[FIRST:]:
            seconds += self.map.tests[test]["seconds"]
            if seconds < SECOND:
                middle.append(test)
        if middle:
            yield middle
        last = rest[FIRST + len(middle) :]
        if last and not self.quick:
            yield last

    def keep(self, mutant: Mutant, verdict: dict[str, Any]) -> None:
        """Write a result down, as soon as it is known."""
        by = verdict.get("by", "")
        row = {"id": mutant.id, **described(mutant), **verdict}
        with self._lock:
            if "::" in by:
                self.killers[mutant.file].update([by])
                self.killers[mutant.file + mutant.where].update([by] * 3)
            self.counts[verdict["result"]] += 1
            with self.tree.results.open("a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            done = sum(self.counts.values())
            rate = 60 * done / (time.monotonic() - self._began)
            print(
                f"{done}/{self.total} {verdict['result']:9} {mutant.file}:{mutant.line} {mutant.change[:90]}"
                f"  [{by or str(verdict.get('ran', 0)) + ' tests'}, {verdict.get('seconds', 0)} s, {rate:.1f}/min]",
                flush=True,
            )


def described(mutant: Mutant) -> dict[str, Any]:
    return {
        "room": room_of(mutant.file),
        "file": mutant.file,
        "line": mutant.line,
        "in": mutant.where,
        "text": mutant.text,
        "kind": mutant.kind,
        "change": mutant.change,
        "nth": mutant.nth,
    }


# choosing mutants, and what is told of them ---------------------------------------------------------------------------


@dataclass
class Ignored:
    """Mutants that change nothing, with the reason, from scripts/mutants_ignored.yaml of the tree."""

    reasons: dict[tuple[Any, ...], str]

    @classmethod
    def read(cls, tree: Tree) -> Ignored:
        from ruamel.yaml import YAML

        path = tree.root / "scripts" / "mutants_ignored.yaml"
        rows = (YAML(typ="safe").load(path.read_text()) or []) if path.exists() else []
        return cls({cls.key(row): row["reason"] for row in rows})

    @staticmethod
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["file"], row["in"], row["text"], row["change"], row.get("nth", 0)

    def reason(self, mutant: Mutant) -> str | None:
        return self.reasons.get(self.key(described(mutant)))


def choose(tree: Tree, args: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options name, without those that are ignored."""
    ignored = Ignored.read(tree)
    chosen = [m for file, mutants in tree.mutants.items() for m in mutants if ignored.reason(m) is None]
    if args.files:
        chosen = [m for m in chosen if any(fnmatch(m.file, pattern) for pattern in args.files)]
    else:
        chosen = [m for m in chosen if room_of(m.file) != "elsewhere"]
    if args.rooms:
        chosen = [m for m in chosen if room_of(m.file) in args.rooms]
    if args.kinds:
        chosen = [m for m in chosen if m.kind in args.kinds]
    if args.lines:
        first, _, last = args.lines.partition("-")
        chosen = [m for m in chosen if int(first) <= m.line <= int(last or first)]
    if args.only:
        chosen = [m for m in chosen if m.id in args.only]
    if args.since:
        changed = tree.changed_lines(args.since)
        chosen = [m for m in chosen if changed[m.file] & set(range(m.lines[0], m.lines[1] + 1))]
    return sample(chosen, args.sample, args.seed) if args.sample else chosen


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """A random part with a share for every room, by its number of mutants, and in a room for every kind alike."""
    rng, rooms = random.Random(seed), defaultdict(list)
    for mutant in mutants:
        rooms[room_of(mutant.file)].append(mutant)
    chosen: list[Mutant] = []
    for found in rooms.values():
        kinds = defaultdict(list)
        for mutant in rng.sample(found, len(found)):
            kinds[mutant.kind].append(mutant)
        turns = [m for turn in zip_longest_lists(list(kinds.values())) for m in turn]
        chosen += turns[: max(3, round(size * len(found) / len(mutants)))]
    return rng.sample(chosen, min(size, len(chosen)))


def zip_longest_lists(lists: list[list[Mutant]]) -> list[list[Mutant]]:
    return [[rows[i] for rows in lists if i < len(rows)] for i in range(max(map(len, lists), default=0))]


def latest(tree: Tree) -> dict[str, dict[str, Any]]:
    """The last result of every mutant that the tree still has and does not ignore."""
    ignored, rows = Ignored.read(tree), {}
    if tree.results.exists():
        for line in tree.results.open():
            row = json.loads(line)
            rows[row["id"]] = row
    current = {m.id for mutants in tree.mutants.values() for m in mutants if ignored.reason(m) is None}
    return {key: row for key, row in rows.items() if key in current and row["result"] != "nonsense"}


def run(tree: Tree, args: argparse.Namespace) -> None:
    known = latest(tree)
    wanted = choose(tree, args)
    if args.again:
        lived = {key for key, row in known.items() if row["result"] not in ("killed", "timeout")}
        wanted = [m for m in wanted if m.id in lived]
    elif not args.only:
        wanted = [m for m in wanted if m.id not in known or known[m.id]["result"] == "unsettled"]
    tests = Map(tree)
    if old := tests.outdated(args.tests or ["tests"]):
        print(f"mapping {len(old)} test files that are new or have changed")
        tests.make(old, args.jobs)
    bench = Bench(tree, tests, wanted, args.tests, args.quick)
    workers = [Worker(i, bench) for i in range(min(args.jobs, len(wanted)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(dict(bench.counts))


def score(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter("killed" if row["result"] in ("killed", "timeout") else row["result"] for row in rows)
    total = sum(counts.values())
    return {**counts, "total": total, "score": round(100 * counts["killed"] / total, 1) if total else None}


def report(tree: Tree, args: argparse.Namespace) -> None:
    chosen = {m.id for m in choose(tree, args)}
    rows = [row for key, row in latest(tree).items() if key in chosen]
    for room in [*ROOMS, "elsewhere"]:
        here = [row for row in rows if row["room"] == room]
        if here:
            print(f"{room:12} {score(here)}")
    print(f"{'all':12} {score(rows)}\n")
    for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
        if row["result"] not in ("killed", "timeout"):
            print(f"{row['id']} {row['file']}:{row['line']} ({row['in']}) {row['result']}, {row['kind']}")
            print(f"    {row['text']}\n    {row['change']}")


def record(tree: Tree, args: argparse.Namespace) -> None:
    import torch

    rows = list(latest(tree).values())
    lived = [row for row in rows if row["result"] not in ("killed", "timeout")]
    rooms = {room: score(row for row in rows if row["room"] == room) for room in {row["room"] for row in rows}}
    names = ("file", "in", "text", "change")
    ignored = [dict(zip(names, key)) | {"reason": reason} for key, reason in Ignored.read(tree).reasons.items()]
    content = {
        "commit": tree.git("rev-parse", "HEAD").strip(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mutants": score(rows),
        "kinds": {kind: score(r for r in rows if r["kind"] == kind) for kind in sorted({r["kind"] for r in rows})},
        "rooms": dict(sorted(rooms.items())),
        "survivors": [{name: row[name] for name in (*names, "result")} for row in lived],
        "ignored": ignored,
    }
    path = tree.root / "benchmarks" / "results" / "mutants" / f"{args.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(path)


def show(tree: Tree, args: argparse.Namespace) -> None:
    chosen = choose(tree, args)
    for mutant in chosen:
        print(f"{mutant.id} {mutant.file}:{mutant.line} {mutant.kind}: {mutant.change}")
    print(len(chosen), dict(Counter(room_of(m.file) for m in chosen)), dict(Counter(m.kind for m in chosen)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["map", "list", "run", "report", "record", "serve"])
    parser.add_argument("name", nargs="?", default="latest", help="record: name of the file")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the tree to work on (default: here)")
    parser.add_argument("--tests", nargs="*", default=[], help="only these test files or folders (default: all)")
    parser.add_argument("--files", nargs="*", default=[], help="only these files of the package, e.g. 'algorithms/*'")
    parser.add_argument("--rooms", nargs="*", default=[], choices=ROOMS, help="only these rooms")
    parser.add_argument("--kinds", nargs="*", default=[], help="only these kinds, e.g. gradient 'off by one'")
    parser.add_argument("--lines", default="", help="only these lines, e.g. 40-80")
    parser.add_argument("--only", nargs="*", default=[], help="only the mutants with these ids, whatever is known")
    parser.add_argument("--since", default="", help="only lines that differ from this commit")
    parser.add_argument("--sample", type=int, default=0, help="a random part of this size, over all rooms and kinds")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--quick", action="store_true", help="only a minute of tests for each: survivors may be killed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args()
    if args.command == "serve":
        return serve()
    tree = Tree(args.root)
    tree.cache.mkdir(exist_ok=True)
    if args.command == "map":
        return Map(tree).make(args.tests or ["tests"], args.jobs)
    {"list": show, "run": run, "report": report, "record": record}[args.command](tree, args)


if __name__ == "__main__":
    main()
