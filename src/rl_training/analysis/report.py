"""The report of many runs: one self-contained page, as a file or served while runs go on."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.analysis.comparison import (
    Group,
    RankedGroup,
    against,
    differing_options,
    finals,
    groups_of,
    leaderboard,
    option_text_of,
)
from rl_training.analysis.local_server import Answer, LocalServer
from rl_training.analysis.records import Curve, RunRecord, find_runs, load_runs, stamp_of, usable
from rl_training.analysis.statistics import (
    Interval,
    performance_profile,
    probability_of_improvement,
    sample_efficiency,
    stratified_bootstrap,
)
from rl_training.analysis.tables import probability_text, shown
from rl_training.base.errors import reason
from rl_training.base.files import UnusualFile, read_regular, write_durably
from rl_training.tracking.figures import clock, short

__all__ = ["ExtraTable", "Written", "build_page", "serve", "server", "write"]

COMPARED = 12  # of the best groups of an environment, every pair is compared
STYLES = 7  # colours, each with a dash and a marker of its own
POINTS = 200  # of a curve over seeds
VIDEO_BYTES = 12_000_000  # a larger one is named, not embedded
ALL_VIDEO_BYTES = 80_000_000


class Written(NamedTuple):
    """What a written page holds: runs, bytes, and a message for each run that could not be read."""

    runs: int
    size: int
    problems: list[str]


class ExtraTable(NamedTuple):
    """A table of the caller's own, shown before the runs. Cells are text; one that begins with https:// is a link."""

    title: str
    note: str
    heads: list[str]
    rows: list[list[str]]


def write(paths: Iterable[str | Path], output: str | Path, *, title: str = "") -> Written:
    """Write the page of all runs below these folders."""
    records = load_runs(paths)
    output = Path(output)
    page = build_page(records.runs, problems=records.problems, title=title).encode(errors="backslashreplace")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_durably(output, [page])
    except OSError as error:
        raise ValueError(f"cannot write {output}: {error.strerror or error}") from None
    return Written(len(records.runs), len(page), records.problems)


def build_page(
    runs: list[RunRecord],
    *,
    problems: Iterable[str] = (),
    title: str = "",
    made: str | None = None,
    tables: Iterable[ExtraTable] = (),
    version: str | None = None,
) -> str:
    """Make the page as text; with a version it is a live page, which asks its server for newer ones."""
    if not usable(runs) and version is None:
        raise ValueError(f"none of the {len(runs)} runs has an evaluation yet")
    boards = leaderboard(groups_of(runs))
    labels = list(dict.fromkeys(s.group.label for board in boards.values() for s in board))
    environments = [_environment(f"env{i}", env_id, board) for i, (env_id, board) in enumerate(boards.items())]
    if len(labels) <= STYLES:  # few enough for each to look the same everywhere
        for env in environments:
            for row, group in zip(env["rows"], env["data"]["groups"]):
                row["style"] = group["style"] = labels.index(group["label"])
    names = {run.path: s.group.label for board in boards.values() for s in board for run in s.group.runs}
    states = Counter(run.outcome for run in runs)
    context = {
        "title": title or _title(runs),
        "made": made if made is not None else time.strftime("%Y-%m-%d %H:%M"),
        "counts": [
            (len(runs), "run" if len(runs) == 1 else "runs"),
            (sum(map(len, boards.values())), "groups"),
            (len(boards), "environment" if len(boards) == 1 else "environments"),
            *((number, state) for state, number in states.most_common()),
        ],
        "environments": environments,
        "more": list(dict.fromkeys(name for run in runs for name in run.metrics.more)),
        "across": _across(runs),
        "tables": list(tables),
        "runs": [_run_row(run, names[run.path]) for run in runs],
        "configs": _config_tables([s.group for board in boards.values() for s in board]),
        "origins": _origins(runs),
        "commands": [
            (run.name, shlex.join(map(str, run.metadata["command"]))) for run in runs if run.metadata.get("command")
        ],
        "failures": [run for run in runs if run.failed or run.error],
        "problems": list(problems),
        "videos": list(_videos(runs)),
        "data": {env["id"]: env.pop("data") for env in environments},
        "version": version,
    }
    return str(_template().render(context))


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    folder = Path(__file__).parents[1] / "assets" / "report"

    def embedded(value: Any) -> Markup:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        return Markup(text.replace("<", "\\u003c"))

    def tall(rows: list[Any]) -> str:
        """Long tables scroll; very long ones are laid out when they come into view."""
        return (" tall" if len(rows) > 12 else "") + (" lazy" if len(rows) > 60 else "")

    env = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"shown": shown, "short": short, "clock": clock, "embedded": embedded, "tall": tall}
    env.globals["asset"] = lambda name: Markup((folder / name).read_text())
    return env.get_template("page.html")


