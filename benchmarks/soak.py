"""A simulated week: a thousand resumes of small runs through stops, kills, full and slow disks, clock jumps and rotated logs.

python benchmarks/soak.py                     a week in some minutes, recorded in benchmarks/results/hardening/soak.json
python benchmarks/soak.py --days 1 --no-record

Time goes by in slices of ten minutes, by a clock of its own. Each slice resumes a run, something happens to it, and the process that all of
it happens in must not grow: memory, descriptors, threads and files are counted every day. Each run ends as one that nothing happened to.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from fuzzing import lives
from fuzzing.disks import limit_files, slow_disk
from learning import facts_of_the_machine
from rl_training import Callback
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.runtime.workflows import resume_training
from toys import StopAt, same_end

RESULTS = Path(__file__).parent / "results" / "hardening"
SLICE = 600  # seconds of the week that go by with each resume
DAY = 86_400 // SLICE  # slices
STEPS = 24  # environment steps of a slice
RUNS = ("dqn", "ppo", "sac", "dqn", "rlpd", "ppo", "mbpo")  # one for each day
EVENTS = {  # what happens in a slice: its weight
    "stop": 50, "kill": 15, "terminate": 10, "full disk": 7, "slow disk": 5, "clock forward": 4, "clock back": 4, "log rotated": 5,
}  # fmt: skip
MOST = {"rss_mb": 48.0, "descriptors": 2, "threads": 1}  # growth from the end of the first day to the end of the last
REAL_TIME = time.time


class WeekClock:
    """The time of day of the simulated week, which jumps."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return REAL_TIME() + self.offset


