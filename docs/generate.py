"""Writes what can be derived: option tables and results into the pages, options as keywords into api/typed.py.

python docs/generate.py            write
python docs/generate.py --check    say which pages are out of date
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import option_types

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import from_data
import report
from rl_training.envs.options import AtariOptions, EnvOptions, PartsOptions, PixelOptions, RewardOptions
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import markdown_table
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.controls import EarlyStoppingConfig

CONFIGS = {
    "run": TrainConfig,
    "env": EnvOptions,
    "parts": PartsOptions,
    "pixels": PixelOptions,
    "atari": AtariOptions,
    "reward": RewardOptions,
    "early": EarlyStoppingConfig,
}
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEERS = {  # other packages, by their names in the records
    "sb3": "Stable-Baselines3", "sbx": "SBX", "tianshou": "Tianshou", "axiomrl": "AxiomRL", "d3rlpy": "d3rlpy",
    "mbrl": "mbrl-lib", "imitation": "imitation",
}  # fmt: skip
DATA = {  # what a reader should know of the datasets that records name (benchmarks/datasets.py)
    "data/hopper-medium-replay.npz": "replay of a beginner (mean 264)",
    "data/hopper-expert.npz": "10 expert episodes (mean 3023)",
    "data/mountaincar-expert.npz": "10 expert episodes (mean -105)",
    "data/mountaincar-demos.npz": "10 demonstrations",
    "data/pendulum-replay.npz": "replay of 5k steps of SAC",
}


def learning(folder: str = "learning") -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / folder).glob("*.json"))]


def learned(result: dict) -> str:
    """The interquartile mean over seeds, its interval, and the number of seeds."""
    digits = 0 if max(abs(result["low"]), abs(result["high"])) >= 10 else 2
    low, high = (f"{result[name] + 0.0:.{digits}f}".replace("-0.00", "0.00") for name in ("low", "high"))
    value, seeds = f"{result['iqm']:.{digits}f}".replace("-0.00", "0.00"), len(result["runs"])
    return f"{value} (one seed)" if seeds == 1 else f"{value} [{low}, {high}], n = {seeds}"


def results_table(algo: str | None = None, folder: str = "learning") -> str:
    """One row per record of a folder: the last checkpoint's return over seeds, with a 95 % interval."""
    what = {"learning": "preset", "defaults": "algorithm and task", "campaign": "row"}[folder]
    lines = [
        f"| {what} | steps | return, IQM over n seeds [95 % interval] | each seed | asked | commit |",
        "|---|---|---|---|---|---|",
    ]
    for result in learning(folder):
        if algo not in (None, result["algo"]) or "data" in result:  # those have a table of their own
            continue
        figure = result.get("figure", "return_mean")
        seeds = ", ".join(f"{run[figure]:{'.0f' if abs(run[figure]) >= 10 else '.3g'}}" for run in result["runs"])
        commit = (result["git"] or {}).get("commit", "")[:8]
        asked = "" if result["threshold"] is None else f"{result['threshold']:g}"
        if result.get("at_most") is not None:
            asked = f"at most {result['at_most']:g}"
        usual = "evaluation of the last checkpoint"
        note = "" if (judged := result.get("judged", usual)) == usual else f" ({judged})"
        note += "" if figure == "return_mean" else f" ({figure.replace('_', ' ')})"
        lines.append(
            f"| `{result['preset']}`{note} | {result['total_timesteps']:,} | {learned(result)} | {seeds} | {asked} | {commit} |"
        )
    return (
        "\n".join(lines)
        if len(lines) > 2
        else "Not measured yet: the packaged presets run, and nobody has judged what they reach."
    )


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def speed_table(fastest: bool = False) -> str:
    """Ours beside each peer, from the newest measurement of each unit of work; or beside the fastest other package only."""
    lines = ["| work | ours | peer | theirs | ratio | commit |", "|---|---|---|---|---|---|"]
    if fastest:
        lines = ["| work | ours | fastest peer | theirs | ratio |", "|---|---|---|---|---|"]
    for path in sorted((RESULTS / "speed").glob("*.json")):
        unit = json.loads(path.read_text())
        commit = (unit["git"] or {}).get("commit", "")[:8]
        rows = unit["rows"]
        if fastest:
            rows = sorted((row for row in rows if row["peer"] in PEERS), key=lambda row: row["ratio"])[:1]
        for row in rows:
            cells = [unit["what"], rate(row["ours"]), PEERS.get(row["peer"], row["peer"]) if fastest else row["peer"]]
            cells += [rate(row["theirs"]), f"**{row['ratio']:.2f} ×**"] + [commit] * (not fastest)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def serving_table() -> str:
    """Requests answered by our server and by a plain one of Stable-Baselines3's predict."""
    lines = [
        "| agent | server | requests a second | 99th percentile, ms | processor time of a request, µs |",
        "|---|---|---|---|---|",
    ]
    told = []
    for path in sorted((RESULTS / "serving").glob("*.json")):
        unit = json.loads(path.read_text())
        for who, row in unit["medians"].items():
            lines.append(
                f"| {unit['what']} | {who} | {rate(row['per_second'])} | {row['p99']:.3g} | {row['cpu_us']:.0f} |"
            )
        commit, rounds = (unit["git"] or {}).get("commit", "")[:8], unit["ratio_each_round"]
        told.append(
            f"{unit['unit'].upper()}: **{unit['ratio']:.1f} ×** the requests a second (rounds: {min(rounds):.1f} to {max(rounds):.1f}), "
            f"{unit['cpu_ratio']:.1f} × by processor time, {unit['connections']} connections, {len(rounds)} rounds, at {commit}."
        )
    return "\n".join([*lines, "", *told])


