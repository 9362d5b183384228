"""Run directories read back: groups, leaderboard, compare and the report's file."""

import csv
import io
import json
import re
import sys
import threading
import tracemalloc
import urllib.request
from pathlib import Path

import pytest

from rl_training.analysis import records, report
from rl_training.analysis.comparison import compare, groups_of, leaderboard
from rl_training.analysis.records import load_runs, summarise_metrics, thinned
from rl_training.analysis.statistics import iqm, stratified_bootstrap
from rl_training.cli import main
from rl_training.tracking.jsonl import MetricsFile
from toys import written_run


def ends(*scores):
    """Evaluations that end in each of these."""
    return [((100, 0.0), (200, score)) for score in scores]


@pytest.fixture
def runs(tmp_path):
    """Two groups of PPO that differ by learning rate, and one of DQN, on CartPole; SAC on Pendulum."""
    folder = tmp_path / "runs"
    for seed, (slow, fast, other) in enumerate(zip(ends(1, 2, 3), ends(4, 5, 6), ends(2, 4, 6)), start=1):
        written_run(folder / "slow", seed=seed, evaluations=slow, learning_rate=1e-4)
        written_run(folder / "fast", seed=seed, evaluations=fast, learning_rate=1e-3, episodes=((50, 1.0), (150, 3.0)))
        written_run(folder / "dqn", "dqn", seed=seed, evaluations=other)
        written_run(folder / "sac", "sac", "Pendulum-v1", seed=seed, evaluations=slow)
    return folder


