"""Trials: a call in a process of its own, and what came of it.

The libraries are loaded once. A fork of this process makes a batch of trials and reports each through a pipe, so that a hang, a crash or
an exhausted memory ends one trial and is counted, whatever library it happened in.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import functools
import io
import json
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import rl_training
from rl_training import cli

PACKAGE = Path(rl_training.__file__).parent
CANARIES = Path(__file__).parent / "canaries"  # modules that nobody may import: each notes that it was
CANARY = "canary_in_a_file"  # the name of such a module
NOTE = "RL_TRAINING_CANARY"  # the environment variable that says where it notes it
BAD = ("traceback", "hang", "died", "executed", "unclear", "harm")
MEMORY = 3 << 30  # bytes that a trial may take beyond what is mapped when it begins
GRACE = 2.0  # seconds in which a trial that took too long notes where it was
Case = TypeVar("Case")


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    accepted: it succeeded. refused: one line, exit code 2. failed: one line, exit code 1. stopped: exit code 3 or 130.
    traceback, hang, died (by a signal, or out of memory), executed (a canary was imported), unclear (no line, or several), harm (what the
    trial itself looked for): none of these may happen.
    """

    kind: str
    text: str = ""  # the line, or the end of the traceback
    planned: bool = (
        True  # whether the package raised the error itself; otherwise a library did, and its text is the line
    )

    @property
    def bad(self) -> bool:
        return self.kind in BAD


def command(*words: Any) -> Outcome:
    """The outcome of ``rl-training`` with these arguments, in this process."""
    said, printed, errors = io.StringIO(), io.StringIO(), []
    complain = cli._complain

    def remember(error: Exception, code: int) -> int:
        errors.append(error)
        return complain(error, code)

    cli._complain = remember
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = cli.main([str(word) for word in words])
    except BaseException as error:
        return Outcome("traceback", ending(error))
    finally:
        cli._complain = complain
    return _judged(code, said.getvalue(), all(map(planned, errors)))


def _judged(code: int, said: str, meant: bool) -> Outcome:
    if "Traceback (most recent call last)" in said:
        return Outcome("traceback", said[-600:])
    lines = [line for line in said.splitlines() if line.startswith("rl-training: error: ")]
    if code == 0:
        return Outcome("accepted")
    if code in (3, 130):
        return Outcome("stopped", said[-200:])
    if code not in (1, 2) or len(lines) != 1:
        return Outcome("unclear", f"exit code {code}: {said[-400:]!r}")
    return Outcome("refused" if code == 2 else "failed", lines[0].removeprefix("rl-training: error: "), meant)


def ending(error: BaseException) -> str:
    """An exception as ``file:line: Type: text``, by the last line of the package that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}: " if inside else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def planned(error: BaseException) -> bool:
    """Whether a ``raise`` of the package made the error, or the operating system, which names the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].lineno in _raises(frames[-1].filename)


@functools.cache
def _raises(filename: str) -> frozenset[int]:
    """The lines of the package's file on which a ``raise`` stands."""
    if not Path(filename).is_relative_to(PACKAGE):
        return frozenset()
    nodes = (node for node in ast.walk(ast.parse(Path(filename).read_text())) if isinstance(node, ast.Raise))
    return frozenset(line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def trial(attempt: Callable[[Case], Outcome], case: Case, *, seconds: float = 60.0) -> Outcome:
    """The outcome of one trial."""
    return next(iter(trials(attempt, [case], seconds=seconds)))[1]


def trials(
    attempt: Callable[[Case], Outcome], cases: Iterable[Case], *, seconds: float = 60.0, batch: int = 20
) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome, in order; ``batch`` of them share a process. Longer than ``seconds`` is a hang."""
    waiting = list(cases)
    while waiting:
        done = 0
        for outcome in _batch(attempt, waiting[:batch], seconds):
            yield waiting[done], outcome
            done += 1
        del waiting[:done]


def _batch(attempt: Callable[[Case], Outcome], cases: list[Case], seconds: float) -> Iterator[Outcome]:
    """Outcomes of the first cases; fewer than all where one of them ended the process."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        ours, theirs = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _child(attempt, cases, seconds, theirs, notes)
        os.close(theirs)
        try:
            with open(ours, "rb", buffering=0) as pipe:
                yield from _outcomes(pipe, len(cases), seconds, notes)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _outcomes(pipe: Any, count: int, seconds: float, notes: Path) -> Iterator[Outcome]:
    """What the child reports, and at last a hang where it is silent too long, or a death where it is gone."""
    rest = b""
    while count:
        if not select.select([pipe], [], [], seconds + GRACE)[0]:
            yield Outcome("hang", _stack(notes))
            return
        piece = pipe.read(1 << 16)
        if not piece:
            yield Outcome("died", _stack(notes))
            return
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            count -= 1
            yield Outcome(**json.loads(line))


def _stack(notes: Path) -> str:
    """Where the process was when the time was over, or when it crashed: the innermost lines of the package."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in (notes / "stack").read_text().splitlines() if str(PACKAGE) in line]
        return "; ".join(line.replace(str(PACKAGE), "rl_training") for line in lines[:3])
    return ""


def _child(attempt: Callable[[Case], Outcome], cases: list[Case], seconds: float, pipe: int, notes: Path) -> None:
    """Make the trials, a line of JSON for each, and end."""
    try:
        os.setpgid(0, 0)
        _confine(notes)
        with open(notes / "stack", "w") as stack, open(pipe, "w") as report:
            faulthandler.enable(stack)
            for case in cases:
                (notes / "canary").unlink(missing_ok=True)
                faulthandler.dump_traceback_later(seconds, file=stack)
                outcome = _careful(attempt, case)
                faulthandler.cancel_dump_traceback_later()
                if (notes / "canary").exists():
                    outcome = Outcome("executed", f"a module named by a file was imported; {outcome.text}")
                report.write(json.dumps(asdict(outcome)) + "\n")
                report.flush()
    finally:
        os._exit(0)


def _confine(notes: Path) -> None:
    """Bound the memory, and put the canaries where an import finds them."""
    if Path("/proc/self/statm").exists():
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    os.environ[NOTE] = str(notes / "canary")
    sys.path.insert(0, str(CANARIES))
    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)


def _careful(attempt: Callable[[Case], Outcome], case: Case) -> Outcome:
    try:
        return attempt(case)
    except BaseException as error:
        return Outcome("traceback", ending(error))
