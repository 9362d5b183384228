"""Sweep folders from anybody: odd manifests, notes and metrics are one line or a remark, never a traceback or a wait."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.sweeps.backends import Processes
from rl_training.sweeps.plan import Job, job_status, last_lines, make_job, open_sweep
from rl_training.sweeps.space import chosen
from rl_training.sweeps.tune import Evaluations


@pytest.fixture
def job(tmp_path):
    """A run of a sweep whose folder is there already."""
    job = make_job(TrainConfig(algo="ppo", env_id="CartPole-v1", total_timesteps=100), tmp_path / "sweep", "default")
    (job.folder / "jobs").mkdir(parents=True)
    return job


def sweep(job):
    words = ["sweep", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "100", "--name", "sweep"]
    return main([*words, "--output-dir", str(job.folder.parent)])


def link_to_mine(path):
    mine = path.parents[2] / "mine"
    mine.write_text("mine")
    path.symlink_to(mine)


def refused(job, capsys, what):
    assert sweep(job) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and what in complaint


@pytest.mark.parametrize("content", ["[]", "{", "", "7", "[" * 100_000, '{"%s": 5}', '{"%s": [1]}'])
def test_an_odd_manifest_is_one_line(job, content, capsys):
    (job.folder / "sweep.json").write_text(content.replace("%s", job.name))
    refused(job, capsys, str(job.folder / "sweep.json"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_mine])
@pytest.mark.parametrize("which", ["sweep.json", "note", "log", ".lock"])
def test_what_is_no_file_in_a_sweep_is_neither_read_nor_written(job, make, which, capsys):
    path = {"note": job.note_path, "log": job.log_path}.get(which, job.folder / which)
    make(path)
    refused(job, capsys, f"{path} is a")
    mine = job.folder.parent / "mine"
    assert not mine.exists() or mine.read_text() == "mine"


def test_linked_folders_in_a_sweep_are_not_written_into(job, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    job.run_dir.symlink_to(tmp_path / "elsewhere")
    refused(job, capsys, f"{job.run_dir} is a symbolic link")
    job.run_dir.unlink()
    (job.folder / "jobs").rmdir()
    (job.folder / "jobs").symlink_to(tmp_path / "elsewhere")
    refused(job, capsys, "jobs is a symbolic link")
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("content", ["[]", "{", "", "7", '{"error": [1]}', '{"error": {"a": 2}}'])
def test_a_note_of_any_content_says_that_the_run_failed(job, content):
    job.note_path.write_text(content)
    status = job_status(job)
    assert status.state == "failed" and isinstance(status.error, str) and status.error
    open_sweep(job.folder, [job])  # and the sweep tries it again


@pytest.mark.parametrize("facts", [[], {"status": 5, "stop_kind": [1]}, {"stop_kind": {}}, {"status": None}])
def test_metadata_of_any_content_gives_a_state(job, facts):
    job.run_dir.mkdir()
    (job.run_dir / "metadata.json").write_text(json.dumps(facts))
    assert job_status(job).state in ("failed", "interrupted", "waiting")


ODD_LINES = """
[]
7
{"step": "a", "time": 1}
{"step": 1, "time": "b"}
{"step": 1e999, "time": 1}
{"step": null, "time": null, "eval_return_mean": 1}
{"eval_return_mean": 5}
"eval_return_mean"
{"step": {}, "eval_return_mean": {}}
{"step": 9, "time": 9, "eval_return_mean": "high"}
eval_return_mean {{{
"""


def test_odd_lines_of_metrics_leave_the_status_as_it_is(job):
    job.run_dir.mkdir()
    good = [{"step": step, "time": float(step), "eval_return_mean": 3.0 * step} for step in (10, 20)]
    lines = [json.dumps(line) for line in good]
    (job.run_dir / "metrics.jsonl").write_text(lines[0] + ODD_LINES + lines[1] + "\n")
    status = job_status(job)
    assert (status.step, status.last_return) == (20, 60.0)
    curve = Evaluations(job.run_dir / "metrics.jsonl")
    assert curve.read() == {10: 30.0, 20: 60.0} and curve.last == 60.0


def test_metrics_that_are_a_pipe_are_not_waited_for(job):
    job.run_dir.mkdir()
    os.mkfifo(job.run_dir / "metrics.jsonl")
    assert last_lines(job.run_dir / "metrics.jsonl") == [] and job_status(job).step == 0
    assert Evaluations(job.run_dir / "metrics.jsonl").last is None


def test_evaluations_are_read_again_when_the_file_was_rewritten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "eval_return_mean": 1.0}\n')
    curve = Evaluations(path)
    assert curve.read() == {1: 1.0}
    path.write_text(
        '{"step": 1, "a": "' + "x" * 40 + '", "eval_return_mean": 1.5}\n{"step": 2, "eval_return_mean": 2.0}\n'
    )
    assert curve.read() == {1: 1.5, 2: 2.0}


@pytest.mark.parametrize("name", ["study.db", "study.json", "importance.png", "study.db-journal"])
@pytest.mark.parametrize("make", [os.mkfifo, link_to_mine])
def test_a_study_of_links_and_pipes_is_refused(job, name, make, capsys):
    pytest.importorskip("optuna")
    make(job.folder / name)
    words = ["tune", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "100", "--trials", "1"]
    assert main([*words, "--name", "sweep", "--output-dir", str(job.folder.parent)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and f"{name} is a" in complaint


@pytest.mark.parametrize("name", ["study.db", "study.json"])
def test_a_study_of_any_content_is_one_line(job, name, capsys):
    pytest.importorskip("optuna")
    (job.folder / name).write_bytes(b"[" * 5000)
    words = ["tune", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "100", "--trials", "1"]
    assert main([*words, "--name", "sweep", "--output-dir", str(job.folder.parent)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and name in complaint


@pytest.mark.parametrize("params", [{"env_id": '"stranger:X-v0"'}, {"unheard": 1}, {"env_id": "not JSON"}])
def test_a_trial_of_a_study_is_of_the_search_space_or_refused(params):
    space = {"env_id": ["CartPole-v1", "Acrobot-v1"], "algo_kwargs.hidden_sizes": [[64], [8, 8]]}
    good = {"env_id": '"Acrobot-v1"', "algo_kwargs.hidden_sizes": "[8, 8]"}
    assert chosen(space, good) == {"env_id": "Acrobot-v1", "algo_kwargs.hidden_sizes": [8, 8]}
    with pytest.raises(ValueError, match="which the search space does not"):
        chosen(space, params)


def test_a_worker_imports_nothing_from_the_folder_that_one_stands_in(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    for name in ("json", "torch", "contextlib"):
        (tmp_path / f"{name}.py").write_text("open('it_ran', 'w')\n")
    (job.folder / "jobs").mkdir(exist_ok=True)
    backend = Processes(1, 1)
    backend.start(Job(job.name, {**job.config, "algo": "unheard of"}, job.folder, job.label))
    until = time.monotonic() + 60
    while not (ended := backend.ended()) and time.monotonic() < until:
        time.sleep(0.05)
    assert "unheard of" in ended[0][1] and not (tmp_path / "it_ran").exists()
