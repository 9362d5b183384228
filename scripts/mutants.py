"""Mutation testing: write mistakes into a copy of the package, one at a time, and see whether some test notices.

    python scripts/mutants.py map --jobs 2             which tests reach which lines (the whole suite, once: minutes)
    python scripts/mutants.py run --sample 650         650 mistakes over all rooms; goes on where it was interrupted
    python scripts/mutants.py run --since main         mistakes on the lines that differ from a commit
    python scripts/mutants.py run --files algorithms/sac.py --tests tests/test_sac_update.py tests/algorithms
    python scripts/mutants.py run --again              once more those that survived, after a test was added
    python scripts/mutants.py report                   the score by room, and every survivor
    python scripts/mutants.py record --name NAME       the same as benchmarks/results/mutants/NAME.json

A mutant is killed when a test fails with it. Only tests that reach its line are run: those that killed its neighbours
first, then the cheapest; all of them before it is said to survive ("unsettled": not all, because of --quick or
--tests). A server that has loaded the libraries, and nothing of the package, forks a process for each. Lines that run
while a module is imported are reached by every test that runs anything of the module.

Everything is kept in ``.mutants/`` of the tree: copies, map, results. A test file that has changed since the map was
made is mapped again by itself; an interrupted map or run goes on where it was. Mutants that change nothing are listed
in scripts/mutants_ignored.yaml: ``file``, ``in``, ``text`` and ``change`` as the report prints them (``nth`` if there
are several), and the ``reason``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import hashlib
import importlib
import io
import json
import os
import platform
import py_compile
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from queue import Empty, Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from mutations import Mutant
from reach import Map, Tree, forget

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
OPTIONS = ["-q", "-x", "--tb=no", "--no-header"]
OPTIONS += [word for plugin in ("cacheprovider", "xdist", "cov", "anyio") for word in ("-p", f"no:{plugin}")]
DEAD = ("killed", "timeout")


def room_of(file: str) -> str:
    return next((room for room, patterns in ROOMS.items() if any(fnmatch(file, p) for p in patterns)), "elsewhere")


def described(mutant: Mutant) -> dict[str, Any]:
    """A mutant as results and the list of ignored ones name it."""
    names = {"file": mutant.file, "in": mutant.where, "text": mutant.text, "change": mutant.change, "nth": mutant.nth}
    return {"id": mutant.id, "room": room_of(mutant.file), "line": mutant.line, "kind": mutant.kind, **names}


# the server -----------------------------------------------------------------------------------------------------------


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
        files = sorted({test.split("::")[0] for test in tests})
        code = pytest.main([*OPTIONS, f"--basetemp={scratch}/tmp", *files], plugins=[chosen])
    os.write(answer, json.dumps({"code": int(code), "by": chosen.failed, "ran": chosen.ran}).encode())


def serve() -> None:
    """Load the libraries; then, for every line of tests that comes in, fork, run them, and print the result."""
    sys.dont_write_bytecode = True
    texts = [path.read_text() for folder in ("src", "tests") for path in Path(folder).rglob("*.py")]
    used = {name for text in texts for name in re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)}
    for library in LIBRARIES:
        if library.split(".")[0] in used:
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
    sys.path.remove(str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as nothing, contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("pytest").main([*OPTIONS, nothing])  # loads its plugins
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            for descriptor in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
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


# running mutants ------------------------------------------------------------------------------------------------------


class Bench:
    """What the workers share: the mutants, the map, who killed what, and the file of results."""

    def __init__(self, tree: Tree, tests: Map, mutants: list[Mutant], only: list[str], quick: bool) -> None:
        self.tree, self.map, self.only, self.quick, self.total = tree, tests, tuple(only), quick, len(mutants)
        self.queue: Queue[Mutant] = Queue()
        for mutant in mutants:
            self.queue.put(mutant)
        self.counts: Counter[str] = Counter()
        self._killers: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock, self._began = threading.Lock(), time.monotonic()

    def tests_of(self, mutant: Mutant) -> list[str]:
        with self._lock:
            found = self.map.tests_of(mutant)
        return [test for test in found if not self.only or test.startswith(self.only)]

    def stages(self, mutant: Mutant, tests: list[str]) -> Iterable[list[str]]:
        """What killed neighbours and the cheapest; what fits into a minute; the rest."""
        seconds = {test: self.map.tests[test]["seconds"] for test in tests}
        known = self._killers[mutant.file + mutant.where] + self._killers[mutant.file]
        near = [test for test, _ in known.most_common(8) if seconds.get(test, 60) < 20]
        rest = [test for test in tests if test not in near]
        yield near + rest[:FIRST]
        middle, spent = FIRST, 0.0
        while middle < len(rest) and spent < SECOND:
            spent += seconds[rest[middle]]
            middle += 1
        for stage in (rest[FIRST:middle], [] if self.quick else rest[middle:]):
            if stage:
                yield stage

    def keep(self, mutant: Mutant, verdict: dict[str, Any]) -> None:
        """Write a result down, as soon as it is known."""
        by, result = verdict.get("by", ""), verdict["result"]
        with self._lock:
            if "::" in by:
                self._killers[mutant.file].update([by])
                self._killers[mutant.file + mutant.where].update([by] * 3)
            self.counts[result] += 1
            with (self.tree.cache / "results.jsonl").open("a") as file:
                file.write(json.dumps({**described(mutant), **verdict}, ensure_ascii=False) + "\n")
            done = sum(self.counts.values())
            rate = 60 * done / (time.monotonic() - self._began)
            facts = f"{by or str(verdict.get('ran', 0)) + ' tests'}, {verdict.get('seconds', 0)} s, {rate:.1f}/min"
            print(
                f"{done}/{self.total} {result:9} {mutant.file}:{mutant.line} {mutant.change[:90]}  [{facts}]",
                flush=True,
            )


class Worker(threading.Thread):
    """A server with a copy of its own, which takes mutants from the bench until there are none."""

    def __init__(self, number: int, bench: Bench) -> None:
        super().__init__(daemon=True)
        self.bench, self.copy = bench, bench.tree.copy(f"copy{number}")
        subprocess.run([sys.executable, "-m", "compileall", "-q", "src"], cwd=self.copy, check=False)
        self.server = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            cwd=self.copy,
            env={**bench.tree.environment(self.copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdin and self.server.stdout
        self.into, self.out = self.server.stdin, self.server.stdout

    def run(self) -> None:
        self.out.readline()
        with contextlib.suppress(Empty):
            while True:
                mutant = self.bench.queue.get_nowait()
                began = time.monotonic()
                verdict = self.judge(mutant)
                self.bench.keep(mutant, {**verdict, "seconds": round(time.monotonic() - began, 1)})
        self.into.close()
        self.server.wait()

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """Put the mistake into the copy, and try tests in stages until one notices."""
        tests, ran = self.bench.tests_of(mutant), 0
        original = (self.bench.tree.source / mutant.file).read_bytes()
        changed = mutant.apply(original)
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError:
            return {"result": "nonsense"}
        if not tests:
            return {"result": "unsettled" if self.bench.only else "unreached"}
        file = self.copy / "src" / self.bench.tree.package / mutant.file
        forget(file)
        file.write_bytes(changed)
        try:
            for stage in self.bench.stages(mutant, tests):
                result = self.ask(stage)
                ran += result["ran"]
                if result["code"] not in (0, 5):  # 5: these tests are gone
                    by = result["by"] or "collection"
                    return {"result": "timeout" if by == "time limit" else "killed", "by": by, "ran": ran}
        finally:
            file.write_bytes(original)
            py_compile.compile(str(file))
        settled = not self.bench.only and (not self.bench.quick or ran >= len(tests))
        return {"result": "survived" if settled else "unsettled", "ran": ran}

    def ask(self, tests: list[str]) -> dict[str, Any]:
        """A limit on processor time finds loops; the one on time, which others' work lengthens, finds what waits.

        A process of its own imports the package, and may have to compile what the map's processes had compiled already.
        """
        cpu_seconds = int(3 * sum(self.bench.map.tests[test]["seconds"] for test in tests) + 90)
        self.into.write(json.dumps({"tests": tests, "cpu_seconds": cpu_seconds, "seconds": 5 * cpu_seconds}) + "\n")
        self.into.flush()
        answer: dict[str, Any] = json.loads(self.out.readline())
        return answer


# choosing mutants, and reporting on them ---------------------------------------------------------------------------


def ignored(tree: Tree) -> dict[str, dict[str, Any]]:
    """Mutants of the tree that are listed as changing nothing, by id; a line that fits none is an error."""
    from ruamel.yaml import YAML

    path = tree.root / "scripts" / "mutants_ignored.yaml"
    rows = (YAML(typ="safe").load(path.read_text()) or []) if path.exists() else []
    names = ("file", "in", "text", "change", "nth")
    ids = {tuple(described(m)[name] for name in names): m.id for found in tree.mutants.values() for m in found}
    known = {}
    for row in rows:
        key = tuple({"nth": 0, **row}[name] for name in names)
        if key not in ids:
            print(f"{path.name}: no such mutant (has its line changed?): {row['file']}: {row['text']}: {row['change']}")
        else:
            known[ids[key]] = row
    return known


def choose(tree: Tree, args: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options name, without those that are ignored."""
    chosen = list(chain.from_iterable(tree.mutants.values()))
    if args.files:
        chosen = [m for m in chosen if any(fnmatch(m.file, pattern) for pattern in args.files)]
    else:
        chosen = [m for m in chosen if room_of(m.file) in (args.rooms or ROOMS)]
    if args.kinds:
        chosen = [m for m in chosen if m.kind in args.kinds]
    if args.lines:
        first, _, last = args.lines.partition("-")
        chosen = [m for m in chosen if int(first) <= m.line <= int(last or first)]
    if args.only:
        chosen = [m for m in chosen if m.id in args.only]
    if args.since:
        changed = tree.changed_lines(args.since)
        chosen = [m for m in chosen if not changed[m.file].isdisjoint(range(m.lines[0], m.lines[1] + 1))]
    if args.sample:
        chosen = sample(chosen, args.sample, args.seed)
    listed = ignored(tree)
    return [m for m in chosen if m.id not in listed]


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """A part with a share for every room, by its number of mutants, and in a room for every kind alike.

    It is random by the seed and the mutants' ids, so that most of it stays when the source changes.
    """
    rooms: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    shuffled = sorted(mutants, key=lambda m: hashlib.sha256(f"{seed} {m.id}".encode()).digest())
    for mutant in shuffled:
        rooms[room_of(mutant.file)][mutant.kind].append(mutant)
    chosen: set[Mutant] = set()
    for kinds in rooms.values():
        turns = [m for turn in zip_longest(*kinds.values()) for m in turn if m is not None]
        chosen.update(turns[: max(3, round(size * len(turns) / len(mutants)))])
    return [m for m in shuffled if m in chosen]


