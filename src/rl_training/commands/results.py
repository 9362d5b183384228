"""What runs came to: report, compare, leaderboard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rl_training.commands.flags import count

if TYPE_CHECKING:
    from rl_training.analysis.statistics import Interval

FORMATS = ("table", "csv", "json", "md")


def add(command: Callable) -> None:
    """Add the commands of this module."""
    runs = "run directories, or folders with runs below them"
    report = command("report", _report, "one page of curves, tables and provenance of many runs, in a single file")
    report.add_argument("runs", nargs="+", metavar="RUNS", help=runs)
    report.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (default: report.html)")
    report.add_argument("--title", default="", help="its heading (default: what the runs are)")
    report.add_argument("--live", action="store_true", help="serve the page on this machine, up to date as runs go on")
    report.add_argument("--port", type=count, default=8321, metavar="N", help="with --live: where (default: 8321)")

    compare = command("compare", _compare, "two runs, or two groups of runs: statistics and who is better how probably")
    compare.add_argument("a", metavar="A", help="a run directory, or a folder with runs below it")
    compare.add_argument("b", metavar="B", help="the same")

    board = command("leaderboard", _leaderboard, "groups of runs by environment, from the best interquartile mean down")
    board.add_argument("runs", nargs="*", default=["runs"], metavar="RUNS", help=f"{runs} (default: runs)")
    for parser in (compare, board):
        parser.add_argument("--format", choices=FORMATS, default="table", help="default: a table for people")


def _report(args: argparse.Namespace) -> None:
    from rl_training.analysis import report

    if args.live:
        report.serve(args.runs, title=args.title, port=args.port)
        return
    made = report.write(args.runs, args.output, title=args.title)
    _warn(made.problems)
    print(f"{args.output}: {len(made.runs)} run{'s' if len(made.runs) != 1 else ''}, {made.size / 1e6:.1f} MB")


def _compare(args: argparse.Namespace) -> None:
    from rl_training.analysis.comparison import STATISTICS, compare
    from rl_training.analysis.records import load_runs

    sides = [load_runs([path]) for path in (args.a, args.b)]
    _warn([problem for side in sides for problem in side.problems])
    found = compare(sides[0].runs, sides[1].runs, (args.a, args.b))
    rows: list[dict[str, Any]] = []
    for env in found.environments:
        for side, name in enumerate((args.a, args.b)):
            numbers = (env.a, env.b)[side]
            rows.append({"environment": env.env_id, "runs of": name, "seeds": env.runs[side]})
            rows[-1] |= {statistic: numbers[statistic] for statistic in STATISTICS}
        rows[-2] |= {"IQM A − B": env.difference, "P(A > B)": env.improvement}
    if len(found.environments) > 1:
        for side, name in enumerate((args.a, args.b)):
            rows.append({"environment": "all", "runs of": name, "seeds": sum(e.runs[side] for e in found.environments)})
            rows[-1] |= {statistic: found.scores[side][statistic] for statistic in STATISTICS} if found.scores else {}
        rows[-2] |= {"P(A > B)": found.improvement}
    _print(rows, args.format, [f"A is {args.a}, B is {args.b}", *found.notes])


def _leaderboard(args: argparse.Namespace) -> None:
    from rl_training.analysis.comparison import STATISTICS, groups_of, leaderboard
    from rl_training.analysis.records import load_runs

    records = load_runs(args.runs)
    _warn(records.problems)
    rows: list[dict[str, Any]] = []
    for env_id, board in leaderboard(groups_of(records.runs)).items():
        for rank, (group, numbers) in enumerate(board, start=1):
            row: dict[str, Any] = {"environment": env_id, "rank": rank if numbers else None, "group": group.label}
            row |= {"seeds": len(group.scores), **{name: numbers.get(name) for name in STATISTICS}}
            unfinished = sum(run.status != "finished" for run in group.runs)
            notes = [f"{unfinished} not finished"] if unfinished else []
            notes += ["no evaluation"] if not numbers else []
            rows.append({**row, "steps": max(run.step for run in group.runs), "note": ", ".join(notes)})
    if not any(row["iqm"] for row in rows):
        raise ValueError(f"no run in {', '.join(args.runs)} has an evaluation yet")
    _print(rows, args.format, [])


def _warn(problems: list[str]) -> None:
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)


def _print(rows: list[dict[str, Any]], how: str, notes: list[str]) -> None:
    """Rows in one of the formats. Tables show ``value [low, high]``; csv and json have a column for each bound."""
    import csv
    import json

    names = list(dict.fromkeys(name for row in rows for name in row))
    if how == "json":
        print(json.dumps({"rows": [_spread(row, names) for row in rows], "notes": notes}, indent=2))
    elif how == "csv":
        spread = [_spread(row, names) for row in rows]
        writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(n for row in spread for n in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(spread)
    elif how == "md":
        print("\n".join(markdown(names, [[shown(row.get(name)) for name in names] for row in rows])))
        print("".join(f"\n{note[0].upper()}{note[1:]}.\n" for note in notes), end="")
    else:
        _table(names, rows, notes)


def _table(names: list[str], rows: list[dict[str, Any]], notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    words = ("environment", "group", "runs of", "note")
    for name in names:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for before, row in zip([None, *rows], rows):
        cells = [shown(row.get(name)) for name in names]
        if before and before["environment"] == row["environment"]:
            cells[0] = ""
        table.add_row(*cells)
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, markup=False, width=None if terminal else 200)
    console.print(table)
    for note in notes:
        console.print(note)
    console.print("[95 % intervals by stratified bootstrap over runs, 2,000 resamples; the last evaluation of each run]")


def markdown(names: list[str], rows: list[list[str]]) -> list[str]:
    """A markdown table, line by line."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [names, ["---"] * len(names), *rows]]
    return [f"| {' | '.join(row)} |" for row in cells]


def shown(value: Any) -> str:
    """A number in four figures, an interval behind it if there is one."""
    from rl_training.experiment.logging import short

    if value is None:
        return ""
    if isinstance(value, tuple):
        number, low, high = value
        return short(number) if low is None else f"{short(number)} [{short(low)}, {short(high)}]"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _spread(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Intervals as three columns; plain numbers throughout."""
    flat: dict[str, Any] = {}
    for name in names:
        value: Interval | Any = row.get(name)
        key = name.replace(" ", "_")
        if isinstance(value, tuple):
            parts = [None if part is None else float(part) for part in value]
            flat |= {key: parts[0], f"{key}_low": parts[1], f"{key}_high": parts[2]}
        else:
            flat[key] = value
    return flat
