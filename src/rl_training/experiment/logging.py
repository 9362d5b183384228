"""Where numbers go: metrics.jsonl, TensorBoard event files, metrics.csv, Weights & Biases, and the terminal."""

from __future__ import annotations

import csv
import json
import math
import os
import struct
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rl_training.experiment.config import ConfigError, TrainConfig
from rl_training.experiment.files import write_durably

if TYPE_CHECKING:
    from rl_training.experiment.runs import RunContext


class Logger:
    """Hears every line of metrics of a run. Override what you need, or give any object with ``write``."""

    def open(self, context: RunContext, config: TrainConfig, resume_step: int | None) -> None:
        """The run begins; or goes on from ``resume_step``, and what was written after that step will be written again."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics at an environment step: training's at every log interval, an evaluation's at its own."""

    def close(self) -> None:
        """The run has ended, whichever way."""


class Loggers:
    """What a run writes to: metrics.jsonl always, which resuming and reports read; the config's loggers; and one's own."""

    def __init__(
        self, context: RunContext, config: TrainConfig, resume_step: int | None, more: Sequence[Logger] = ()
    ) -> None:
        kinds: dict[str, Callable[[], Any]] = {
            "tensorboard": lambda: EventFile(context.tensorboard_dir),
            "csv": lambda: CSVFile(context.run_dir / "metrics.csv", resume_step),
            "wandb": lambda: WandB(context, config),
        }
        self._all: list[Any] = [MetricsFile(context.metrics_path, resume_step)]
        self._all += [kinds[name]() for name in dict.fromkeys(config.loggers)]
        for logger in more:
            if hasattr(logger, "open"):
                logger.open(context, config, resume_step)
            self._all.append(logger)

    @staticmethod
    def check(config: TrainConfig, more: Sequence[Any] = ()) -> None:
        """Refuse, before anything is made, what could not be written to."""
        if "wandb" in config.loggers and find_spec("wandb") is None:
            raise ConfigError([(("loggers",), "wandb is not installed: pip install 'rl_training[wandb]'")])
        for logger in more:
            if not callable(getattr(logger, "write", None)):
                raise ValueError(f"a logger needs write(step, values), and {type(logger).__name__} has none")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for logger in self._all:
            logger.write(step, values)

    def close(self) -> None:
        for logger in self._all:
            if hasattr(logger, "close"):
                logger.close()