def out(capsys, *words, code=0):
    assert main([*map(str, words)]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_runs_that_differ_by_seed_alone_are_one_group(runs):
    groups = groups_of(load_runs([runs]).runs)
    names = {group.name: group.scores for group in groups}
    assert names["ppo CartPole-v1 learning_rate=0.001"] == [4, 5, 6]
    assert names["ppo CartPole-v1 learning_rate=0.0001"] == [1, 2, 3]
    assert names["dqn CartPole-v1"] == [2, 4, 6] and len(names) == 4


def test_an_option_that_one_group_leaves_out_is_called_default(tmp_path):
    written_run(tmp_path, gamma=0.9)
    written_run(tmp_path)
    assert {group.label for group in groups_of(load_runs([tmp_path]).runs)} == {"ppo gamma=0.9", "ppo gamma=default"}


def test_the_score_is_the_last_evaluation_not_the_best(tmp_path):
    run = written_run(tmp_path, evaluations=((10, 1.0), (20, 500.0), (30, 7.0)))
    assert summarise_metrics(run / "metrics.jsonl").final == 7.0


def test_a_torn_last_line_is_passed_over(tmp_path):
    run = written_run(tmp_path, episodes=((5, 1.0),))
    whole = summarise_metrics(run / "metrics.jsonl")
    for torn in (
        '{"step": 300, "eval_return_mean": 9',
        '{"step": 300, "episode_return": 9',
        '{"step": 300, "x": 1, "episode_return": 9, ',
    ):
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(text + torn)
        assert summarise_metrics(run / "metrics.jsonl") == whole
        (run / "metrics.jsonl").write_text(text)


def test_lines_of_another_layout_say_the_same(tmp_path):
    rows = [
        {"step": 1, "episode_return": -1.5e-7},
        {"step": 2, "episode_return": None},
        {"step": 3, "episode_return": 4.0},
    ]
    rows += [{"step": 4, "episode_return": 5.0, "eval_return_mean": 6.0, "eval_score": 50.0}]
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    file = MetricsFile(ours)
    for row in rows:
        file.write(row.pop("step"), row)
    file.close()
    theirs.write_text(
        "".join(json.dumps(dict(reversed(json.loads(x).items())), separators=(",", ":")) + "\n" for x in ours.open())
    )
    assert summarise_metrics(ours) == summarise_metrics(theirs)
    found = summarise_metrics(ours)
    assert found.episodes == ([1, 3, 4], [-1.5e-7, 4, 5]) and (found.final, found.score, found.lines) == (6, 50, 4)


def test_a_long_file_is_read_line_by_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = {
        "step": 1,
        "time": 1.5,
        **{f"a_long_name_of_a_metric_{i}": 0.123456789 for i in range(30)},
        "episode_return": 2.0,
    }
    with open(path, "w") as file:
        for step in range(8_000):
            file.write(json.dumps({**line, "step": step}) + "\n")
    tracemalloc.start()
    found = summarise_metrics(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.lines == 8_000 and path.stat().st_size > 8_000_000
    assert peak < 1_500_000


def test_thinning_keeps_the_ends_and_the_shape():
    curve = thinned(range(20_000), [3.0 * x for x in range(20_000)])
    assert len(curve.steps) == 500 and (curve.steps[0], curve.steps[-1]) == (0, 19_999)
    assert curve.values == pytest.approx([3 * x for x in curve.steps])
    assert thinned([5, 5, 6], [1, 2, 3]) == ([5, 6], [2, 3])  # a step that was done again


def test_what_the_cache_knows_is_not_read_again(tmp_path, monkeypatch, capsys):
    for seed in range(4):
        points = [(step, float(step % 97)) for step in range(1, 3_001)]
        written_run(tmp_path / "runs", seed=seed, evaluations=points[::2], episodes=points)
    page = tmp_path / "report.html"
    out(capsys, "report", tmp_path / "runs", "-o", page)
    first = data_of(page.read_text())
    for group in first["env0"]["groups"]:
        assert all(len(group["views"][view]["x"]) <= 500 for view in ("evaluation", "training", "profile"))
    read = []
    monkeypatch.setattr(records, "summarise_metrics", lambda path, names: read.append(path) or summarise_metrics(path))
    out(capsys, "report", tmp_path / "runs", "-o", page)
    assert not read and data_of(page.read_text()) == first
    with open(next((tmp_path / "runs").glob("*seed2*")) / "metrics.jsonl", "a") as file:
        file.write('{"step": 4000, "eval_return_mean": 1.0}\n')
    out(capsys, "report", tmp_path / "runs", "-o", page)
    assert [path.parent.name for path in read] == ["ppo__CartPole-v1__seed2"]


def test_a_damaged_or_unwritable_cache_does_no_harm(runs, monkeypatch):
    before = load_runs([runs])
    for cache in runs.rglob(records.CACHE):
        cache.write_text('{"format": 1, "runs": {"ppo__CartPole-v1__seed1__learning_rate=0.001": 3}}')
    assert load_runs([runs]) == before

    def refuse(*args):
        raise PermissionError("read-only")

    for cache in runs.rglob(records.CACHE):
        cache.unlink()
    monkeypatch.setattr(records, "write_durably", refuse)
    assert load_runs([runs]) == before and not list(runs.rglob(records.CACHE))


def test_leaderboard_and_report_have_the_functions_numbers(runs, capsys, tmp_path):
    rows = json.loads(out(capsys, "leaderboard", runs, "--format", "json"))["rows"]
    cartpole = [row for row in rows if row["environment"] == "CartPole-v1"]
    assert [row["group"] for row in cartpole] == ["ppo learning_rate=0.001", "dqn", "ppo learning_rate=0.0001"]
    value, low, high = stratified_bootstrap(iqm, [2, 4, 6])
    assert (cartpole[1]["iqm"], cartpole[1]["iqm_low"], cartpole[1]["iqm_high"]) == (value, low, high)
    out(capsys, "report", runs, "-o", tmp_path / "r.html")
    shown = data_of((tmp_path / "r.html").read_text())["env0"]["groups"][1]["numbers"]["iqm"]
    assert shown == f"{value:.4g} [{low:.4g}, {high:.4g}]"


def test_leaderboard_formats_hold_the_same_rows(runs, capsys):
    rows = json.loads(out(capsys, "leaderboard", runs, "--format", "json"))["rows"]
    table = list(csv.DictReader(io.StringIO(out(capsys, "leaderboard", runs, "--format", "csv"))))
    assert [float(row["iqm"]) for row in table] == [row["iqm"] for row in rows]
    lines = out(capsys, "leaderboard", runs, "--format", "md").splitlines()
    assert len(lines) == 2 + len(rows) and lines[0].startswith("| environment | rank | group |")
    assert "ppo learning_rate=0.001" in out(capsys, "leaderboard", runs)


def test_compare_says_how_probably_a_is_better(runs, capsys):
    rows = json.loads(out(capsys, "compare", runs / "fast", runs / "dqn", "--format", "json"))["rows"]
    assert rows[0]["a_better"] == pytest.approx(
        (1.5 + 2 + 2.5) / 9
    )  # 4 beats 2 and ties 4, 5 beats 2 and 4, 6 ties 6 as well
    assert rows[0]["iqm_difference"] == 1 and [row["mean"] for row in rows] == [5, 4]
    table = out(capsys, "compare", runs / "fast", runs / "dqn")
    assert "0.67 [" in table and "95 % intervals" in table
    assert out(capsys, "compare", runs / "fast", runs / "dqn", "--format", "csv").startswith(
        "environment,runs_of,runs,iqm"
    )


def test_comparisons_over_environments_average_probabilities_only(runs):
    every = load_runs([runs]).runs
    ppo, rest = ([run for run in every if (run.algo == "ppo") == own] for own in (True, False))
    found = compare(every, rest)
    assert [env.env_id for env in found.environments] == ["CartPole-v1", "Pendulum-v1"]
    probabilities = [env.improvement.value for env in found.environments]
    assert found.improvement.value == pytest.approx(sum(probabilities) / 2) and found.scores is None
    assert any("not on one scale" in note for note in found.notes)
    assert any("3 groups on CartPole-v1" in note for note in found.notes)
    assert any("only B" in note and "Pendulum" in note for note in compare(ppo, rest).notes)


def test_normalised_scores_are_averaged_over_environments(tmp_path):
    for env_id, score in (("Hopper-v5", 20.0), ("Pendulum-v1", 60.0)):
        run = written_run(tmp_path, "iql", env_id)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 300, "eval_return_mean": 1.0, "eval_score": score}) + "\n")
    every = load_runs([tmp_path]).runs
    assert compare(every, every).scores[0]["iqm"].value == 40


