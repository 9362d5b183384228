"""Every learning record beside what others published: docs/benchmarks/README.md, index.html with all curves, and three pictures.

python benchmarks/report.py            write
python benchmarks/report.py --check    say whether the pages are out of date
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import from_data
import pictures
from rl_training.analysis import report
from rl_training.analysis.comparison import finals
from rl_training.analysis.records import Curve, RunMetrics, RunRecord
from rl_training.analysis.statistics import iqm, stratified_bootstrap
from rl_training.analysis.tables import as_markdown, cells, shown

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "benchmarks"
TITLE = "Learning benchmarks"
NOTE = (
    "A run's score is the mean return of its last checkpoint, never the best, over episodes of its own; the interval is a bootstrap of "
    "the interquartile mean over seeds, and of three seeds little more than their range. Core-hours are those of all seeds. Records under "
    "defaults/ have bare defaults, those under learning/ packaged presets, those under campaign/ what benchmarks/campaign.yaml says. "
    "Published figures are others' measurements at the nearest number of steps, with their own protocol; where their task is an older "
    "version (Hopper-v3 beside Hopper-v5), so is the simulator. Records learning/*/hopper_medium_replay are of an earlier dataset of that "
    "name, the replay of a beginner (mean return 264)."
)


FOLDERS = {  # of records, and the command that makes one
    "learning": "learning.py {preset} --seeds {seeds}",
    "defaults": "defaults.py {preset} --seeds {seeds}",
    "campaign": "campaign.py start FOLDER",
}
QUESTIONS = ("choice/",)  # rows that compare settings, on tasks and seeds that nothing is judged on


def records() -> list[dict[str, Any]]:
    """Every record that judges something, by algorithm and task."""
    found = [
        {**json.loads(path.read_text()), "folder": folder}
        for folder in FOLDERS
        for path in sorted((HERE / "results" / folder).glob("*.json"))
    ]
    found = [record for record in found if not record["preset"].startswith(QUESTIONS)]
    return sorted(found, key=lambda record: (record["algo"], record["env_id"], record["total_timesteps"]))


def yaml(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(path.read_text())


def published() -> dict[str, Any]:
    return yaml(HERE / "published.yaml")


def command(record: dict[str, Any]) -> str:
    seeds = " ".join(str(run["seed"]) for run in record["runs"])
    return f"python benchmarks/{FOLDERS[record['folder']].format(preset=record['preset'], seeds=seeds)}"


def runs_of(record: dict[str, Any]) -> list[RunRecord]:
    """A record's runs as the report knows runs."""
    shared = {name: record.get(name) for name in ("git", "versions", "hardware", "started")}
    env_id = record["config"]["env_id"]  # what was learned from data stands apart from what was learned online
    env_id = f"{env_id}, from {record['data']['name']}" if "data" in record else env_id
    return [
        RunRecord(
            name=f"{record['preset']} seed {run['seed']}",
            path=Path(record["preset"]) / str(run["seed"]),
            config={**record["config"], "env_id": env_id, "seed": run["seed"]},
            metadata={**shared, "status": "finished", "seconds": run["seconds"], "command": command(record).split()},
            metrics=RunMetrics(
                evaluations=Curve(*map(list, zip(*run["curve"]))) if run["curve"] else Curve([], []),
                final=run["return_mean"],
                step=run["steps"],
            ),
        )
        for run in record["runs"]
    ]


def described(figure: dict[str, Any], known: dict[str, Any]) -> str:
    """A published figure with what it was measured on."""
    spread = f" ± {figure['std']:.4g}" if "std" in figure else ""
    return (
        f"{figure['return']:.4g}{spread} ({figure['env_id']}, {short_steps(figure['steps'])} steps, "
        f"{known['sources'][figure['source']]['name']})"
    )


def short_steps(steps: int) -> str:
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.3g}k"


def nearest_figure(record: dict[str, Any], known: dict[str, Any]) -> dict[str, Any] | None:
    """What others published for the algorithm and the task, at the nearest number of steps; None if nothing is known."""
    options = record["config"]
    recurrent = bool(options["algo_kwargs"].get("recurrent"))
    if options["env_kwargs"].get("wrappers", {}).get("keep") and not recurrent:
        return None
    task = (record["env_id"], record["algo"], recurrent)
    own = [f for f in known["figures"] if (f["beside"], f["algo"], f.get("recurrent", False)) == task]
    if not own:
        return None
    return min(own, key=lambda f: abs(math.log(f["steps"] / record["total_timesteps"])))


