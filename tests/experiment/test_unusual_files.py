"""Going on with a run directory from somebody else: nothing outside it is read or written, and nothing waits for ever."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from rl_training.cli import main
from rl_training.data.dataset_files import load_transition_dataset
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from toys import tiny_config

    config = tiny_config("ppo", tmp_path_factory.mktemp("trained"), total_timesteps=64, checkpoint_interval=32)
    return get_algorithm_spec("ppo").train(config.replace(loggers=["csv"]))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a run directory, and beside it a file and a folder of the user's own."""
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "my folder").mkdir()
    return shutil.copytree(trained.run_dir, tmp_path / "run")


FILES = ["metrics.jsonl", "metrics.csv", "metadata.json", "config.yaml", "error.txt", ".lock"]
FOLDERS = ["checkpoints", "tensorboard", "videos", "wandb"]
LATER = ["tensorboard/events", "videos/deep/a.mp4", "checkpoints/best.ckpt", "checkpoints/another.ckpt"]


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(run, tmp_path, capsys, what):
    """Resuming it is refused in one line, and changes no file."""
    before = contents(tmp_path)
    assert main(["resume", str(run), "--total-timesteps", "96"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and what in complaint
    assert contents(tmp_path) == before and not [*(tmp_path / "my folder").iterdir()]


@pytest.mark.parametrize("name", FILES + LATER)
def test_a_link_in_place_of_a_file_is_not_written_through(run, name, tmp_path, capsys):
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(tmp_path / "mine.txt")
    refused(run, tmp_path, capsys, f"{run / name} is a symbolic link, not a regular file")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_place_of_a_folder_is_not_written_into(run, name, tmp_path, capsys):
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(tmp_path / "my folder")
    refused(run, tmp_path, capsys, f"{run / name} is a symbolic link, not a folder of its own")


@pytest.mark.parametrize("name", FILES + LATER)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run, name, tmp_path, capsys):
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(run / name)
    refused(run, tmp_path, capsys, f"{run / name} is a pipe, not a regular file")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("mine.txt", path)])
def test_a_newest_checkpoint_that_is_no_file_gives_way_to_the_one_before(run, make, trained):
    newest = run / "checkpoints" / trained.checkpoint_path.name
    newest.unlink()
    make(newest)
    with pytest.warns(UserWarning, match="not a regular file; going back to step_0000000032.ckpt"):
        assert evaluate_checkpoint(run, 1)["eval_episodes"] == 1


def test_a_checkpoint_or_dataset_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for use in (load_checkpoint, lambda path: load_transition_dataset("npz", dataset_path=path)):
        with pytest.raises(ValueError, match="is a pipe, not a regular file"):
            use(tmp_path / "pipe")


def test_a_linked_checkpoint_and_a_linked_run_that_the_user_names_are_used(run, trained, tmp_path):
    (tmp_path / "latest.ckpt").symlink_to(run / "checkpoints" / trained.checkpoint_path.name)
    (tmp_path / "latest").symlink_to(run)
    assert evaluate_checkpoint(tmp_path / "latest.ckpt", 1)["eval_episodes"] == 1
    assert resume_training(tmp_path / "latest", total_timesteps=96).metrics["global_step"] == 96


@pytest.mark.parametrize("content", ["[]", "{", "", "null"])
def test_metadata_that_is_no_object_is_one_line(run, content, capsys):
    (run / "metadata.json").write_text(content)
    assert main(["resume", str(run), "--total-timesteps", "96"]) == 2
    assert str(run / "metadata.json") in capsys.readouterr().err


def test_odd_lines_of_metrics_are_dropped_by_a_resumed_run(run):
    good = (run / "metrics.jsonl").read_bytes()
    odd = [b"[]", b"7", b'{"step": ' + b"9" * 400 + b"}", b"[" * 100_000, b"\xff\xfe", b'{"step": {}}', b"{"]
    (run / "metrics.jsonl").write_bytes(b"\n".join(odd) + b"\n" + good)
    resume_training(run, total_timesteps=96)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert lines[: len(good.splitlines())] == good.decode().splitlines()
    assert all(isinstance(json.loads(line)["step"], int) for line in lines)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"step,a\n1," + b"x" * 200_000])
def test_a_table_that_no_run_wrote_is_refused_and_left_as_it_is(run, content, capsys):
    (run / "metrics.csv").write_bytes(content)
    assert main(["resume", str(run), "--total-timesteps", "96"]) == 2
    assert f"{run / 'metrics.csv'} is not the table of a run" in capsys.readouterr().err
    assert (run / "metrics.csv").read_bytes() == content


def test_a_checkpoint_outside_a_run_is_not_resumed_where_the_file_says(trained, tmp_path, capsys):
    alone = tmp_path / "somewhere" / "a.ckpt"
    alone.parent.mkdir()
    shutil.copy(trained.checkpoint_path, alone)
    before = sorted(trained.run_dir.parent.iterdir())
    assert main(["resume", str(alone), "--total-timesteps", "96"]) == 2
    complaint = capsys.readouterr().err
    assert "lies in no run directory" in complaint and "--output-dir" in complaint and complaint.count("\n") == 1
    with pytest.raises(CheckpointError, match="output_dir="):
        resume_training(alone, total_timesteps=96, run_suffix="more")
    assert sorted(trained.run_dir.parent.iterdir()) == before

    assert main(["resume", str(alone), "--total-timesteps", "96", "--output-dir", str(tmp_path / "out")]) == 0
    assert len([*(tmp_path / "out").iterdir()]) == 1


def test_an_agent_alone_makes_no_folder_where_its_file_says(trained, tmp_path):
    before = sorted(trained.run_dir.parent.iterdir())
    shutil.copy(trained.run_dir / "checkpoints" / "best.ckpt", tmp_path / "best.ckpt")
    with pytest.raises(RuntimeError, match="holds the agent alone"):
        resume_training(tmp_path / "best.ckpt", total_timesteps=96)
    assert sorted(trained.run_dir.parent.iterdir()) == before