def _title(runs: list[RunRecord]) -> str:
    algos, envs = {run.algo for run in runs}, {run.env_id for run in runs}
    what = ", ".join(sorted(algos)) if len(algos) <= 3 else f"{len(algos)} algorithms"
    where = ", ".join(sorted(envs)) if len(envs) <= 2 else f"{len(envs)} environments"
    return f"{what} on {where}"


def _environment(key: str, env_id: str, board: list[RankedGroup]) -> dict[str, Any]:
    """Collect the table and the charts of one environment."""
    bounds = [x for s in board if s.statistics for x in s.statistics["iqm"] if x is not None]
    low, high = (min(bounds), max(bounds)) if bounds else (0.0, 1.0)
    scores = [score for s in board for score in s.group.scores]
    rows = []
    for rank, standing in enumerate(board, start=1):
        row = standing.row(rank)
        row["style"] = rank - 1
        row["bar"] = _bar(standing.statistics["iqm"], low, high) if standing.statistics else None
        rows.append(row)
    taus = np.linspace(min(scores), max(scores), 101) if scores else np.array([])
    views = [_views(standing.group, taus) for standing in board]
    pairs = {}
    best = [(i, s.group.scores) for i, s in enumerate(board) if s.statistics][:COMPARED]
    for (i, x), (j, y) in combinations(best, 2):
        difference, improvement = against(x, y)
        pairs[f"{i}-{j}"] = _pair_numbers(difference, improvement)
        pairs[f"{j}-{i}"] = _pair_numbers(_reversed(difference, 0.0), _reversed(improvement, 1.0))
    groups = [
        {
            "label": s.group.label,
            "style": style,
            "config": {name: option_text_of(s.group.config, name) for name in s.group.config},
            "numbers": {name: shown(value) for name, value in s.statistics.items()},
            "runs": len(s.group.scores),
            "views": view,
        }
        for style, (s, view) in enumerate(zip(board, views))
    ]
    return {
        "id": key,
        "env_id": env_id,
        "rows": rows,
        "comparable": len(best) > 1,
        "more": max(0, sum(bool(s.statistics) for s in board) - COMPARED),
        "values": _values(board, views),
        "left_out": sum(view["left_out"] for view in views),
        "data": {"env": env_id, "groups": groups, "pairs": pairs},
    }


def _pair_numbers(difference: Interval, improvement: Interval) -> dict[str, Any]:
    bounds = [None if part is None else round(float(part), 4) for part in improvement]
    return {"difference": shown(difference), "improvement": probability_text(improvement), "bounds": bounds}


def _reversed(interval: Interval, whole: float) -> Interval:
    """The interval seen from the other side: of a difference 0 − x, of a probability 1 − x."""
    value, low, high = interval
    return Interval(whole - value, None if high is None else whole - high, None if low is None else whole - low)


def _bar(interval: Interval, low: float, high: float) -> dict[str, float]:
    """The place of an interval between the lowest and the highest bound, in percent."""
    width = (high - low) or 1.0
    value, first, last = (interval.value if part is None else part for part in interval)
    return {name: round(100 * (x - low) / width, 2) for name, x in (("value", value), ("low", first), ("high", last))}


