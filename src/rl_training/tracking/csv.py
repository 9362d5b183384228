"""Metrics as a CSV table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rl_training.base.errors import reason
from rl_training.base.files import write_durably
from rl_training.tracking.jsonl import metrics_row

__all__ = ["CSVFile"]


class CSVFile:
    """A table with a column for each metric; a cell is empty where a line had no such metric.

    A metric that appears later becomes a new last column, for which the file is rewritten. Rows after ``resume_step``
    are removed, as in metrics.jsonl.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        self._columns: list[str] = []
        rows = self._read() if resume_step is not None and path.exists() else []
        self._rewrite([row for row in rows if int(row["step"]) <= (resume_step or 0)])

    def _read(self) -> list[dict[str, str]]:
        try:
            with open(self._path, newline="") as file:
                header, *rows = [*csv.reader(file)] or [[]]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{self._path} is not the table of a run: {reason(error)}") from None
        self._columns = header
        whole = [dict(zip(header, row)) for row in rows if len(row) == len(header)]
        return [row for row in whole if row.get("step", "").isdecimal()]  # the last may have been cut short by a crash

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = StringIO()
        if self._columns:
            table = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        write_durably(self._path, [text.getvalue().encode()])
        self._file = open(self._path, "a", newline="")  # noqa: SIM115

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = metrics_row(step, values)
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
