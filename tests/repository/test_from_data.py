"""Records of what was learned from data have tables of their own, in which they cannot be taken for what was learned online."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACTS = {
    "return_mean": 300.0,
    "score_mean": 9.8,
    "random_return": -20.3,
    "expert_return": 3234.3,
    "references": "D4RL's",
}


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    before = set(sys.modules)
    import generate

    import from_data
    import report

    yield from_data, generate, report
    for name in {"from_data", "generate", "report", "pictures", "option_types"} - before:
        sys.modules.pop(name, None)


def record(algo, steps, **options):
    """A record of two seeds that learned from 1,234 transitions, as write_record would have it."""
    run = {"steps": steps, "seconds": 1.0, "cpu_seconds": 1800.0, "gradient_steps": 50_000, "curve": [[10, 600.0]]}
    run["engine"] = {"threads": 1}
    runs = [{**run, "seed": seed, "return_mean": 100.0 * seed, "score": 20.0 + seed} for seed in (1, 2)]
    data = {"name": "hopper-medium-replay", "sha256": "ab" * 32, "transitions": 1234, "episodes": 56, **FACTS}
    config = {"algo": algo, "env_id": "Hopper-v5", "env_kwargs": {}, "algo_kwargs": options, "total_timesteps": steps}
    facts = {"git": {"commit": "c0ffee" * 5}, "versions": {}, "hardware": {"processor": "x"}, "started": "2026-01-01"}
    return {
        "preset": f"{algo}/hopper-medium-replay", "algo": algo, "env_id": "Hopper-v5", "total_timesteps": steps, "data": data,
        "config": config, "figure": "score", "updates": 50_000, "runs": runs, "folder": "campaign", "threshold": None,
        "iqm": 21.5, "low": 21.0, "high": 22.0, **facts,
    }  # fmt: skip


def test_a_row_says_data_updates_steps_and_scores_beside_the_published_one(pages):
    from_data, _, report = pages
    row = from_data.row(record("bc", 50_000, best_fraction=0.1), report.published())
    assert row["algorithm"] == "bc, best 10% of the data" and row["task"] == "Hopper-v5"
    assert row["data"] == "hopper-medium-replay (1,234 transitions, 56 episodes)"
    assert row["return and score of the data"] == "300, 9.8" and row["updates"] == "50,000"
    assert row["environment steps"] == "none" and row["seeds"] == 2 and row["return of each seed"] == "100, 200"
    assert row["score, IQM [95 %]"].startswith("21.5") and row["core-hours"] == "1.00"
    published = row["published score, D4RL's own data"]
    assert published == "70.4 ± 8.7 (D4RL hopper-medium-replay-v2 of Hopper-v2, 1M updates, CORL)"
    assert from_data.row(record("bc", 50_000), report.published())["published score, D4RL's own data"].startswith(
        "29.8"
    )
    online = from_data.row(record("rlpd", 20_000), report.published())
    assert online["environment steps"] == "20,000" and online["published score, D4RL's own data"] == ""


def test_such_records_are_in_that_table_alone(pages):
    _from_data, generate, report = pages
    known, learned = report.published(), record("td3_bc", 50_000)
    online = {**record("sac", 20_000), "preset": "sac/online"}
    del online["data"], online["figure"]
    text = report.markdown([learned, online], known)
    first, _, rest = text.partition("## Learned from data")
    assert "campaign/sac/online" in first and "td3_bc" not in first
    assert "| td3_bc | Hopper-v5 | hopper-medium-replay (1,234" in rest.partition("## Sources")[0]
    assert "Learned from data" in (page := report.page([learned, online], known))
    assert "Hopper-v5, from hopper-medium-replay" in page  # curves over updates are not drawn beside those over steps
    assert generate.task(learned) == "Hopper-v5, from hopper-medium-replay (its own score 10)"


def test_the_table_of_the_campaign_leaves_them_to_theirs(pages, monkeypatch):
    _, generate, _ = pages
    learned = record("td3_bc", 50_000)
    monkeypatch.setattr(generate, "learning", lambda folder="learning": [learned])
    assert "td3_bc" not in generate.results_table(folder="campaign")
    page = generate.page("<!-- begin: data -->\n<!-- end -->")
    assert "| td3_bc | Hopper-v5 |" in page


def test_recorded_datasets_are_listed_with_checksum_and_references(pages, monkeypatch, tmp_path):
    from_data, _, _ = pages
    monkeypatch.setattr(from_data, "RESULTS", tmp_path)
    assert from_data.datasets_table() == "None is recorded yet."
    facts = {**FACTS, "name": "toy", "transitions": 1234, "episodes": 56, "sha256": "ab" * 32, "git": None}
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "toy.json").write_text(json.dumps(facts))
    row = "| `toy` | 1,234 | 56 | 300.0 | 9.8 | -20.3 and 3234.3: D4RL's | `abababababababab` |  |"
    assert row in from_data.datasets_table()