def _views(group: Group, taus: np.ndarray) -> dict[str, Any]:
    """The curves of one group: evaluations, training episodes, performance profile, and whatever else its runs have."""
    evaluations, left_out = _over_seeds([run.metrics.evaluations for run in group.runs])
    training, _ = _over_seeds([run.metrics.episodes for run in group.runs])
    profile = None
    if group.scores:
        above = stratified_bootstrap(lambda scores: performance_profile(scores, taus), group.scores, resamples=500)
        profile = _series(taus, above.value, above.low, above.high)
    names = dict.fromkeys(name for run in group.runs for name in run.metrics.more)
    curves = {name: [run.metrics.more[name] for run in group.runs if name in run.metrics.more] for name in names}
    more = {f"more:{name}": _over_seeds(found)[0] for name, found in curves.items()}
    return {"evaluation": evaluations, "training": training, "profile": profile, "left_out": left_out, **more}


def _over_seeds(curves: list[Curve]) -> tuple[dict[str, Any] | None, int]:
    """The interquartile mean over seeds, and how many runs are left out since they ended before half of the longest."""
    whole = [curve for curve in curves if curve.steps]
    if not whole:
        return None, 0
    furthest = max(curve.steps[-1] for curve in whole)
    kept = [curve for curve in whole if curve.steps[-1] >= furthest / 2]
    first = max(curve.steps[0] for curve in kept)
    kept = [curve for curve in kept if curve.steps[-1] >= first]
    return _series(*sample_efficiency(kept, points=POINTS)), len(whole) - len(kept)


def _series(x: np.ndarray, value: Any, low: Any, high: Any) -> dict[str, Any]:
    named = (("x", x), ("y", value), ("low", low), ("high", high))
    return {name: [float(f"{v:.6g}") for v in values] for name, values in named if values is not None}