def test_a_run_without_evaluations_stands_in_the_table(runs, capsys, tmp_path):
    written_run(runs / "new", "iqn", evaluations=(), status="running")
    page = tmp_path / "r.html"
    out(capsys, "report", runs, "-o", page)
    assert page.read_text().count('<span class="none">no evaluation</span>') == 1
    row = json.loads(out(capsys, "leaderboard", runs, "--format", "json"))["rows"][3]
    assert (row["group"], row["iqm"], row["note"]) == ("iqn", None, "1 of 1 not finished, no evaluation")


def test_failures_videos_and_provenance_are_on_the_page(runs, capsys, tmp_path):
    run = written_run(runs / "bad", "fqf", status="failed")
    (run / "error.txt").write_text("KeyError: <the simulator lost a wheel>")
    (run / "videos").mkdir()
    (run / "videos" / "episode.gif").write_bytes(b"GIF89a")
    (runs / "broken").mkdir()
    (runs / "broken" / "config.yaml").write_text("algo: [")
    (runs / "broken" / "metadata.json").write_text("{}")
    page = tmp_path / "r.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    assert "left out: " in capsys.readouterr().err
    text = page.read_text()
    assert "KeyError: &lt;the simulator lost a wheel&gt;" in text and "broken: config.yaml is not valid YAML" in text
    assert 'src="data:image/gif;base64,R0lGODlh"' in text
    assert "abcdef012345" in text and "with changes" in text and "rl-training train --seed 1" in text
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)