def nearest(record: dict[str, Any], known: dict[str, Any]) -> str:
    figure = nearest_figure(record, known)
    return described(figure, known) if figure else ""


def row(record: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    scores = finals(runs_of(record))
    solved = {entry["env_id"]: entry["return"] for entry in known["thresholds"]}.get(record["env_id"])
    threads = max(run["engine"]["threads"] for run in record["runs"])
    hours = sum(run["cpu_seconds"] for run in record["runs"]) / 3600
    return {
        "algorithm": record["algo"],
        "task": record["env_id"],
        "record": f"{record['folder']}/{record['preset']}",
        "steps": record["total_timesteps"],
        "seeds": len(scores),
        "IQM [95 %]": shown(stratified_bootstrap(iqm, scores)) + (" (one seed)" if len(scores) == 1 else ""),
        "published, same algorithm": nearest(record, known),
        "solved at": "" if solved is None else f"{solved:g}",
        "core-hours": f"{hours:.2f}",
        "hardware": f"{record['hardware']['processor']}, {threads} thread{'s' if threads > 1 else ''}",
        "commit": (record["git"] or {}).get("commit", "")[:8],
        "command": f"`{command(record)}`",
    }


def markdown(found: list[dict[str, Any]], known: dict[str, Any]) -> str:
    from rl_training.experiment.runs import dump_yaml

    rows = [row(record, known) for record in found if "data" not in record]
    configs = "\n".join(
        f"<details><summary><code>{record['folder']}/{record['preset']}</code></summary>\n\n```yaml\n{dump_yaml(record['config'])}```\n\n</details>\n"
        for record in found
    )
    sources = "\n".join(f"- {source['name']}: {source['detail']}" for source in known["sources"].values())
    return (
        f"# {TITLE}\n\nWritten by `make report` from the records in `benchmarks/results/` and `benchmarks/published.yaml`; the same with\n"
        f"curves is in [index.html](index.html), how the records came about in [benchmarks](../benchmarks.md).\n\n{NOTE}\n\n"
        f"{as_markdown(rows)}\n\n## Learned from data\n{from_data.NOTE}\n\n{from_data.table(found, known)}\n\n## Sources\n{sources}\n\n## Configs\nThe seed of each run is in its command.\n\n{configs}"
    )


def page(found: list[dict[str, Any]], known: dict[str, Any]) -> str:
    rows = [row(record, known) for record in found if "data" not in record]
    heads, body = cells([{**line, "command": line["command"].strip("`")} for line in rows])
    newest = max(record["started"] for record in found)[:10]
    tables = [report.ExtraTable("Beside published figures", NOTE, heads, body)]
    if learned := [from_data.row(record, known) for record in found if "data" in record]:
        tables.append(report.ExtraTable("Learned from data", from_data.NOTE, *cells(learned)))
    runs = [run for record in found for run in runs_of(record)]
    return report.build_page(runs, title=TITLE, made=f"from records up to {newest}", tables=tables)


def stale(found: list[dict[str, Any]], known: dict[str, Any]) -> list[str]:
    """The pages that do not hold these records. Of the curves, whose last digits depend on the machine, only the names count."""
    read = {name: path.read_text() if (path := PAGES / name).exists() else "" for name in ("README.md", "index.html")}
    names = [f"{record['preset']} seed {run['seed']}" for record in found for run in record["runs"]]
    whole = {"README.md": read["README.md"] == markdown(found, known)}
    whole["index.html"] = all(name in read["index.html"] for name in names)
    return [name for name, current in whole.items() if not current] + pictures.stale(known)


def main() -> int:
    found, known = records(), published()
    if "--check" in sys.argv:
        old = stale(found, known)
        print(f"out of date: {', '.join(old) or 'nothing'}")
        return 1 if old else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / "README.md").write_text(markdown(found, known))
    (PAGES / "index.html").write_text(page(found, known))
    pictures.draw_all(known)
    print(f"docs/benchmarks: README.md, index.html and {len(pictures.PICTURES)} pictures, from {len(found)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
