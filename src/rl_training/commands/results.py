"""Commands for results: report, compare, leaderboard."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rl_training.commands.flags import Command, count

if TYPE_CHECKING:
    from rl_training.analysis.tables import TableRow


__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    runs = "run directories, or folders with runs below them"
    report = command("report", _report, "one page of curves, tables and provenance of many runs, in a single file")
    report.add_argument("runs", nargs="+", metavar="RUNS", help=runs)
    report.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (default: report.html)")
    report.add_argument("--title", default="", help="its heading (default: what the runs are)")
    report.add_argument("--live", action="store_true", help="serve the page on this machine, renewed as runs go on")
    report.add_argument("--port", type=count, default=8321, metavar="N", help="with --live: where (default: 8321)")

    compare = command("compare", _compare, "two runs, or two sets of runs: statistics, and how probably one is better")
    compare.add_argument("a", metavar="A", help="a run directory, or a folder with runs below it")
    compare.add_argument("b", metavar="B", help="the same")

    board = command("leaderboard", _leaderboard, "groups of runs by environment, from the best interquartile mean down")
    board.add_argument("runs", nargs="*", default=["runs"], metavar="RUNS", help=f"{runs} (default: runs)")
    for parser in (compare, board):
        formats = ("table", "csv", "json", "md")
        parser.add_argument("--format", choices=formats, default="table", help="default: a table for people")


def _report(args: argparse.Namespace) -> None:
    from rl_training.analysis import report

    if args.live:
        report.serve(args.runs, title=args.title, port=args.port)
        return
    made = report.write(args.runs, args.output, title=args.title)
    _warn(made.problems)
    print(f"{args.output}: {made.runs} run{'s' if made.runs != 1 else ''}, {made.size / 1e6:.1f} MB")


def _compare(args: argparse.Namespace) -> None:
    from rl_training.analysis.comparison import compare
    from rl_training.analysis.records import load_runs

    sides = [load_runs([path]) for path in (args.a, args.b)]
    _warn([problem for side in sides for problem in side.problems])
    found = compare(sides[0].runs, sides[1].runs, (args.a, args.b))
    _print(found.rows((args.a, args.b)), args.format, [f"A is {args.a}, B is {args.b}", *found.notes])


def _leaderboard(args: argparse.Namespace) -> None:
    from rl_training.analysis.comparison import groups_of, leaderboard
    from rl_training.analysis.records import load_runs

    records = load_runs(args.runs)
    _warn(records.problems)
    boards = leaderboard(groups_of(records.runs))
    rows = [ranked.row(rank) for board in boards.values() for rank, ranked in enumerate(board, start=1)]
    if not any(row["iqm"] for row in rows):
        raise ValueError(f"no run in {', '.join(args.runs)} has an evaluation yet")
    _print(rows, args.format, [])


def _warn(problems: list[str]) -> None:
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)


def _print(rows: list[TableRow], how: str, notes: list[str]) -> None:
    from rl_training.analysis import tables

    if how == "json":
        print(tables.as_json(rows, notes))
    elif how == "csv":
        print(tables.as_csv(rows), end="")
    elif how == "md":
        print(tables.as_markdown(rows))
        print("".join(f"\n{note[0].upper()}{note[1:]}.\n" for note in notes), end="")
    else:
        _table(rows, notes)


def _table(rows: list[TableRow], notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from rl_training.analysis.tables import cells, columns

    table: Any = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    heads, body = cells(rows)
    for name, head in zip(columns(rows), heads):
        words = name in ("environment", "group", "runs_of", "note")
        table.add_column(head, justify="left" if words else "right", overflow="fold")
    seen = None
    for line in body:
        table.add_row("" if line[0] == seen else line[0], *line[1:])
        seen = line[0]
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240)
    console.print(table)
    for note in notes:
        console.print(note)
    console.print("The last evaluation of each run; 95 % intervals by stratified bootstrap over runs.", style="dim")
