"""One odd run directory loses no other: it is named as unreadable, with the reason, and the rest is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from rl_training.analysis.records import CACHE, load_runs
from rl_training.cli import main
from toys import written_run


def config(**values):
    return lambda run: (run / "config.yaml").write_text(json.dumps({"algo": "ppo", "env_id": "Odd-v0"} | values))


def metadata(**values):
    def change(run):
        facts = json.loads((run / "metadata.json").read_text())
        (run / "metadata.json").write_text(json.dumps({**facts, **values}))

    return change


def text(name, content):
    def change(run):
        (run / name).unlink(missing_ok=True)
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def pipe(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        (run / name).parent.mkdir(exist_ok=True)
        os.mkfifo(run / name)

    return change


def link(name):
    def change(run):
        secret = run.parents[1] / "secret"
        secret.write_text("TOP-SECRET")
        (run / name).unlink(missing_ok=True)
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).symlink_to(secret)

    return change


def folder(name):
    def change(run):
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()

    return change


def linked_folder(run):
    elsewhere = run.parents[1] / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.gif").write_text("TOP-SECRET")
    (run / "videos").symlink_to(elsewhere)


def sparse(name, size):
    def change(run):
        with open(run / name, "wb") as file:
            file.truncate(size)

    return change


LAUGHS = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))
UNREADABLE = {
    "a config that is a list": text("config.yaml", "[1, 2]"),
    "a config that is empty": text("config.yaml", ""),
    "a config of bytes": text("config.yaml", b"\xff\xfe\x00"),
    "a config with an algorithm in a list": config(algo=["ppo"]),
    "a config with a number for an environment": config(env_id=7),
    "a config with a seed in words": config(seed="seven"),
    "a config with a seed of 400 digits": config(seed=10**399),
    "a config without a seed but null": config(seed=None),
    "a config of references to references": text("config.yaml", f"algo: ppo\nenv_id: X\n{LAUGHS}"),
    "a config nested two hundred times": text("config.yaml", "algo: ppo\nenv_id: X\nx: " + "[" * 200 + "]" * 200),
    "a config nested fifty times": config(algo_kwargs=json.loads("[" * 50 + "]" * 50)),
    "a config of ten thousand values": config(algo_kwargs=[0] * 10_000),
    "a config of a terabyte": sparse("config.yaml", 1 << 40),
    "a config that is a pipe": pipe("config.yaml"),
    "a config that is a link": link("config.yaml"),
    "a config that is a folder": folder("config.yaml"),
    "metadata that is a list": text("metadata.json", "[1]"),
    "metadata that is no JSON": text("metadata.json", "{"),
    "metadata nested a hundred thousand times": text("metadata.json", "[" * 100_000),
    "metadata with a step in words": metadata(step="many"),
    "metadata with a step that is a list": metadata(step=[3]),
    "metadata with infinitely many seconds": metadata(seconds=float("inf")),
    "metadata with seconds in words": metadata(seconds="long"),
    "metadata with a number for a status": metadata(status=5),
    "metadata with a number for a command": metadata(command=17),
    "metadata with a number for a commit": metadata(git={"commit": 12}),
    "metadata with a list of versions": metadata(versions=["a"]),
    "metadata with a text for hardware": metadata(hardware="abacus"),
    "metadata with a number for a start": metadata(started={"a": 1}),
    "metadata that is a pipe": pipe("metadata.json"),
    "metadata that is a link": link("metadata.json"),
    "metadata that is a folder": folder("metadata.json"),
    "metrics that are a pipe": pipe("metrics.jsonl"),
    "metrics that are a link": link("metrics.jsonl"),
    "metrics that are a folder": folder("metrics.jsonl"),
    "metrics of a terabyte without a line": sparse("metrics.jsonl", 1 << 40),
    "an error that is a link": link("error.txt"),
    "an error that is a pipe": pipe("error.txt"),
    "a video that is a link": link("videos/a.gif"),
    "a video that is a pipe": pipe("videos/a.mp4"),
    "videos in a linked folder": linked_folder,
}
LINES = [
    '{"step": "a"}', '{"step": 1e999}', '{"step": -5, "eval_return_mean": 1}', "[]", "7", "null", '"text"', "{",
    '{"step": 1, "eval_return_mean": "high"}', '{"step": 2, "eval_return_mean": [1]}', '{"step": 3, "episode_return": {}}',
    '{"step": 4, "eval_return_mean": 1e308, "eval_score": "x"}', '{"step": 5, "eval_return_mean": NaN}', "[" * 9000,
    '{"step": 6, "loss": 0.1, "episode_return": 1.2.3, "x": 0}', '{"step": ' + "9" * 5000 + "}", "\x00\x01",
    '{"step": ' + "9" * 500 + ', "loss": 0.1, "episode_return": 1.0}', '{"step": 7, "episode_return": ' + "9" * 5000 + "}",
]  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    """A folder with one good run and one that a test makes odd, and the odd one."""
    written_run(tmp_path / "runs", seed=1)
    return tmp_path / "runs", written_run(tmp_path / "runs", algo="dqn", seed=2)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_unreadable_run_is_named_with_the_reason(runs, kind):
    folder, odd = runs
    UNREADABLE[kind](odd)
    records = load_runs([folder])
    assert [run.algo for run in records.runs] == ["ppo"]
    assert len(records.problems) == 1 and re.fullmatch(rf"{odd}: .+", records.problems[0])


def test_a_report_of_one_good_run_among_all_odd_ones(runs, tmp_path, capsys):
    folder, first = runs
    for number, change in enumerate(UNREADABLE.values()):
        change(written_run(tmp_path / f"odd{number}" / "runs"))
    paths = [str(folder), *(str(tmp_path / f"odd{number}") for number in range(len(UNREADABLE)))]
    page = tmp_path / "report.html"
    for command in (["report", *paths, "-o", str(page)], ["leaderboard", *paths]):
        assert main(command) == 0
        assert capsys.readouterr().err.count("left out: ") == len(UNREADABLE)
    content = page.read_text()
    assert first.name in content and content.count("Not read: ") == len(UNREADABLE) and "TOP-SECRET" not in content


def test_odd_lines_of_metrics_are_skipped(runs, tmp_path):
    folder, odd = runs
    with open(odd / "metrics.jsonl", "a") as file:
        file.write("\n".join(LINES) + "\n")
    record = next(run for run in load_runs([folder]).runs if run.algo == "dqn")
    assert record.metrics.final == 20.0 and record.metrics.evaluations.values == [10.0, 20.0]
    assert main(["report", str(folder), "-o", str(tmp_path / "a.html")]) == 0


@pytest.mark.parametrize(
    "change",
    [
        metadata(status="\ud800 \x1b[31m", git=None, versions=None, hardware=None, seconds=None, step=None),
        metadata(command=[1, None, {"a": [2]}], versions={"a": [1]}, hardware={"processor": {}}, stop_kind="unheard of"),
        config(seed=3, algo_kwargs={"a": float("nan"), "\ud800": "\x1b]0;title\x07"}, output_dir="\u202e"),
        text("config.yaml", "algo: ppo\nenv_id: X\n2020-01-01: 2021-01-01\n? [1, 2]\n: !!set {a, b}\n"),
        lambda run: os.utime(run / "metrics.jsonl", (2**38, 2**38)),
        lambda run: os.rename(os.fsencode(run), os.fsencode(run.parent) + b"/\xff\xfe\x1b"),
        lambda run: (run / "videos" / "a" / "b").mkdir(parents=True),
        text("error.txt", b"\xff" * 3_000_000),
    ],
)  # fmt: skip
def test_what_is_unusual_but_readable_is_reported(runs, change, tmp_path, capsys):
    folder, odd = runs
    change(odd)
    assert main(["report", str(folder), "-o", str(tmp_path / "report.html")]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main(["leaderboard", str(folder)]) == 0
    shown = capsys.readouterr()
    assert not shown.err and "\x1b" not in shown.out


@pytest.mark.parametrize(
    "cache",
    [
        "[]",
        "{",
        '{"format": 1, "runs": 7}',
        '{"format": 1, "runs": []}',
        '{"format": 1, "runs": {"../x\\u0000": 3, "%s": 5}}',
    ],
)
def test_an_odd_cache_is_as_good_as_none(runs, cache):
    folder, odd = runs
    (folder / CACHE).write_text(cache.replace("%s", odd.name))
    assert len(load_runs([folder]).runs) == 2


@pytest.mark.parametrize(
    "entry",
    [
        {"config": {"algo": ["x"], "env_id": "X"}},
        {"config": "ppo"},
        {"config": {"algo": None}},
        {"metrics": {"evaluations": [["a"], [1]]}},
        {"metrics": {"evaluations": [[1, 2], [1]]}},
        {"metrics": {"evaluations": [[200, 100], [1, 1]]}},
        {"metrics": {"final": "high"}},
        {"metrics": {"step": 1e300}},
        {"metrics": {"unheard": 1}},
    ],
)
def test_an_entry_of_a_cache_that_is_not_of_the_right_types_is_not_believed(runs, entry, tmp_path):
    folder, odd = runs
    load_runs([folder])
    cache = json.loads((folder / CACHE).read_text())
    for name, value in entry.items():
        both = isinstance(value, dict) and "algo" not in value
        cache["runs"][odd.name][name] = {**cache["runs"][odd.name][name], **value} if both else value
    (folder / CACHE).write_text(json.dumps(cache))
    assert main(["report", str(folder), "-o", str(tmp_path / "a.html")]) == 0
    assert [run.metrics.final for run in load_runs([folder]).runs] == [20.0, 20.0]


@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_cache_that_is_no_file_is_not_read(runs, kind):
    folder, _ = runs
    kind(folder / CACHE)
    assert len(load_runs([folder]).runs) == 2


def test_a_folder_that_cannot_be_listed_is_named(runs, monkeypatch):
    folder, odd = runs
    scan = os.scandir

    def refuse(path):
        if os.fspath(path) == str(odd):
            raise PermissionError(13, "Permission denied", str(odd))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    records = load_runs([folder])
    assert len(records.runs) == 1 and records.problems == [f"{odd}: Permission denied"]


def test_a_very_deep_folder_loses_no_run(runs):
    folder, _ = runs
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert len(load_runs([folder]).runs) == 2
    subprocess.run(["rm", "-r", folder / "d"], check=True)  # it is too deep for Python's own cleaning up