class MetricsFile:
    """One JSON object per line. Lines after ``resume_step`` belong to a part of the run that is being done again: they go."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        if resume_step is not None and path.exists():
            kept = [line for line in path.read_text().splitlines() if _step_of(line) <= resume_step]
            path.write_text("".join(line + "\n" for line in kept))
        self._file = open(path, "a")  # noqa: SIM115

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps(_row(step, values)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _row(step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """A line of metrics; numbers that are not finite are None."""
    clean = {k: (v if math.isfinite(v) else None) if isinstance(v, float) else v for k, v in values.items()}
    return {"step": step, "time": round(time.time(), 3), **clean}


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line cut short by a crash


class CSVFile:
    """A table with a column for every metric there has been; where a row has none, the cell is empty. A new metric is a new last
    column, for which the file is written anew. Rows after ``resume_step`` go, as those of metrics.jsonl do."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        self._columns: list[str] = []
        rows = self._read() if resume_step is not None and path.exists() else []
        self._rewrite([row for row in rows if int(row["step"]) <= (resume_step or 0)])

    def _read(self) -> list[dict[str, str]]:
        with open(self._path, newline="") as file:
            header, *rows = [*csv.reader(file)] or [[]]
        self._columns = header
        whole = [dict(zip(header, row)) for row in rows if len(row) == len(header)]
        return [row for row in whole if row.get("step", "").isdigit()]  # the last may have been cut short by a crash

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = StringIO()
        if self._columns:
            table = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        write_durably(self._path, [text.getvalue().encode()])
        self._file = open(self._path, "a", newline="")  # noqa: SIM115

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = _row(step, values)
        new = [name for name in row if name not in self._columns]
        if new:
            self._file.close()
            rows = self._read()
            self._columns = [*self._columns, *new]
            self._rewrite(rows)
        csv.DictWriter(self._file, self._columns, restval="", lineterminator="\n").writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class WandB:
    """Weights & Biases; a resumed run goes on under the same id. Whatever goes wrong there is said once, and training goes on.

    The step is a metric like others, by which charts are drawn: wandb's own counter can never go back, as a resumed run does.
    """

    def __init__(self, context: RunContext, config: TrainConfig) -> None:
        self._run: Any = None
        try:
            import wandb

            from rl_training.experiment import runs  # brings torch, which reports do without

            name = runs.read_metadata(context).get("wandb_id") or uuid.uuid4().hex
            runs.write_metadata(context, {"wandb_id": name})
            self._wait_for_a_folder_of_its_own(context.run_dir / "wandb", name)
            self._run = wandb.init(
                id=name,
                resume="allow",
                name=context.run_id,
                project=config.wandb_project or os.environ.get("WANDB_PROJECT") or "rl_training",
                dir=context.run_dir,
                config=config.plain(),
                tags=list(config.tags),
                settings=wandb.Settings(console="off", silent=True),
            )
            self._run.define_metric("*", step_metric="step")
        except Exception as error:
            self._give_up(error)

    @staticmethod
    def _wait_for_a_folder_of_its_own(folder: Path, name: str) -> None:
        """Wandb names a folder by the second, and a run resumed within the same second would overwrite its first part."""
        while any(folder.glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-{name}")):
            time.sleep(0.05)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is not None:
            try:
                self._run.log({**values, "step": step})
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        if self._run is not None:
            try:
                self._run.finish()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._run = None
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(f"nothing more goes to wandb: {reason}", stacklevel=4)


class EventFile:
    """TensorBoard scalars, written by hand: the format is small, and the library that writes it costs a second to import."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}", "wb")  # noqa: SIM115
        self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [(k, float(v)) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)]
        summary = b"".join(_bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", x)) for name, x in scalars)
        self._record(_double(1, time.time()) + b"\x10" + _varint(step) + _bytes(5, summary))
        self._file.flush()

    def _record(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))

    def close(self) -> None:
        self._file.close()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


LINE_EVERY = 5.0  # seconds between lines where there is no terminal


def short(value: float) -> str:
    """Four significant figures, as a person would write them."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def spread(mean: float, deviation: float) -> str:
    """``mean ± deviation``, with as many decimals as their scale needs: 487.3 ± 21.4, 0.955 ± 0.012."""
    return " ± ".join(_alike(mean, deviation))


def figure(value: float) -> str:
    """A single result, in the digits of ``spread``."""
    return _alike(value, 0.0)[0]


def _alike(mean: float, deviation: float) -> tuple[str, str]:
    scale = max(abs(mean), abs(deviation))
    if not math.isfinite(scale) or 0 < scale < 1e-4:
        return f"{mean:.3g}", f"{deviation:.2g}"
    if scale >= 10_000:
        return f"{mean:,.0f}", f"{deviation:,.0f}"
    three, two, six = _decimals(scale, 3), _decimals(abs(deviation), 2), _decimals(scale, 6)
    decimals = min(max(1, three, two), six)
    while decimals > 1 and round(mean, decimals - 1) == mean and round(deviation, decimals - 1) == deviation:
        decimals -= 1  # 9.0 ± 1.0, where that is exactly so
    return f"{mean:.{decimals}f}", f"{deviation:.{decimals}f}"


def _decimals(value: float, figures: int) -> int:
    """How many decimals show so many significant figures of a number."""
    return figures - 1 - math.floor(math.log10(value)) if value > 0 else 1


def clock(seconds: float) -> str:
    """A time span as h:mm:ss; what is over takes no time."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """A live bar in a terminal, a line every few seconds elsewhere, or nothing."""

    def __init__(
        self,
        mode: str,
        *,
        title: str,
        total: int,
        start: int,
        stream: TextIO | None = None,
        unit: str = "steps",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = stream if stream is not None else sys.stderr
        self._mode = mode if mode != "auto" else "bar" if can_redraw(self._out) else "lines"
        self._now, self._began = now, now()
        self._total, self._start, self._unit = total, start, unit
        self._title, self._notes = title, {}  # type: str, dict[str, str]
        self._at, self._at_time = start, self._began  # where the run was when it last said so
        self._last_line, self._line_step = -math.inf, start
        self._live: Any = None
        if self._mode == "bar":
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._out)
            self._live = Live(
                console=console, get_renderable=self._drawn, refresh_per_second=4, vertical_overflow="crop"
            )
            self._live.start()

    def note(self, **notes: str) -> None:
        """What to show beside the bar: ``episodes``, ``evaluation``."""
        self._notes.update(notes)

    def say(self, message: str) -> None:
        """One line that stays."""
        if self._live is not None:
            self._live.console.print(message, highlight=False, markup=False)
        elif self._mode == "lines":
            print(message, file=self._out, flush=True)

    def tick(self, step: int) -> None:
        """Called often: where the run is. The bar is redrawn a few times a second, by a thread of its own."""
        self._at, self._at_time = step, self._now()

    def log(self, step: int) -> None:
        """A line, unless the last one was printed a moment ago; the last step always has one."""
        if step >= self._total:
            self._last_line = -math.inf
        self._line(step, self._text(step))

    def stage(self, name: str, done: int, total: int, step: int) -> None:
        """Work between steps: shown beside the bar, or as lines; gone when it is done."""
        text = f"{name} {done:,}/{total:,}"
        if done >= total:
            self._notes.pop("stage", None)
        else:
            self._notes["stage"] = text
        if done:
            self._line(step, text)
        self.tick(step)

    def _line(self, step: int, text: str) -> None:
        now = self._now()
        if self._mode == "lines" and now - self._last_line >= LINE_EVERY:
            self._last_line, self._line_step = now, step
            print(f"{self._title}  {text}", file=self._out, flush=True)

    def _parts(self, step: int, now: float) -> list[str]:
        """Steps, speed, time, and the notes."""
        elapsed = max(now - self._began, 1e-9)
        rate = (step - self._start) / elapsed
        parts = [f"{step:,}/{self._total:,}"]
        if rate > 0:
            left = (self._total - step) / rate
            parts += [f"{short(rate)} {self._unit}/s", f"{clock(left)} left" if left > 0 else f"took {clock(elapsed)}"]
        return [*parts, *(note for note in tuple(self._notes.values()) if note)]

    def _text(self, step: int) -> str:
        return SEPARATOR.join(self._parts(step, self._now()))

    def _drawn(self) -> Any:
        from rich.text import Text

        width = self._live.console.width if self._live is not None else 80
        title, done, rest = bar_line(self._title, self._parts(self._at, self._at_time), self._at / self._total, width)
        return Text.assemble(
            title, (done[0], "green"), (done[1], "bright_black"), rest, no_wrap=True, overflow="ellipsis"
        )

    def close(self, step: int | None = None) -> None:
        """Leave the last state where it can be read."""
        self._notes.pop("stop", None)
        if step is not None:
            self.tick(step)
            if step > self._line_step:
                self._last_line = -math.inf
                self._line(step, self._text(step))
        if self._live is not None:
            self._live.stop()
            self._live = None


SEPARATOR = " · "
LONGEST_BAR, SHORTEST_BAR = 24, 8


def bar_line(title: str, parts: Sequence[str], share: float, width: int) -> tuple[str, tuple[str, str], str]:
    """Title, the two halves of a bar, and as many of the parts as fit: one line that leaves room for ``^C`` at its end. The bar
    gives way first; then the speed, which stands second; then the parts at the end."""
    room, kept = width - 4 - len(title) - 1, list(parts)
    if len(SEPARATOR.join(kept)) > room and len(kept) > 1:
        kept.pop(1)
    while len(SEPARATOR.join(kept)) > room and len(kept) > 1:
        kept.pop()
    text = SEPARATOR.join(kept)
    cells = min(LONGEST_BAR, room - len(text) - 1)
    if cells < SHORTEST_BAR:
        return f"{title} ", ("", ""), text
    filled = int(cells * min(max(share, 0.0), 1.0))
    return f"{title} ", ("━" * filled, "─" * (cells - filled)), f" {text}"


def can_redraw(stream: Any) -> bool:
    """Whether this is a terminal that can move its cursor."""
    terminal = hasattr(stream, "isatty") and stream.isatty()
    return terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
