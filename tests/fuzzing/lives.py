"""Runs that are killed, run out of disk or write slowly, go on, and are compared with a run that nothing happened to.

A life is one process of a run: a fork that trains or resumes by the command line until it ends or is ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import mmap
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.disks import limit_files, slow_disk, small_disk
from rl_training import cli
from rl_training.experiment.checkpointing import CheckpointError
from rl_training.experiment.runs import newest_checkpoint
from toys import assert_same, same_end, tiny_config

__all__ = [
    "ALGORITHMS",
    "PATIENCE",
    "Life",
    "Story",
    "Straight",
    "config_for",
    "full_disk_story",
    "killed_story",
    "row_key",
    "rows",
    "run_dir",
    "saved_steps",
    "slow_disk_story",
    "tell",
]

ASKING = (signal.SIGINT, signal.SIGTERM)  # signals that ask a run to save and end
PATIENCE = 120.0  # seconds in which a life ends by itself, or after a signal that asks it to
# eight algorithms, with every kind of stage: rollouts, replay, pretraining (rlpd, gail), fits of a model between steps (mbpo, pets) and before
# the first one (mopo), auxiliary phases (ppg), plans (pets)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 2400},
    "ppg": {"total_timesteps": 1200},
    "gail": {"total_timesteps": 800, "bc_updates": 150},
    "dqn": {"total_timesteps": 900},
    "rlpd": {"total_timesteps": 150, "offline_pretrain_updates": 150},
    "mbpo": {"total_timesteps": 200},
    "mopo": {"total_timesteps": 200, "model_updates": 200},
    "pets": {"total_timesteps": 150},
}
TIMES = ("time", "seconds", "steps_per_second")  # of rows of metrics.jsonl: no two runs have the same


def config_for(algo: str, folder: Path, **changes: Any) -> Path:
    """The config of a small run that saves and evaluates often, as a file."""
    often = {"checkpoint_interval": 16, "log_interval": 16, "eval_interval": 64, "compile": False}
    config = tiny_config(algo, folder, **{**often, **ALGORITHMS.get(algo, {}), **changes})
    path = folder / f"{algo}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config.plain()))
    return path


# ---- one life


class Life:
    """The process of a run, which trains or resumes in ``folder`` by the command line, or by ``body``; ``prepare`` is called in it first."""

    def __init__(
        self, folder: Path, algo: str, prepare: Callable[[], None] | None = None, body: Callable[[], int] | None = None
    ) -> None:
        self.folder, self.algo = folder, algo
        self._log = folder.with_name(f"{folder.name}.log")  # beside it: the folder may be a disk that is full
        self.began = time.monotonic()
        self._stage = mmap.mmap(-1, 64)
        self.saved_before = saved_steps(folder)
        self.resumed = bool(self.saved_before)
        words = ["resume", run_dir(folder, algo)] if self.resumed or body else self._anew()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(body or (lambda: cli.main([str(word) for word in words])), prepare)

    def _anew(self) -> list[Any]:
        """Nothing was saved: what the last life left is removed, as a worker of a sweep would."""
        shutil.rmtree(run_dir(self.folder, self.algo), ignore_errors=True)
        return ["train", "--config", self.folder / f"{self.algo}.yaml", "--run-suffix", "life"]

    def _live(self, body: Callable[[], int], prepare: Callable[[], None] | None) -> None:
        code = 70
        try:
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # until the command has begun
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            warnings.simplefilter("ignore")
            _note_stages(self._stage)
            if prepare is not None:
                prepare()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    @property
    def stage(self) -> str:
        return self._stage[:].rstrip(b"\0").decode() or "starting"

    def ended(self, seconds: float) -> int | None:
        """The exit code (a signal's number, negative), or None if it still lives after ``seconds``."""
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= until:
                return None
            time.sleep(0.002)

    def kill(self) -> None:
        """End the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    @property
    def words(self) -> str:
        """What it printed last."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-1500:]
        return ""


def _note_stages(stage: mmap.mmap) -> None:
    """Let the run note in shared memory what it is doing."""
    from rl_training.runtime import saving
    from rl_training.runtime.evaluator import Evaluator
    from rl_training.runtime.run import Run

    def note(text: str) -> None:
        stage[:] = text.encode()[:64].ljust(64, b"\0")

    def during(name: str, call: Any) -> Any:
        @functools.wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            before = bytes(stage[:])
            note(name)
            try:
                return call(*args, **kwargs)
            finally:
                stage[:] = before

        return noted

    def show_stage(self: Any, text: str, active: bool) -> None:
        note("fit" if active else "training")
        shown(self, text, active)

    def show_phase(self: Any, name: str, done: int, total: int) -> None:
        note("pretraining" if done < total else "training")
        phase(self, name, done, total)

    shown, phase = Run.show_stage, Run.stage
    Run.show_stage, Run.stage = show_stage, show_phase  # type: ignore[method-assign]
    Evaluator.evaluate = during("evaluation", Evaluator.evaluate)  # type: ignore[method-assign]
    saving.save_checkpoint = during("saving", saving.save_checkpoint)
    Run.record_update = _first(Run.record_update, lambda: None if stage[0] else note("training"))  # type: ignore[method-assign]
    Run.collected = _first(Run.collected, lambda: None if stage[0] else note("training"))  # type: ignore[method-assign]


def _first(call: Any, before: Callable[[], None]) -> Any:
    @functools.wraps(call)
    def both(*args: Any, **kwargs: Any) -> Any:
        before()
        return call(*args, **kwargs)

    return both


# ---- what lies on the disk


def run_dir(folder: Path, algo: str) -> Path:
    found = sorted(folder.glob(f"{algo}__*__life"))
    return found[0] if found else folder / f"{algo}__nowhere__life"


def saved_steps(folder: Path) -> dict[int, int]:
    """The checkpoints of the run: their size by step."""
    with contextlib.suppress(OSError):
        paths = list(folder.glob("*__life/checkpoints/step_??????????.ckpt"))
        return {int(path.name[5:15]): path.stat().st_size for path in paths if path.exists()}
    return {}


def rows(run: Path, upto: float = math.inf, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without times."""
    found = []
    for line in (run / name).read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("step", math.inf) <= upto:
                found.append({key: value for key, value in row.items() if key not in TIMES})
    return found


@dataclass
class Straight:
    """The run that nothing happened to: where it lies, and how many seconds it took."""

    run: Path
    seconds: float
    checkpoint: Any
    rows: list[dict[str, Any]]

    @classmethod
    def train(cls, algo: str, folder: Path, **changes: Any) -> Straight:
        config_for(algo, folder, **changes)
        life = Life(folder, algo)
        code = life.ended(600.0)
        if code != 0:
            life.kill()
            raise RuntimeError(f"the straight run of {algo} ended with {code}: {life.words}")
        run = run_dir(folder, algo)
        return cls(run, time.monotonic() - life.began, newest_checkpoint(run)[1], rows(run))


# ---- a story: lives until the run is at its end


@dataclass
class Story:
    """What happened to a run, counted; ``notes`` describe what may not happen."""

    algo: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)  # by signal and stage
    lives: int = 0
    hangs: int = 0
    tracebacks: int = 0
    wrong_codes: int = 0
    bytes_lost: int = 0
    unequal_tensors: int = 0
    unequal_rows: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.algo} seed {self.seed}: {text}")

    def lost(self, folder: Path, straight: Straight, known: dict[int, int]) -> None:
        """Count what was saved and is gone: whole checkpoints, and rows of metrics before the newest one."""
        if not known:
            return
        run = run_dir(folder, self.algo)
        try:
            path, state, _ = newest_checkpoint(run)
        except (CheckpointError, OSError) as error:
            self.bytes_lost += known[max(known)]
            return self.note(f"no checkpoint is whole after a save at {max(known)}: {error}")
        step = int(state.trainer_state["step"])
        if step < max(known):
            self.bytes_lost += known[max(known)]
            self.note(f"{path.name} is the newest, and {max(known)} had been saved")
        found = {row_key(row) for row in rows(run, step)}
        missing = [json.dumps(row) for row in straight.rows if row["step"] < step and row_key(row) not in found]
        if missing:
            self.bytes_lost += sum(map(len, missing))
            self.note(f"{len(missing)} rows before step {step} are gone, such as {missing[0][:150]}")

    def compare(self, folder: Path, straight: Straight) -> None:
        """Compare the end with the straight run's: tensor for tensor, and row for row."""
        run = run_dir(folder, self.algo)
        try:
            same_end(straight.checkpoint, newest_checkpoint(run)[1])
            assert not list(run.glob("checkpoints/.*.partial")), "a partial file is left"
        except (AssertionError, CheckpointError, OSError) as error:
            self.unequal_tensors += 1
            self.note(f"unequal: {' '.join(str(error).split())[:300]}")
        try:
            assert_same(straight.rows, rows(run), "metrics")
        except AssertionError:
            self.unequal_rows += 1
            self.note(f"unequal rows: {_difference(straight.rows, rows(run))}")


def row_key(row: dict[str, Any]) -> tuple[Any, bool]:
    """A row of an evaluation and one of training may have the same step."""
    return row["step"], "eval_return_mean" in row


def _difference(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """The first row in which two files of metrics differ, and in what."""
    for a, b in zip(expected, found):
        if a != b:
            names = sorted(name for name in {*a, *b} if a.get(name, "nothing") != b.get(name, "nothing"))
            return f"step {a['step']} against {b['step']}: " + ", ".join(
                f"{n} {a.get(n)} against {b.get(n)}" for n in names[:3]
            )
    return f"{len(expected)} against {len(found)}"


def tell(
    algo: str,
    folder: Path,
    straight: Straight,
    seed: int,
    *,
    kills: int,
    prepare: Callable[[int], Callable[[], None] | None] = lambda life: None,
    between: Callable[[], None] = lambda: None,
    failing: int = 0,
) -> Story:
    """Let a run live until its end, with at most ``kills`` signals at random times, and compare it.

    ``prepare(n)`` is called in the process of life n, ``between`` before every life but the first; the first ``failing`` lives may
    end with exit code 1.
    """
    rng, story = random.Random(seed), Story(algo, seed)
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
    while True:
        life = Life(folder, algo, prepare(story.lives))
        story.lives += 1
        try:
            struck, code = None, None
            if kills > sum(story.kills.values()):
                code = life.ended(rng.uniform(0.02, max(0.3, straight.seconds * 0.6)))
                if code is None:
                    struck = rng.choice(signals)
                    known, stage = saved_steps(folder), life.stage
                    os.kill(life.pid, struck)
                    story.kills[f"{struck.name} {stage}"] += 1
            code = life.ended(PATIENCE) if code is None else code
        finally:
            life.kill()
        if struck is not None:
            story.lost(folder, straight, known)
        if not _fine(story, life, code, struck, story.lives <= failing):
            return story
        if code == 0 and (struck is None or _complete(folder, algo)):
            story.compare(folder, straight)
            return story
        between()


def _complete(folder: Path, algo: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((run_dir(folder, algo) / "metadata.json").read_text())
        return facts.get("stop_kind") in ("finished", "untrained", "early", "budget")
    return False


def _fine(story: Story, life: Life, code: int | None, struck: signal.Signals | None, failing: bool) -> bool:
    """Judge how a life ended; False where the story cannot go on."""
    if "Traceback (most recent call last)" in life.words:
        story.tracebacks += 1
        story.note(f"traceback: {life.words[-300:]!r}")
        return struck is not None
    if code is None:
        story.hangs += 1
        story.note(
            f"did not end within {PATIENCE:.0f} s ({'after ' + struck.name if struck else 'by itself'}, {life.stage})"
        )
        return struck is not None
    ended = {0} if struck is None or _complete(life.folder, life.algo) else set()
    expected = ended | ({3, 130, -struck} if struck is not None else set())
    if code not in expected and not (failing and code == 1):
        story.wrong_codes += 1
        story.note(
            f"exit code {code} after {struck.name if struck else 'no signal'} in {life.stage}: {life.words[-200:]!r}"
        )
        return struck is not None and story.wrong_codes < 5
    return story.lives < 60


# ---- stories of one kind


def killed_story(algo: str, folder: Path, straight: Straight, seed: int, kills: int) -> Story:
    """A run that is killed ``kills`` times."""
    config_for(algo, folder)
    return tell(algo, folder, straight, seed, kills=kills)


def full_disk_story(algo: str, folder: Path, straight: Straight, seed: int, mounted: bool) -> Story:
    """A run whose disk fills in its first two lives, at a size drawn at random, and has room after that."""
    rng = random.Random(seed)
    used = sum(path.stat().st_size for path in straight.run.parent.rglob("*") if path.is_file())
    largest = max(path.stat().st_size for path in straight.run.rglob("*") if path.is_file())
    if not mounted:
        config_for(algo, folder)
        limit = rng.randint(largest // 4, largest)
        return tell(
            algo,
            folder,
            straight,
            seed,
            kills=0,
            failing=2,
            prepare=lambda n: (lambda: limit_files(limit)) if n < 2 else None,
        )
    with small_disk(folder, rng.randint(used // 3, used)) as grow:
        config_for(algo, folder)
        between = iter([lambda: None, grow])
        return tell(algo, folder, straight, seed, kills=0, failing=2, between=lambda: next(between, lambda: None)())


def slow_disk_story(algo: str, folder: Path, straight: Straight, seed: int) -> Story:
    """A run on a disk whose syncs and renames take up to 0.15 s, killed twice."""
    config_for(algo, folder, checkpoint_interval=ALGORITHMS[algo]["total_timesteps"] // 9)
    return tell(algo, folder, straight, seed, kills=2, prepare=lambda n: lambda: slow_disk(seed + n, 0.15))