def _values(board: list[RankedGroup], views: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The values of the evaluation curves at a few steps, for readers without pictures."""
    drawn = [(s.group.label, view["evaluation"]) for s, view in zip(board, views) if view["evaluation"]]
    if not drawn:
        return None
    steps = np.linspace(0, max(curve["x"][-1] for _, curve in drawn), 6)[1:].round()
    rows = []
    for label, curve in drawn[:COMPARED]:
        bounds = [curve[name] for name in ("y", "low", "high") if name in curve]
        cells = []
        for step in steps:
            inside = curve["x"][0] <= step <= curve["x"][-1] * 1.001
            values = [float(np.interp(step, curve["x"], part)) for part in bounds]
            cells.append(shown(tuple(values) if len(values) == 3 else values[0]) if inside else "–")
        rows.append((label, cells))
    return {"steps": [short(step) for step in steps], "rows": rows}


def _across(runs: list[RunRecord]) -> list[dict[str, str]]:
    """The probability that one algorithm beats another, averaged over the environments that both have."""
    algos: dict[str, dict[str, list[float]]] = {}
    for run in usable(runs):
        algos.setdefault(run.algo, {}).setdefault(run.env_id, []).extend(finals([run]))
    found = []
    for a, b in combinations(sorted(algos), 2):
        common = sorted(algos[a].keys() & algos[b].keys())
        if len(common) > 1:
            x, y = ({env: algos[name][env] for env in common} for name in (a, b))
            odds = stratified_bootstrap(probability_of_improvement, x, y)
            found.append({"a": a, "b": b, "chance": probability_text(odds), "environments": ", ".join(common)})
    return found


def _run_row(run: RunRecord, label: str) -> dict[str, Any]:
    seconds = run.metadata.get("seconds")
    return {
        "name": run.name,
        "path": str(run.path),
        "group": label,
        "env_id": run.env_id,
        "seed": run.seed,
        "status": run.status,
        "heard": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.updated)) if run.updated else "",
        "state": "untrained" if run.untrained else run.outcome,
        "step": run.step,
        "final": run.metrics.final,
        "evaluations": len(run.metrics.evaluations.steps),
        "seconds": seconds,
        "time": clock(seconds) if seconds is not None else "",
        "started": str(run.metadata.get("started", ""))[:16].replace("T", " "),
    }


def _config_tables(groups: list[Group]) -> list[dict[str, Any]]:
    """Tables of the options that differ between the groups of an algorithm."""
    tables = []
    for algo in sorted({group.algo for group in groups}):
        members = [group for group in groups if group.algo == algo]
        names = [name for name in differing_options([group.config for group in members]) if name != "env_id"]
        if len(members) > 1 and names:
            rows = [(group.name, [option_text_of(group.config, name) for name in names]) for group in members]
            tables.append({"algo": algo, "names": [name.removeprefix("algo_kwargs.") for name in names], "rows": rows})
    return tables


def _origins(runs: list[RunRecord]) -> list[dict[str, Any]]:
    """Code, versions and machine, once for all runs that share them."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        parts = {name: run.metadata.get(name) or {} for name in ("git", "versions", "hardware")}
        entry = found.setdefault(json.dumps(parts, sort_keys=True), {**parts, "runs": 0})
        entry["runs"] += 1
    return sorted(found.values(), key=lambda entry: -entry["runs"])


def _videos(runs: list[RunRecord]) -> Iterator[dict[str, Any]]:
    """Recorded episodes, within the page if they are not too large for one."""
    left = ALL_VIDEO_BYTES
    for run in runs:
        for path in run.videos:
            video: dict[str, Any] = {
                "run": run.name,
                "file": path.name,
                "path": str(path),
                "source": None,
                "kind": path.suffix[1:].lower(),
            }
            with contextlib.suppress(OSError, UnusualFile):  # too large, or gone since the run was read
                content = read_regular(path, min(left, VIDEO_BYTES))
                left -= len(content)
                kind = "image/gif" if video["kind"] == "gif" else f"video/{video['kind']}"
                video["source"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
            yield video


class Live:
    """The present page, built again when a file of a run has changed."""

    def __init__(self, paths: list[str | Path], title: str) -> None:
        self._paths, self._title, self._lock = paths, title, threading.Lock()
        self._built: tuple[str, str] = ("", "")

    def version(self) -> str:
        """A number that changes with every run that appears, disappears, or is written to."""
        stamps = []
        for run in find_runs(self._paths):
            stamps += [(str(run), *stamp_of(run / name)) for name in ("metrics.jsonl", "metadata.json")]
        return f"{hash(tuple(stamps)) & 0xFFFFFFFFFFFF:x}"

    def page(self) -> str:
        """The page, built again if the version has changed."""
        with self._lock:
            version = self.version()
            if self._built[0] != version:
                records = load_runs(self._paths)
                page = build_page(records.runs, problems=records.problems, title=self._title, version=version)
                self._built = (version, page)
            return self._built[1]

    def answer(self, path: str) -> Answer:
        """Answer a request: ``/`` is the page, ``/version`` its version as JSON."""
        try:
            if path == "/version":
                return Answer(200, "application/json", json.dumps({"version": self.version()}))
            return Answer(200, "text/html", self.page()) if path == "/" else Answer(404, "text/plain", "nothing here")
        except (OSError, ValueError) as error:
            return Answer(503, "text/plain", reason(error))


def server(paths: Iterable[str | Path], *, title: str = "", port: int = 0) -> LocalServer:
    """Make a server of the page, on this machine only."""
    live = Live(list(paths), title)
    live.page()  # a mistake shows now
    try:
        return LocalServer(live.answer, port)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"cannot serve on port {port} ({getattr(error, 'strerror', None) or error}); choose another with --port"
        ) from None


def serve(paths: Iterable[str | Path], *, title: str = "", port: int = 0) -> None:
    """Serve until Ctrl-C."""
    with server(paths, title=title, port=port) as http:
        print(f"http://127.0.0.1:{http.server_address[1]}/  renewed as runs go on; Ctrl-C stops", flush=True)
        try:
            http.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
