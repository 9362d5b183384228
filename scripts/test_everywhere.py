"""Run the whole suite under conditions that other machines bring: `make test-all`, before a release.

    python scripts/test_everywhere.py                  all of them, one after another (an hour on two cores)
    python scripts/test_everywhere.py shuffled plain   only these

What came of it is written to benchmarks/results/tests.json, each condition as it ends: commit, versions, processor,
tests that passed and failed, minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
RECORD = ROOT / "benchmarks" / "results" / "tests.json"
SUITE = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "--tb=short", "-p", "no:cacheprovider"]
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
OUTCOMES = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


def without_a_compiler(folder: Path) -> dict[str, str]:
    """A search path with what there is beside compilers, and a name for the compiler that leads nowhere."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            link = folder / program.name
            if (
                not re.match(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|c\d\d)(-[\d.]+)?$", program.name)
                and not link.exists()
            ):
                link.symlink_to(program)
    return {"PATH": str(folder), "CXX": "", "CC": ""}


def run(command: list[str], **variables: str) -> tuple[Counter[str], list[str]]:
    """How many tests passed, failed and were skipped, and the names of those that failed."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **THREADS, **variables}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    counts: Counter[str] = Counter()
    for number, outcome in OUTCOMES.findall(lines[-1] if lines else ""):
        counts[outcome.rstrip("s") if outcome == "errors" else outcome] += int(number)
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 5) and not failed:
        failed = [f"exit code {done.returncode}: {' '.join(command[3:])}", *lines[-5:], *done.stderr.splitlines()[-5:]]
    return counts, failed


def alone() -> tuple[Counter[str], list[str]]:
    """Every file of tests in an interpreter of its own."""
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        more, lost = run([part for part in SUITE if part not in ("-n", "3", "--dist", "worksteal")] + [str(path)])
        counts.update(more)
        failed += lost
        print(f"  {path.relative_to(ROOT)}: {dict(more)}", flush=True)
    return counts, failed


def conditions(folder: Path) -> dict[str, object]:
    """What a run of the suite is called, and the run; each order is another one."""
    return {
        "usual": lambda: run([*SUITE, "tests"]),
        "shuffled": lambda: run([*SUITE, "--shuffle", "1", "tests"]),
        "plain": lambda: run([*SUITE, "--shuffle", "2", "tests"], ATEN_CPU_CAPABILITY="default"),
        "no compiler": lambda: run([*SUITE, "--shuffle", "3", "tests"], **without_a_compiler(folder)),
        "alone": alone,
    }


def main() -> int:
    from learning import facts_of_the_machine

    folder = Path(tempfile.mkdtemp())
    known = conditions(folder)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("conditions", nargs="*", metavar="condition", help=", ".join(known))
    chosen = parser.parse_args().conditions or list(known)
    if unknown := set(chosen) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: unknown; there are {', '.join(known)}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    wrong = 0
    for name in chosen:
        began = time.monotonic()
        print(f"{name} ...", flush=True)
        counts, failed = known[name]()  # type: ignore[operator]
        minutes = round((time.monotonic() - began) / 60, 1)
        wrong += len(failed)
        record[name] = {**facts_of_the_machine(), **counts, "minutes": minutes, "which failed": failed}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {dict(counts)} in {minutes} minutes", *failed, sep="\n  ", flush=True)
    shutil.rmtree(folder)
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
