"""What bad files, kills and bad disks break: figures of mutated input and of runs that were ended at random, raw.

python benchmarks/hardening.py                      every section, recorded in benchmarks/results/hardening/
python benchmarks/hardening.py --only kills configs --scale 0.05 --no-record     some, with a twentieth of the cases
python benchmarks/hardening.py --continue           leaves out what this commit has recorded: after a Ctrl-C, for one

A figure that is not zero comes with seeds. One case by hand: PYTHONPATH=tests python -m fuzzing checkpoint SEED
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from fuzzing import lives
from fuzzing.attempts import FILES_MAY, RUNS_MAY, Attempts
from fuzzing.disks import may_mount
from fuzzing.trials import BAD, trials
from learning import facts_of_the_machine
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

RESULTS = Path(__file__).parent / "results" / "hardening"
COUNTS = {  # section: cases
    "checkpoints": 2_000,
    "datasets": 2_000,
    "configs": 10_000,
    "trained_configs": 100,
    "run_folders": 300,
    "sweep_folders": 100,
    "environments": 200,
    "kills": 100,
    "full_disks": 20,
    "slow_disks": 20,
}
EXAMPLES = 5  # of each class of what may not happen, with their seeds
CASE_SECONDS = 120.0  # longer is a hang
Figures = dict[str, Any]


class Shown:
    """One line that says how far a section is, and the bad outcomes so far."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count, self._done, self._bad, self._last = name, count, 0, 0, 0.0
        self.began = time.monotonic()

    def step(self, bad: int, by: int = 1) -> None:
        self._done, self._bad = self._done + by, self._bad + bad
        every = 0.5 if sys.stderr.isatty() else 30.0
        if time.monotonic() - self._last > every or self._done >= self._count:
            self._last = time.monotonic()
            end = "\r" if sys.stderr.isatty() and self._done < self._count else "\n"
            text = f"{self._name}: {self._done:,} of {self._count:,}, {self._bad} bad, {self.seconds:.0f} s"
            print(f"{text:79}", end=end, file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


# ---- mutated input


def judged(name: str, attempt: Callable[[int], Any], seeds: Iterable[int], allowed: tuple[str, ...]) -> Figures:
    """Counts of outcomes, and examples of those that may not be."""
    seeds = list(seeds)
    shown, kinds, classes, by_library = Shown(name, len(seeds)), Counter[str](), dict[str, list[str]](), 0
    for seed, outcome in trials(attempt, seeds, seconds=CASE_SECONDS, batch=50):
        kinds[outcome.kind] += 1
        bad = outcome.kind not in allowed
        by_library += not outcome.planned
        shown.step(bad)
        if bad or not outcome.planned:
            kind = outcome.kind if bad else "line of a library"
            key = f"{kind}: {re.sub(r'[0-9]+|/[^ ]*', 'N', outcome.text.split(' [')[0])[:60]}"
            classes.setdefault(key, []).append(f"seed {seed}: {outcome.text[:300]}")
    bad = {kind: kinds[kind] for kind in (*BAD, "failed") if kind not in allowed}
    return {
        "cases": len(seeds),
        "outcomes": dict(kinds.most_common()),
        "may_not_be": bad,
        "lines_of_libraries": by_library,  # refused in one line, but the line is numpy's, torch's or json's
        "classes": {key: {"count": len(texts), "examples": texts[:EXAMPLES]} for key, texts in sorted(classes.items())},
        "passed": not any(bad.values()),
    }


def accepted(attempts: Attempts, count: int) -> Iterator[int]:
    """Seeds of mutated configs that are accepted, after those that the section of configs has."""
    for seed, outcome in trials(attempts.config, range(COUNTS["configs"], COUNTS["configs"] + 20 * count), batch=50):
        if outcome.kind == "accepted":
            yield seed
            count -= 1
            if not count:
                return


def files(name: str, count: int, folder: Path) -> Figures:
    """A section of mutated input; half of the checkpoints have valid checksums (the even seeds)."""
    attempts = Attempts(folder)
    if name in ("checkpoints", "run_folders", "sweep_folders"):
        attempts.prepare()
    attempt = getattr(attempts, name.removesuffix("s"))
    if name == "trained_configs":
        return judged(name, attempt, accepted(attempts, count), RUNS_MAY)
    # a sweep whose run cannot go on ends with exit code 1, and says why in its table; environments fail with exit code 1
    allowed = {"sweep_folders": RUNS_MAY, "environments": RUNS_MAY}.get(name, FILES_MAY)
    return judged(name, attempt, range(count), allowed)


# ---- runs that are ended


def sums_of(name: str, count: int, stories: Iterator[lives.Story], shown: Callable[[lives.Story], int]) -> Figures:
    """Sums over the stories of runs, until ``count`` kills or runs are counted."""
    progress, seen = Shown(name, count), []
    for story in stories:
        seen.append(story)
        progress.step(len(story.notes), shown(story))
    names = ("lives", "hangs", "tracebacks", "wrong_codes", "bytes_lost", "unequal_tensors", "unequal_rows")
    sums = {name: sum(getattr(story, name) for story in seen) for name in names}
    where = sum((story.kills for story in seen), Counter[str]())
    return {
        "runs": len(seen),
        "kills": sum(where.values()),
        "kills_by_signal_and_stage": dict(sorted(where.items())),
        "runs_by_algorithm": dict(Counter(story.algo for story in seen)),
        **sums,
        "notes": [note for story in seen for note in story.notes][:40],
        "passed": not any(sums[name] for name in names if name != "lives"),
    }


class Straights(dict[str, lives.Straight]):
    """The run of each algorithm that nothing happens to, trained when it is first needed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, algo: str) -> lives.Straight:
        self[algo] = lives.Straight.train(algo, self._folder / f"{algo}_straight")
        return self[algo]


def kills(name: str, count: int, folder: Path) -> Figures:
    """Kills at random times over the algorithms in turn, each run resumed to its end and compared."""

    def stories() -> Iterator[lives.Story]:
        left, straights = count, Straights(folder)
        for seed, algo in enumerate(itertools.cycle(lives.ALGORITHMS)):
            if left <= 0:
                return
            story = lives.killed_story(algo, folder / f"{algo}_{seed}", straights[algo], seed, min(left, 4))
            left -= sum(story.kills.values())
            yield story

    return sums_of(name, count, stories(), lambda story: sum(story.kills.values()))


def bad_disks(name: str, count: int, folder: Path) -> Figures:
    """Disks that fill while a run writes to them, or on which each sync and rename takes up to 0.15 s, with two kills.

    A full disk ends the run in one line; it goes on when there is room again.
    """
    mounted = may_mount(folder / "mounted")

    def stories() -> Iterator[lives.Story]:
        straights = Straights(folder)
        for seed, algo in zip(range(count), itertools.cycle(("dqn", "ppo", "rlpd", "mbpo"))):
            place, straight = folder / f"{algo}_{seed}", straights[algo]
            if name == "full_disks":
                yield lives.full_disk_story(algo, place, straight, seed, mounted)
            else:
                yield lives.slow_disk_story(algo, place, straight, seed)

    figures = sums_of(name, count, stories(), lambda story: 1)
    how = "a small file system" if mounted else "a limit on the size of files"
    return {**({"disk": how} if name == "full_disks" else {}), **figures}


RUNS = {"kills": kills, "full_disks": bad_disks, "slow_disks": bad_disks}


def section(name: str, count: int, *, scratch: Path | None) -> Figures:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        began = time.monotonic()
        figures = RUNS.get(name, files)(name, count, Path(folder))
        return {"section": name, "seconds": round(time.monotonic() - began, 1), **figures}


def recorded(name: str, count: int) -> bool:
    """Whether this commit has recorded the section with as many cases."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads((RESULTS / f"{name}.json").read_text())
        facts = facts_of_the_machine()
        return bool(known["git"] == facts["git"] and known["asked"] >= count)
    return False


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=COUNTS, default=list(COUNTS), metavar="SECTION", help=", ".join(COUNTS)
    )
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the cases (default: 1, all of them)")
    parser.add_argument("--continue", action="store_true", dest="go_on", help="leave out what this commit has recorded")
    parser.add_argument(
        "--scratch", type=Path, help="where runs and files are made (default: the system's temporary folder)"
    )
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for algo in ALGORITHMS:  # imported once: every case is a fork of this process
        get_algorithm_spec(algo)
    passed = True
    for name in args.only:
        count = max(1, round(COUNTS[name] * args.scale))
        if args.go_on and recorded(name, count):
            print(f"{name}: recorded already")
            continue
        try:
            figures = {"asked": count, **section(name, count, scratch=args.scratch), **facts_of_the_machine()}
        except KeyboardInterrupt:
            print(
                f"\n{name} was interrupted; what was recorded before stays, and --continue goes on there",
                file=sys.stderr,
            )
            return 130
        show(figures)
        passed &= figures["passed"]
        if not args.no_record and args.scale >= 1:
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if passed else 1


def show(figures: Figures) -> None:
    """The figures in a few lines."""
    plain = {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and name not in ("asked", "passed")
    }
    counts = {**figures.get("outcomes", {}), **plain}
    verdict = "passed" if figures["passed"] else "NOT PASSED"
    print(f"{figures['section']}: {verdict}; {', '.join(f'{name} {value}' for name, value in counts.items())}")
    for key, found in figures.get("classes", {}).items():
        print(f"  {found['count']:4} {key} | {found['examples'][0][:200]}")
    stages = [f"{count} {where}" for where, count in figures.get("kills_by_signal_and_stage", {}).items()]
    if stages:
        print(f"       {', '.join(stages)}")
    for note in figures.get("notes", [])[:10]:
        print(f"       {note[:300]}")


if __name__ == "__main__":
    sys.exit(main())
