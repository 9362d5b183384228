"""Sweeps: seeds times values in processes of their own, kept when finished, resumed when interrupted, listed when failed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rl_training.base.files import lock_folder
from rl_training.base.options import ConfigError
from rl_training.cli import main
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.runs import dump_yaml, newest_checkpoint
from rl_training.sweeps.plan import combinations, job_status, label_of, last_lines, make_job, parse_seeds, parse_values
from toys import same_end


@pytest.fixture
def config_file(tiny, tmp_path):
    """A file with a tiny PPO config, its runs going to ``tmp_path``."""

    def write(**changes):
        path = tmp_path / "config.yaml"
        path.write_text(dump_yaml(tiny("ppo", num_envs=2, **changes).plain()))
        return str(path)

    return write


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("7, 1-2,7") == [7, 1, 2]


@pytest.mark.parametrize("text", ["", "a", "4-0", "1,,2", "-3", "1-"])
def test_other_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="--seeds takes numbers and ranges"):
        parse_seeds(text)


def test_values_are_yaml_and_lists_stand_in_brackets():
    assert parse_values("a.b=1e-3,3e-4") == ("a.b", [1e-3, 3e-4])
    assert parse_values("sizes=[64,64],[256]") == ("sizes", [[64, 64], [256]])
    assert parse_values("x=tanh, null ,true") == ("x", ["tanh", None, True])
    for text in ("x", "x=", "=1", "x=[1"):
        with pytest.raises(ConfigError, match="--set"):
            parse_values(text)


def test_combinations_are_every_choice():
    assert combinations({"a": [1, 2], "b": [3, 4]}) == [
        {"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4},
    ]  # fmt: skip
    assert combinations({}) == [{}]


def test_labels_are_short_unique_and_fit_into_file_names():
    assert label_of({}, []) == "default"
    assert label_of({"algo_kwargs.learning_rate": 1e-3}, ["algo_kwargs.learning_rate"]) == "learning_rate=0.001"
    assert label_of({"algo_kwargs.hidden_sizes": [64, 64]}, ["algo_kwargs.hidden_sizes"]) == "hidden_sizes=64x64"
    two = ["a.rate", "b.rate"]
    assert label_of({"a.rate": 1, "b.rate": 2}, two) == "a.rate=1,b.rate=2"
    odd = [label_of({"x": value}, ["x"]) for value in ("a/b", "a b", "a:b", {"k": [1]}, "y" * 300)]
    assert len(set(odd)) == len(odd) and all("/" not in label and len(label) <= 80 for label in odd)


def test_the_last_lines_of_a_long_or_torn_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_lines(path) == []
    lines = [json.dumps({"step": i, "time": float(i), "filler": "x" * 50}) for i in range(3000)]
    path.write_text("\n".join(lines) + '\n{"step": 3000, "ti')
    found = last_lines(path)
    assert found[-1]["step"] == 2999 and found[0]["step"] > 0
    assert [line["step"] for line in found] == list(range(found[0]["step"], 3000))


def test_a_sweep_trains_every_seed_and_value_and_keeps_what_is_finished(config_file, tmp_path, capsys):
    words = ["sweep", "--config", config_file(), "--seeds", "0-1", "--set", "algo_kwargs.gamma=0.9,0.99", "--name", "s"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "4 finished in" in shown.out
    assert sum(line.startswith("finished ") for line in shown.err.splitlines()) == 4  # a slow machine shows totals too
    runs = sorted(path.name for path in (tmp_path / "s").glob("ppo__*"))
    assert runs == [f"ppo__CartPole-v1__seed{seed}__gamma={gamma}" for seed in (0, 1) for gamma in (0.9, 0.99)]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.ckpt")}
    assert main(words) == 0
    assert "4 of 4 runs are finished and kept" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.ckpt")}


def test_a_failing_run_is_listed_and_stops_no_other(config_file, tmp_path, capsys):
    words = [
        "sweep",
        "--config",
        config_file(),
        "--set",
        "env_id=CartPole-v1,NoSuchThing-v1",
        "--name",
        "s",
        "--jobs",
        "2",
    ]
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "1 finished, 1 failed" in shown
    assert "NoSuchThing-v1: cannot make the environment 'NoSuchThing-v1'" in " ".join(shown.split())


def test_a_sweep_of_other_runs_under_the_same_name_is_refused(config_file, tmp_path, capsys):
    words = ["sweep", "--config", config_file(total_timesteps=64), "--name", "s"]
    assert main(words) == 0
    assert main([*words, "--total-timesteps", "65"]) == 2
    assert "differs in total_timesteps; repeat its command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "algo_kwargs.gama=0.9"], "did you mean 'gamma'?"),
        (["--set", "algo_kwargs.gamma=0.9,2"], "less than or equal to 1"),
        (["--jobs", "0"], "at least 1"),
        (["--seed", "3", "--seeds", "0-4"], "give --seed or --seeds, not both"),
        (["--set", "seed=1,2"], "--set seed: use --seeds"),
        (["--address", "here:1"], "--address goes with --backend ray"),
    ],
)
def test_mistakes_show_before_anything_starts(config_file, tmp_path, capsys, words, complaint):
    assert main(["sweep", "--config", config_file(), "--name", "s", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.glob("s/ppo__*"))


def test_a_folder_that_another_sweep_is_at_work_in_is_left_alone(config_file, tmp_path, capsys):
    (tmp_path / "s").mkdir()
    with lock_folder(tmp_path / "s"):
        assert main(["sweep", "--config", config_file(), "--name", "s"]) == 1
    assert "s is in use by another process" in capsys.readouterr().err
    assert not list(tmp_path.glob("s/ppo__*"))


def start(words):
    return subprocess.Popen([sys.executable, "-m", "rl_training", *words], stderr=subprocess.PIPE, text=True)


def saved(folder):
    return list(folder.glob("ppo__*/checkpoints/step_*.ckpt"))


def wait_for_checkpoint(folder, before, process):
    deadline = time.monotonic() + 500
    while not set(saved(folder)) - before:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)


def test_a_sweep_interrupted_twice_goes_on_and_ends_as_if_it_had_not_been(config_file, tmp_path):
    steps = {"total_timesteps": 12_000, "checkpoint_interval": 500, "log_interval": 500, "eval_interval": 0}
    words = ["sweep", "--config", config_file(**steps), "--seeds", "5"]
    for how, code in ((signal.SIGINT, 3), (signal.SIGKILL, -signal.SIGKILL)):
        before = set(saved(tmp_path / "cut"))
        process = start([*words, "--name", "cut"])
        wait_for_checkpoint(tmp_path / "cut", before, process)
        os.kill(process.pid, how)
        assert process.wait(500) == code
    assert main([*words, "--name", "cut"]) == 0  # waits for an orphan that is still saving
    assert main([*words, "--name", "straight"]) == 0
    cut, straight = (newest_checkpoint(next((tmp_path / name).glob("ppo__*")))[1] for name in ("cut", "straight"))
    same_end(cut, straight)


def test_a_run_that_stopped_before_it_saved_anything_starts_anew(tiny, tmp_path):
    from rl_training.sweeps.worker import run_job

    job = make_job(tiny("ppo", num_envs=2), tmp_path / "s", "default")
    (job.run_dir / "checkpoints").mkdir(parents=True)
    (job.run_dir / "metrics.jsonl").write_text('{"step": 7, "ti')
    assert job_status(job).state == "waiting"
    assert run_job(job) == ""
    assert job_status(job).state == "finished" and job_status(job).step >= 128
    assert load_checkpoint(next(job.run_dir.glob("checkpoints/step_*"))).trainer_state["step"] >= 128
