"""Every learning record beside the best published figure we know: docs/benchmarks/README.md, and index.html with the curves.

python benchmarks/report.py            write
python benchmarks/report.py --check    say whether the pages are out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rl_training.analysis import report
from rl_training.analysis.comparison import finals
from rl_training.analysis.records import Curve, RunMetrics, RunRecord
from rl_training.analysis.statistics import iqm, stratified_bootstrap
from rl_training.analysis.tables import as_markdown, cells, shown
from rl_training.tracking.figures import clock

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "benchmarks"
TITLE = "Learning benchmarks"
NOTE = (
    "Each row is a preset trained over several seeds. A run's score is the mean return of its last checkpoint, never the best, over "
    "episodes of its own; the interval is a stratified bootstrap of the interquartile mean over seeds. Wall time is the mean of a run. "
    "Published figures are others' measurements on the nearest task, with their own steps and protocol."
)


def records() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((HERE / "results" / "learning").glob("*.json"))]


def published() -> dict[str, Any]:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load((HERE / "published.yaml").read_text())


def command(record: dict[str, Any]) -> str:
    seeds = " ".join(str(run["seed"]) for run in record["runs"])
    return f"python benchmarks/learning.py {record['preset']} --seeds {seeds}"


def runs_of(record: dict[str, Any]) -> list[RunRecord]:
    """A record's runs as the report knows runs."""
    shared = {name: record.get(name) for name in ("git", "versions", "hardware", "started")}
    return [
        RunRecord(
            name=f"{record['preset']} seed {run['seed']}",
            path=Path(record["preset"]) / str(run["seed"]),
            config={**record["config"], "seed": run["seed"]},
            metadata={**shared, "status": "finished", "seconds": run["seconds"], "command": command(record).split()},
            metrics=RunMetrics(
                evaluations=Curve(*map(list, zip(*run["curve"]))) if run["curve"] else Curve([], []),
                final=run["return_mean"],
                step=run["steps"],
            ),
        )
        for run in record["runs"]
    ]


def comparable(record: dict[str, Any], known: dict[str, Any]) -> tuple[str, str]:
    """What others published for the task: the same algorithm's figure, and the best of any."""
    figures = [figure for figure in known["figures"] if figure["beside"] == record["env_id"]]
    if not figures:
        return "no comparable figure", "no comparable figure"

    def described(figure: dict[str, Any]) -> str:
        what = f"{figure['algo']}, {figure['env_id']}, {figure['steps']:,} steps; {known['sources'][figure['source']]['name']}"
        spread = f" ± {figure['std']:.4g}" if "std" in figure else ""
        return f"{figure['return']:.4g}{spread} ({what})"

    own = [figure for figure in figures if figure["algo"] == record["algo"]]
    return described(own[0]) if own else "no comparable figure", described(
        max(figures, key=lambda figure: figure["return"])
    )


def row(record: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    scores = finals(runs_of(record))
    solved = {entry["env_id"]: entry["return"] for entry in known["thresholds"]}.get(record["env_id"])
    threads = max(run["engine"]["threads"] for run in record["runs"])
    same, best = comparable(record, known)
    return {
        "algorithm": record["algo"],
        "task": record["env_id"],
        "preset": record["preset"],
        "seeds": len(scores),
        "IQM [95 %]": shown(stratified_bootstrap(iqm, scores)),
        "steps": record["total_timesteps"],
        "solved at": "" if solved is None else f"{solved:g}",
        "published, same algorithm": same,
        "published, best of any": best,
        "wall time": clock(sum(run["seconds"] for run in record["runs"]) / len(record["runs"])),
        "hardware": f"{record['hardware']['processor']}, {record['hardware']['cores']} cores, {threads} thread{'s' if threads > 1 else ''}",
        "commit": (record["git"] or {}).get("commit", "")[:8],
        "command": f"`{command(record)}`",
    }


def markdown(found: list[dict[str, Any]], known: dict[str, Any]) -> str:
    from rl_training.experiment.runs import dump_yaml

    rows = [row(record, known) for record in found]
    configs = "\n".join(
        f"<details><summary><code>{record['preset']}</code></summary>\n\n```yaml\n{dump_yaml(record['config'])}```\n\n</details>\n"
        for record in found
    )
    sources = "\n".join(f"- {source['name']}: {source['detail']}" for source in known["sources"].values())
    return (
        f"# {TITLE}\n\nWritten by `make report` from `benchmarks/results/learning/` and `benchmarks/published.yaml`; the same with\n"
        f"curves is in [index.html](index.html), how the records came about in [benchmarks](../benchmarks.md).\n\n{NOTE}\n\n"
        f"{as_markdown(rows)}\n\n## Sources\n{sources}\n\n## Configs\nThe seed of each run is in its command.\n\n{configs}"
    )


def page(found: list[dict[str, Any]], known: dict[str, Any]) -> str:
    rows = [row(record, known) for record in found]
    heads, body = cells([{**line, "command": line["command"].strip("`")} for line in rows])
    newest = max(record["started"] for record in found)[:10]
    table = report.ExtraTable("Beside published figures", NOTE, heads, body)
    runs = [run for record in found for run in runs_of(record)]
    return report.build_page(runs, title=TITLE, made=f"from records up to {newest}", tables=[table])


def stale(found: list[dict[str, Any]], known: dict[str, Any]) -> list[str]:
    """The pages that do not hold these records. Of the curves, whose last digits depend on the machine, only the names count."""
    read = {name: path.read_text() if (path := PAGES / name).exists() else "" for name in ("README.md", "index.html")}
    names = [f"{record['preset']} seed {run['seed']}" for record in found for run in record["runs"]]
    whole = {"README.md": read["README.md"] == markdown(found, known)}
    whole["index.html"] = all(name in read["index.html"] for name in names)
    return [name for name, current in whole.items() if not current]


def main() -> int:
    found, known = records(), published()
    if "--check" in sys.argv:
        old = stale(found, known)
        print(f"out of date: {', '.join(old) or 'nothing'}")
        return 1 if old else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / "README.md").write_text(markdown(found, known))
    (PAGES / "index.html").write_text(page(found, known))
    print(f"docs/benchmarks: README.md and index.html, from {len(found)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