def results(tree: Tree) -> dict[str, dict[str, Any]]:
    """The last result of every mutant."""
    path = tree.cache / "results.jsonl"
    rows = map(json.loads, path.open()) if path.exists() else ()
    return {row["id"]: row for row in rows if row["result"] != "nonsense"}


def run(tree: Tree, args: argparse.Namespace) -> None:
    lock = (tree.cache / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run uses the copies in {tree.cache}")
    chosen, known = choose(tree, args), results(tree)
    if args.again:
        chosen = [m for m in chosen if m.id in known and known[m.id]["result"] not in DEAD]
    elif not args.only:
        chosen = [m for m in chosen if known.get(m.id, {"result": "unsettled"})["result"] == "unsettled"]
    tests = Map(tree)
    if chosen:
        tests.update(args.tests or ["tests"], args.jobs)
    bench = Bench(tree, tests, chosen, args.tests, args.quick)
    workers = [Worker(i, bench) for i in range(min(args.jobs, len(chosen)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(dict(bench.counts))


def score(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    counts = Counter("killed" if row["result"] in DEAD else row["result"] for row in rows)
    total = counts.total()
    return {"mutants": total, **dict(sorted(counts.items())), "score": round(100 * counts["killed"] / max(total, 1), 1)}


def judged(tree: Tree, args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Results of the chosen mutants, with their lines as they are now, and those that survived."""
    known = results(tree)
    rows = [{**known[m.id], **described(m)} for m in choose(tree, args) if m.id in known]
    rows.sort(key=lambda row: (row["file"], row["line"]))
    return rows, [row for row in rows if row["result"] not in DEAD]


def report(tree: Tree, args: argparse.Namespace) -> None:
    rows, survivors = judged(tree, args)
    for room in [*ROOMS, "elsewhere"]:
        if here := [row for row in rows if row["room"] == room]:
            print(f"{room:12} {score(here)}")
    print(f"{'all':12} {score(rows)}\n")
    for row in survivors:
        print(f"{row['id']} {row['file']}:{row['line']} {row['result']}, {row['kind']}, in {row['in'] or 'the module'}")
        nth = f"  (nth: {row['nth']})" if row["nth"] else ""
        print(f"    {row['text']}\n    {row['change']}{nth}")


def record(tree: Tree, args: argparse.Namespace) -> None:
    rows, survivors = judged(tree, args)
    content = {
        "commit": tree.git("rev-parse", "HEAD").strip(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "sample": {"size": args.sample, "seed": args.seed} if args.sample else None,
        "all": score(rows),
        "rooms": {room: score(r for r in rows if r["room"] == room) for room in sorted({r["room"] for r in rows})},
        "kinds": {kind: score(r for r in rows if r["kind"] == kind) for kind in sorted({r["kind"] for r in rows})},
        "survivors": [{name: row[name] for name in ("file", "in", "text", "change", "result")} for row in survivors],
        "ignored": list(ignored(tree).values()),
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
    parser.add_argument("--quick", action="store_true", help="a minute of tests for each at most")
    parser.add_argument("--name", default="latest", help="of the record")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    args = parser.parse_args()
    if args.command == "serve":
        return serve()
    tree = Tree(args.root)
    if args.command == "map":
        return Map(tree).update(args.tests or ["tests"], args.jobs)
    {"list": show, "run": run, "report": report, "record": record}[args.command](tree, args)


if __name__ == "__main__":
    main()