def test_mistakes_are_one_clear_line(runs, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    nothing = written_run(tmp_path / "nothing", evaluations=())
    page = tmp_path / "r.html"
    for words, message in [
        (["report", tmp_path / "empty", "-o", page], "holds no run"),
        (["report", tmp_path / "away", "-o", page], "no folder at"),
        (["report", tmp_path / "file", "-o", page], "is a file, not a run directory"),
        (["report", nothing, "-o", page], "none of the 1 runs has an evaluation yet"),
        (["report", runs, "-o", tmp_path / "file" / "r.html"], "cannot write"),
        (["report", runs, "-o", tmp_path / "empty"], "cannot write"),
        (["compare", runs / "sac", runs / "dqn"], "no environment in common"),
        (["compare", nothing, runs / "dqn"], "has an evaluation yet"),
        (["leaderboard", nothing], "has an evaluation yet"),
        (["leaderboard", tmp_path / "away"], "no folder at"),
    ]:
        said = out(capsys, *words, code=2)
        assert message in said and said.startswith("rl-training: error: ") and said.count("\n") == 1, said
    assert not page.exists()


def test_a_read_only_folder_is_one_clear_line(runs, capsys, monkeypatch, tmp_path):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(report, "write_durably", refuse)
    assert "cannot write" in out(capsys, "report", runs, "-o", tmp_path / "r.html", code=2)


def test_the_live_server_says_when_there_is_something_new(runs):
    with report.server([runs]) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{http.server_address[1]}/"

        def get(path=""):
            return urllib.request.urlopen(root + path).read().decode()

        before = json.loads(get("version"))["version"]
        assert f'data-version="{before}"' in get() and json.loads(get("version"))["version"] == before
        written_run(runs / "more", seed=9, evaluations=((100, 1.0), (200, 77.5)), learning_rate=1e-4)
        assert json.loads(get("version"))["version"] != before and "77.5" in get()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get("etc/passwd")
        with pytest.raises(ValueError, match="choose another with --port"):
            report.server([runs], port=http.server_address[1])
        http.shutdown()


def test_runs_of_real_training_are_read(tmp_path, capsys, tiny):
    from rl_training.experiment.registry import get_algorithm_spec

    for seed in (1, 2):
        get_algorithm_spec("ppo").train(tiny("ppo", seed=seed, output_dir=tmp_path / "runs"))
    board = leaderboard(groups_of(load_runs([tmp_path / "runs"]).runs))["CartPole-v1"]
    assert [len(standing.group.runs) for standing in board] == [2] and board[0].statistics["iqm"].value > 5
    assert "2 runs" in out(capsys, "report", tmp_path / "runs", "-o", tmp_path / "r.html")


def test_the_numbers_need_no_torch():
    import subprocess

    code = "import sys, rl_training.analysis.report, rl_training.commands.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent).returncode == 0


def test_reports_draw_success_and_what_callbacks_log(tmp_path, capsys):
    for seed in (1, 2):
        run = written_run(tmp_path / "runs", seed=seed, episodes=[(50, 1.0)])
        facts = json.loads((run / "metadata.json").read_text())
        (run / "metadata.json").write_text(json.dumps({**facts, "curves": ["success_rate", "<mine>", "absent", 3]}))
        with open(run / "metrics.jsonl", "a") as file:
            for step in (60, 120):
                numbers = {"episode_return": 1.0, "success_rate": step / 120, "<mine>": seed, "loss": 9.0}
                file.write(json.dumps({"step": step, **numbers}) + "\n")
    for _ in range(2):  # read, and then from the cache
        out(capsys, "report", tmp_path / "runs", "-o", tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text()
        views = data_of(page)["env0"]["groups"][0]["views"]
        assert views["more:success_rate"]["x"][-1] == 120 and views["more:success_rate"]["y"][-1] == 1.0
        assert views["more:<mine>"]["y"] == [1.5] * len(views["more:<mine>"]["x"])
        assert "more:loss" not in views and "more:absent" not in views
        assert 'value="more:success_rate"' in page and 'value="more:&lt;mine&gt;"' in page