class Midway(Callback):
    """Does something once, in the middle of a slice."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._updates = act, 0

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self._updates += 1
        if self._updates == 5:
            self._act()


class Soak:
    """The week: slices of one run after the other, each run compared at its end."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._rng, self._clock = folder, random.Random(seed), WeekClock()
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        time.time = self._clock

    def day(self, number: int, slices: int) -> dict[str, Any]:
        """One run from its start to its end, ``slices`` resumes at the least; what the process and the folder hold after it."""
        algo = RUNS[number % len(RUNS)]
        folder = self._folder / f"day_{number}"
        total = STEPS * slices
        size = {"total_timesteps": total, "checkpoint_interval": 8, "log_interval": 8, "eval_interval": total // 4}
        straight = lives.Straight.train(algo, self._folder / f"day_{number}_straight", **size)
        lives.config_for(algo, folder, **size)
        before = Counter(self.counts)
        self._begin(algo, folder)
        done = 0
        while done < slices:
            self._slice(algo, folder, min(total - 1, STEPS * (done + 1)))
            done += 1
            self._clock.offset += SLICE
            show(f"day {number + 1}, {algo}: {done} of {slices}")
        resume_training(lives.run_dir(folder, algo))
        self._compare(algo, folder, straight)
        return {"day": number + 1, "algo": algo, **measured(lives.run_dir(folder, algo)), **(self.counts - before)}

    def _begin(self, algo: str, folder: Path) -> None:
        from rl_training import load_config

        config = load_config(folder / f"{algo}.yaml")
        get_algorithm_spec(algo).train(config, run_suffix="life", callbacks=[StopAt(1)])

    def _slice(self, algo: str, folder: Path, until: int) -> None:
        """Resume the run up to a step, while something happens."""
        event = self._rng.choices(list(EVENTS), list(EVENTS.values()))[0]
        run = lives.run_dir(folder, algo)
        self.counts["resumes"] += 1
        self.counts[event] += 1
        if event in ("kill", "terminate", "full disk", "slow disk"):
            return self._elsewhere(event, algo, folder, until)
        acts: dict[str, Callable[[], None]] = {
            "clock forward": lambda: self._jump(self._rng.choice([3_600, 86_400, 40 * 86_400])),
            "clock back": lambda: self._jump(-self._rng.choice([3_600, 86_400, 40 * 86_400])),
            "log rotated": lambda: rotate(run),
        }
        callbacks: list[Callback] = [StopAt(until)]
        resume_training(run, callbacks=[*callbacks, Midway(acts[event])] if event in acts else callbacks)

    def _jump(self, seconds: float) -> None:
        self._clock.offset += seconds

    def _elsewhere(self, event: str, algo: str, folder: Path, until: int) -> None:
        """The slice in a process of its own, which is killed, told to end, or has a bad disk."""
        seed = self._rng.randrange(1 << 30)
        run = lives.run_dir(folder, algo)
        largest = max(path.stat().st_size for path in run.rglob("*") if path.is_file())
        bad = {"full disk": lambda: limit_files(seed % largest), "slow disk": lambda: slow_disk(seed, 0.02)}

        def body() -> int:
            resume_training(run, callbacks=[StopAt(until)])
            return 0

        known = lives.saved_steps(folder)
        life = lives.Life(folder, algo, bad.get(event), body)
        try:
            code = None
            if event in ("kill", "terminate"):
                code = life.ended(self._rng.uniform(0.0, 0.25))
                if code is None:
                    os.kill(life.pid, signal.SIGKILL if event == "kill" else signal.SIGTERM)
            if (life.ended(lives.PATIENCE) if code is None else code) is None:
                self.counts["hangs"] += 1
                self.notes.append(f"{algo}: hangs after {event}")
        finally:
            life.kill()
        if max(lives.saved_steps(folder), default=0) < max(known):
            self.counts["lost"] += 1
            self.notes.append(f"{algo}: a checkpoint that had been saved is gone after {event}")

    def _compare(self, algo: str, folder: Path, straight: lives.Straight) -> None:
        run = lives.run_dir(folder, algo)
        try:
            same_end(straight.checkpoint, newest_checkpoint(run)[1])
        except AssertionError as error:
            self.counts["unequal"] += 1
            self.notes.append(f"{algo}: {' '.join(str(error).split())[:300]}")
        kept = {lives.row_key(row) for path in run.glob("metrics.jsonl*") for row in lives.rows(run, name=path.name)}
        missing = [row for row in straight.rows if lives.row_key(row) not in kept]
        if missing:
            self.counts["rows_lost"] += len(missing)
            self.notes.append(f"{algo}: {len(missing)} rows are in no log, such as {json.dumps(missing[0])[:150]}")


def rotate(run: Path) -> None:
    """Move the log away, as logrotate does, whatever writes to it."""
    number = len(list(run.glob("metrics.jsonl.*"))) + 1
    if (run / "metrics.jsonl").exists():
        (run / "metrics.jsonl").rename(run / f"metrics.jsonl.{number}")


def measured(run: Path) -> dict[str, Any]:
    """What this process holds, and how many files the run has."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    files = [path for path in run.rglob("*") if path.is_file()]
    events = sum(path.parent.name == "tensorboard" for path in files)
    return {
        "rss_mb": round(resident / 2**20, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files": len(files) - events,
        "event_files": events,
        "partial_files": sum(path.name.endswith(".partial") for path in files),
        "checkpoints_mb": round(sum(path.stat().st_size for path in run.glob("checkpoints/*")) / 2**20, 2),
    }


def show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text:60}", end="\r", file=sys.stderr, flush=True)


def judged(days: list[dict[str, Any]], soak: Soak) -> dict[str, Any]:
    """Growth over the week, and whether it is bounded and nothing was lost."""
    growth = {name: round(days[-1][name] - days[0][name], 1) for name in MOST}
    wrong = {name: soak.counts[name] for name in ("hangs", "lost", "unequal", "rows_lost")}
    wrong["partial_files"] = sum(day["partial_files"] for day in days)
    passed = not any(wrong.values()) and all(growth[name] <= most for name, most in MOST.items())
    return {
        "growth": growth,
        "most_growth": MOST,
        **wrong,
        "passed": passed,
        "totals": dict(soak.counts),
        "notes": soak.notes[:40],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=7, help="of the week, a run each (default: 7)")
    parser.add_argument(
        "--slices", type=int, default=DAY, help=f"resumes a day (default: {DAY}, one every ten minutes)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    began, facts = time.monotonic(), facts_of_the_machine()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        soak, days = Soak(Path(folder), args.seed), []
        try:
            for number in range(args.days):
                days.append(soak.day(number, args.slices))
                print(", ".join(f"{name} {value}" for name, value in days[-1].items()), flush=True)
        except KeyboardInterrupt:
            print("\ninterrupted: nothing is recorded", file=sys.stderr)
            return 130
        finally:
            time.time = REAL_TIME
    figures = {
        "section": "soak",
        "seconds": round(time.monotonic() - began, 1),
        **judged(days, soak),
        "days": days,
        **facts,
    }
    print(
        f"{'passed' if figures['passed'] else 'NOT PASSED'} in {figures['seconds']:.0f} s: growth {figures['growth']}, totals {figures['totals']}"
    )
    for note in soak.notes[:10]:
        print(f"  {note}")
    if not args.no_record and args.days == 7 and args.slices == DAY:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
