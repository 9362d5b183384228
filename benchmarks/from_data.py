"""Tables of what was learned from data: every record that names a dataset, beside what the data itself is worth and what others published.

Scores are normalised: 0 is a random policy and 100 the expert, by the references that the dataset names. Used by report.py and docs/generate.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NOTE = (
    "A score is normalised: 0 is the return of a random policy and 100 that of the expert, by the references of the dataset. Those of the "
    "Hopper datasets are D4RL's, so the scale is that of published scores; the data is not D4RL's but our own, of another simulator "
    "version, and of fewer updates than the published million: such a figure says what order to expect, not more. Those of the "
    "demonstrations are a random policy and the demonstrator. The score of the data is the mean of its episodes: what an agent as good "
    "as those who made it would have."
)


def offline(record: dict[str, Any]) -> bool:
    """Whether an algorithm takes no steps in an environment, so that its steps are updates."""
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.loops.offline import OfflineOptions

    return issubclass(get_algorithm_spec(record["algo"]).config, OfflineOptions)


def algorithm(record: dict[str, Any]) -> str:
    share = record["config"]["algo_kwargs"].get("best_fraction", 1.0)
    return record["algo"] if share == 1 else f"{record['algo']}, best {share:.0%} of the data"


def data_of(record: dict[str, Any]) -> str:
    """A record's dataset and its size."""
    data = record["data"]
    return f"{data['name']} ({data['transitions']:,} transitions, {data['episodes']:,} episodes)"


def published_score(record: dict[str, Any], known: dict[str, Any]) -> str:
    """What others published for the algorithm on the dataset that ours was made after; nothing if that is not known."""
    share = record["config"]["algo_kwargs"].get("best_fraction", 1.0)
    task = (record["algo"], record["data"]["name"], share)
    for figure in known["scores"]:
        if (figure["algo"], figure["beside"], figure.get("best_fraction", 1.0)) == task:
            after = f", {figure['updates'] / 1e6:g}M updates" if "updates" in figure else ""
            source = known["sources"][figure["source"]]["name"]
            return f"{figure['score']:g} ± {figure['std']:g} ({figure['data']}{after}, {source})"
    return ""


def row(record: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    from rl_training.analysis.statistics import iqm, stratified_bootstrap
    from rl_training.analysis.tables import shown

    data, scores = record["data"], [run["score"] for run in record["runs"]]
    returns = ", ".join(f"{run['return_mean']:.0f}" for run in record["runs"])
    hours = sum(run["cpu_seconds"] for run in record["runs"]) / 3600
    return {
        "algorithm": algorithm(record),
        "task": record["env_id"],
        "data": data_of(record),
        "return and score of the data": f"{data['return_mean']:.0f}, {data['score_mean']:.1f}",
        "updates": f"{record['updates']:,}",
        "environment steps": "none" if offline(record) else f"{record['total_timesteps']:,}",
        "seeds": len(scores),
        "score, IQM [95 %]": shown(stratified_bootstrap(iqm, scores)) + (" (one seed)" if len(scores) == 1 else ""),
        "return of each seed": returns,
        "published score, D4RL's own data": published_score(record, known),
        "core-hours": f"{hours:.2f}",
        "commit": (record["git"] or {}).get("commit", "")[:8],
    }


def table(found: list[dict[str, Any]], known: dict[str, Any]) -> str:
    """A row for each of the records that name a dataset."""
    from rl_training.analysis.tables import as_markdown

    rows = [row(record, known) for record in found if "data" in record]
    return as_markdown(rows) if rows else "Not measured yet."


def datasets_table() -> str:
    """Every dataset that was made and recorded."""
    lines = [
        "| dataset | transitions | episodes | return, mean | score | references | sha256 of its columns | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((RESULTS / "datasets").glob("*.json")):
        facts = json.loads(path.read_text())
        known = facts["random_return"] is not None and facts["expert_return"] is not None
        between = (
            f"{facts['random_return']:.1f} and {facts['expert_return']:.1f}: {facts['references']}" if known else ""
        )
        score = "" if facts["score_mean"] is None else f"{facts['score_mean']:.1f}"
        commit = (facts["git"] or {}).get("commit", "")[:8]
        held = f"{facts['transitions']:,} | {facts['episodes']:,} | {facts['return_mean']:.1f} | {score} | {between}"
        lines.append(f"| `{facts['name']}` | {held} | `{facts['sha256'][:16]}` | {commit} |")
    return "\n".join(lines) if len(lines) > 2 else "None is recorded yet."