def fractions_table() -> str:
    """FQF's fractions on a bandit that pays Exp(1): the distance they reach, by setting."""
    result = json.loads((RESULTS / "fqf_fractions.json").read_text())
    base = result["settings"]["qr_dqn"]["wasserstein"]
    lines = ["| setting | W1 | nearer than QR-DQN | smallest fraction of any seed |", "|---|---|---|---|"]
    for name, row in result["settings"].items():
        smallest = min(run["smallest_fraction"] for run in row["runs"])
        lines.append(f"| {name} | {row['wasserstein']:.4f} | {1 - row['wasserstein'] / base:.1%} | {smallest:.4f} |")
    return "\n".join(lines)


def tuned_table() -> str:
    """Runs that start from a trained agent beside those that start from nothing."""

    def shown(side: dict) -> str:
        return f"{side['mean']:.0f} [{side['low']:.0f}, {side['high']:.0f}]"

    lines = ["| what | steps | from nothing | before | from the trained agent | commit |", "|---|---|---|---|---|---|"]
    for record in learning("fine_tuning"):
        commit = (record["git"] or {}).get("commit", "")[:8]
        sides = f"{shown(record['nothing'])} | {shown(record['untouched'])} | {shown(record['trained'])}"
        lines.append(f"| {record['what']} | {record['total_timesteps']:,} | {sides} | {commit} |")
    seeds = "Returns of the last checkpoint over 20 episodes, means over three seeds with 95 % intervals."
    return "\n".join([*lines, "", seeds]) if len(lines) > 2 else "Not measured yet."


def dreamer_table() -> str:
    """Where the time of Dreamer's update goes, and what a full buffer takes."""
    result = json.loads((RESULTS / "speed" / "dreamer.json").read_text())
    seconds, memory, asked = result["seconds"], result["memory"], result["asked"]
    whole = seconds["everything"]
    lines = ["| part | milliseconds of one core | of the whole update |", "|---|---|---|"]
    for name, taken in seconds.items():
        lines.append(
            f"| {'**everything**' if name == 'everything' else name} | {1000 * taken:.0f} | {taken / whole:.0%} |"
        )
    commit = (result["git"] or {}).get("commit", "")[:8]
    lines += [
        "",
        f"{result['what']}, medians of {len(result['raw']['everything'])} rounds at {commit}: "
        f"{result['world_model_per_cpu_second']:.2f} updates of the world model per processor second (asked: "
        f"{asked['world_model_per_cpu_second']}), {result['updates_per_cpu_second']:.2f} with actor and critic. A buffer of "
        f"{memory['frames']:,} pictures takes {memory['buffer_gb']:.2f} GB (asked: {asked['buffer_gb']}), and a process that learns "
        f"from it {memory['process_gb']:.2f} GB at its most (asked: {asked['process_gb']}).",
    ]
    return "\n".join(lines)


def device_table() -> str:
    """Every learner on the pretend device: how far it is from the CPU, and what crosses each way."""
    result = json.loads((RESULTS / "device" / "pretend.json").read_text())
    kinds = {"act": "an action", "update": "an update", "epoch": "an epoch of a fit", "rollout": "an imagined step"}
    lines = [f"| case | distance from the CPU | {' | '.join(kinds.values())} |", "|---|---|---|---|---|---|"]
    for row in result["cases"]:
        crossed = [f"{row[kind]['to']} / {row[kind]['back']}" if any(row[kind].values()) else "" for kind in kinds]
        lines.append(f"| {row['case']} | {row['off']:.1g} | {' | '.join(crossed)} |")
    commit = (result["git"] or {}).get("commit", "")[:8]
    return "\n".join(
        [*lines, "", f"{len(result['cases'])} cases with torch {result['versions']['torch']}, at {commit}."]
    )


