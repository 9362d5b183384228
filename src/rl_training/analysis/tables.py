"""Tables of results as text, markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from rl_training.tracking.figures import short

__all__ = ["TableRow", "as_csv", "as_json", "as_markdown", "cells", "columns", "probability_text", "shown"]

TableRow = dict[str, Any]  # values by column
TITLES = {"runs_of": "runs of", "iqm": "IQM", "iqm_difference": "IQM, A − B", "a_better": "P(A > B)"}


def shown(value: Any) -> str:
    """Format a cell: numbers with four figures, and an interval behind its value."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        number, low, high = value
        return short(number) if low is None else f"{short(number)} [{short(low)}, {short(high)}]"
    return f"{value:,}" if isinstance(value, int) else short(value) if isinstance(value, float) else str(value)


def probability_text(interval: Any) -> str:
    """Format a probability with two decimals, and its interval."""
    value, low, high = interval
    return f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def columns(rows: list[TableRow]) -> list[str]:
    """List the columns of all rows, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def cells(rows: list[TableRow]) -> tuple[list[str], list[list[str]]]:
    """Format headings, and every row."""
    names = columns(rows)

    def text(row: TableRow, name: str) -> str:
        return probability_text(row[name]) if name == "a_better" and row.get(name) else shown(row.get(name))

    return [TITLES.get(name, name) for name in names], [[text(row, name) for name in names] for row in rows]


def as_markdown(rows: list[TableRow]) -> str:
    """Format rows as a markdown table."""
    heads, body = cells(rows)
    lines = [[cell.replace("|", "\\|") for cell in line] for line in [heads, ["---"] * len(heads), *body]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(rows: list[TableRow], notes: list[str]) -> str:
    """Format rows and notes as a JSON object."""
    return json.dumps({"rows": [_spread(row, columns(rows)) for row in rows], "notes": notes}, indent=2)


def as_csv(rows: list[TableRow]) -> str:
    """Format rows as CSV, an interval as three columns."""
    names = columns(rows)
    wide = [name for name in names if any(isinstance(row.get(name), tuple) for row in rows)]
    heads = [part for name in names for part in ((name, f"{name}_low", f"{name}_high") if name in wide else (name,))]
    text = io.StringIO()
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_spread(row, names) for row in rows)
    return text.getvalue()


def _spread(row: TableRow, names: list[str]) -> TableRow:
    """Replace intervals by three plain numbers, by name."""
    plain: TableRow = {}
    for name in names:
        value = row.get(name)
        if isinstance(value, tuple):
            parts = [None if part is None else float(part) for part in value]
            plain |= dict(zip((name, f"{name}_low", f"{name}_high"), parts))
        else:
            plain[name] = value
    return plain