def environments_table() -> str:
    """What environments of other packages went through, a row for each of them."""
    path = RESULTS / "third_party" / "environments.json"
    if not path.exists():
        return "Not tried yet."
    result = json.loads(path.read_text())
    found: dict[str, list[dict]] = {}
    for row in result["rows"]:
        found.setdefault(row["env_id"], []).append(row)
    lines = [
        "| versions | environment | with `env_kwargs` | steps per processor second | went through everything | notes of check-env |",
        "|---|---|---|---|---|---|",
    ]
    for env_id, rows in found.items():
        versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
        how = [
            f"{row['algo']}, but for {row['failed'].partition(':')[0]}" if "failed" in row else row["algo"]
            for row in rows
        ]
        set_to = f"`{json.dumps(rows[0]['env_kwargs'])}`" if rows[0]["env_kwargs"] else ""
        rates = sorted(row["steps_per_second"] for row in rows if "steps_per_second" in row)
        speed = rate(rates[len(rates) // 2]) if rates else ""
        notes = ", ".join(name for name in rows[0].get("notes", {}) if name != "speed")
        lines.append(f"| {versions} | `{env_id}` | {set_to} | {speed} | {', '.join(how)} | {notes} |")
    commit, versions = (result["git"] or {}).get("commit", "")[:8], result["versions"]
    where = f"Python {versions['python']}, torch {versions['torch']}, Gymnasium {versions['gymnasium']}, {result['hardware']['processor']}"
    return "\n".join([*lines, "", f"Tried at {commit} with {where}; steps in a second of one processor."])


def task(record: dict) -> str:
    """The environment, which entries of its observations are left where some are hidden, and the data that is learned from."""
    kept = record["config"]["env_kwargs"].get("wrappers", {}).get("keep")
    name = record["env_id"].rsplit(":", 1)[-1]
    if "data" in record:
        return f"{name}, from {record['data']['name']} (its own score {record['data']['score_mean']:.0f})"
    parts = [] if kept is None else [f"entries {', '.join(map(str, kept))} only"]
    options = record["config"]["algo_kwargs"]
    parts += [f"with an {options['recurrent'].upper()}"] if options.get("recurrent") else []
    data = options.get("dataset_path") or options.get("expert_dataset_path")
    parts += [DATA[data]] if data else []
    return f"{name}, {', '.join(parts)}" if parts else name


def steps(count: int) -> str:
    return f"{count / 1_000_000:g}M" if count >= 1_000_000 else f"{count / 1_000:g}k"


def algorithms_table() -> str:
    """The README's first table: what each algorithm learns from, and for which spaces."""
    lines = ["| algorithm | in one sentence | observations | actions |", "|---|---|---|---|"]
    for name, entry in ALGORITHMS.items():
        spec = get_algorithm_spec(name)
        kinds = ", ".join(kind.replace("_", "-") for kind in spec.actions)
        lines.append(
            f"| [{entry.public}](docs/{name}.md) ({entry.year}) | {entry.summary} | {', '.join(spec.obs)} | {kinds} |"
        )
    return "\n".join(lines)


def judged_otherwise(record: dict) -> str:
    """How a record was judged, where it was not as usual: by the return of the last checkpoint's evaluation."""
    usual = "evaluation of the last checkpoint"
    judged: str = record.get("judged", usual)
    figure = {"success_rate": " (share of episodes that succeed)", "score": " (normalised score)"}
    return figure.get(record.get("figure", ""), "") + (
        "" if judged == usual else f" ({judged.removeprefix(usual + ', ')})"
    )


def headlines_table() -> str:
    """The README's second table: one or two records of each algorithm, beside what others published for it."""
    known = report.published()
    lines = [
        "| algorithm | task | steps | return over seeds [95 %] | published for the algorithm |",
        "|---|---|---|---|---|",
    ]
    for name in report.yaml(ROOT / "benchmarks" / "headlines.yaml"):
        record = json.loads((RESULTS / f"{name}.json").read_text())
        scored = "data" in record
        cells = (
            ALGORITHMS[record["algo"]].public,
            task(record),
            steps(record["total_timesteps"]),
            learned(record) + judged_otherwise(record),
            (from_data.published_score if scored else report.nearest)(record, known),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Fill every ``<!-- begin: name -->`` … ``<!-- end -->`` of a page."""

    def fill(match: re.Match) -> str:
        kind, _, what = match[1].partition(" ")
        made = {
            "options": lambda: markdown_table(get_algorithm_spec(what).config),
            "config": lambda: markdown_table(CONFIGS[what or "run"]),
            "results": lambda: results_table(what or None),
            "defaults": lambda: results_table(folder="defaults"),
            "campaign": lambda: results_table(folder="campaign"),
            "data": lambda: from_data.table(learning("campaign"), report.published()),
            "datasets": from_data.datasets_table,
            "speed": lambda: speed_table(fastest=what == "peers"),
            "fractions": fractions_table,
            "serving": serving_table,
            "dreamer": dreamer_table,
            "device": device_table,
            "tuned": tuned_table,
            "algorithms": algorithms_table,
            "headlines": headlines_table,
            "environments": environments_table,
        }[kind]()
        return f"<!-- begin: {match[1]} -->\n{made}\n<!-- end -->"

    return re.sub(r"<!-- begin: ([\w ]+?) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> int:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        made = page(text)
        if made != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(made)
    typed, written = ROOT / option_types.TARGET, option_types.source()
    if not typed.exists() or typed.read_text() != written:
        stale.append(str(option_types.TARGET))
        if "--check" not in sys.argv:
            typed.write_text(written)
    print(f"{'out of date' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'nothing'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
