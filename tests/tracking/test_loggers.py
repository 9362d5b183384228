"""Where metrics go: tables that later columns and resumed runs do not spoil, Weights & Biases, and loggers of one's own."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest

from rl_training import PPO, Logger
from rl_training.cli import main
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from rl_training.tracking.csv import CSVFile
from toys import StopAt


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_takes_new_columns_without_spoiling_old_rows(tmp_path):
    file = CSVFile(tmp_path / "metrics.csv")
    file.write(1, {"a": 0.5})
    file.write(2, {"b": 7, "a": float("nan")})
    file.write(3, {'odd, "name"': 1.0})
    file.close()
    rows = [{k: v for k, v in row.items() if k != "time"} for row in table(tmp_path / "metrics.csv")]
    assert rows == [
        {"step": "1", "a": "0.5", "b": "", 'odd, "name"': ""},
        {"step": "2", "a": "", "b": "7", 'odd, "name"': ""},
        {"step": "3", "a": "", "b": "", 'odd, "name"': "1.0"},
    ]


def test_csv_forgets_what_is_done_again_and_lines_cut_short(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,time,a,b\n10,1.0,0.1,0.2\n20,2.0,0.3,0.4\n30,3.0,0.5,0.6\n1")
    file = CSVFile(path, resume_step=20)
    file.write(25, {"b": 0.7, "c": 0.8})
    file.close()
    assert [(row["step"], row["a"], row["b"], row["c"]) for row in table(path)] == [
        ("10", "0.1", "0.2", ""), ("20", "0.3", "0.4", ""), ("25", "", "0.7", "0.8"),
    ]  # fmt: skip


def test_a_run_writes_the_same_lines_as_csv_and_jsonl_resumed_or_not(tiny):
    config = tiny("ppo", loggers=["csv"], log_interval=16, eval_interval=48)
    first = get_algorithm_spec("ppo").train(config, callbacks=[StopAt(64)])
    run_dir = resume_training(first.run_dir).run_dir
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = table(run_dir / "metrics.csv")
    assert [{k: json.loads(v) for k, v in row.items() if v and k != "time"} for row in rows] == [
        {k: v for k, v in line.items() if v is not None and k != "time"} for line in lines
    ]
    assert {"eval_return_mean", "policy_loss", "gradient_steps"} <= set(rows[0])
    assert list((run_dir / "tensorboard").iterdir()) == []


def test_an_unknown_logger_is_an_error_that_names_the_choices(capsys):
    words = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--set", "loggers=[tensorbord]"]
    assert main(words) == 2
    assert "loggers.0: should be 'tensorboard', 'csv', 'wandb' or 'mlflow', got 'tensorbord'" in capsys.readouterr().err


class Kept(Logger):
    def __init__(self):
        self.heard, self.opened, self.closed = [], [], 0

    def open(self, context, config, resume_step):
        self.opened.append((context.run_dir.name, config.algo, resume_step))

    def write(self, step, values):
        self.heard.append((step, dict(values)))

    def close(self):
        self.closed += 1


def test_a_logger_of_ones_own_hears_what_the_file_gets(tmp_path):
    mine = Kept()
    agent = PPO(
        "CartPole-v1", total_timesteps=128, num_steps=32, minibatch_size=16, eval_episodes=1, output_dir=tmp_path
    )
    run_dir = agent.learn(callbacks=[StopAt(64)], loggers=[mine]).run_dir
    agent.learn(loggers=[mine])
    assert mine.opened == [(run_dir.name, "ppo", None), (run_dir.name, "ppo", 64)] and mine.closed == 2
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in mine.heard] == [line["step"] for line in lines]
    for (_, values), line in zip(mine.heard, lines, strict=True):
        assert {k: v for k, v in values.items() if line[k] is not None}.items() <= line.items()


def test_write_alone_makes_a_logger_and_less_does_not(tiny):
    class Bare:
        steps = []

        def write(self, step, values):
            self.steps.append(step)

    spec = get_algorithm_spec("ppo")
    spec.train(tiny("ppo", total_timesteps=32), loggers=[Bare()])
    assert Bare.steps[-1] == 32
    with pytest.raises(ValueError, match=r"a logger needs write\(step, values\), and int has none"):
        spec.train(tiny("ppo", total_timesteps=32), loggers=[3])


def test_wandb_works_offline_and_a_resumed_run_keeps_its_id(tiny, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = tiny("ppo", loggers=["wandb"], wandb_project="toys")
    first = get_algorithm_spec("ppo").train(config, callbacks=[StopAt(64)])
    resume_training(first.run_dir)
    name = json.loads((first.run_dir / "metadata.json").read_text())["wandb_id"]
    written = list((first.run_dir / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))
    assert len(written) == 2
    said = b"".join(path.read_bytes() for path in written)
    assert b"eval_return_mean" in said and b"policy_loss" in said and b"toys" in said


class Unreachable:
    """As wandb, but nobody is there."""

    class Settings:
        def __init__(self, **settings): ...

    @staticmethod
    def init(**settings):
        raise ConnectionError("no route to the server")


class Failing(Unreachable):
    """Is there at first."""

    @staticmethod
    def init(**settings):
        class Run:
            def define_metric(self, *names, **options): ...

            def log(self, values):
                raise ConnectionError("no route to the server")

        return Run()


@pytest.mark.parametrize("there", [Unreachable, Failing])
def test_wandb_out_of_reach_is_one_warning_and_no_more(tiny, monkeypatch, there):
    monkeypatch.setitem(sys.modules, "wandb", there)
    monkeypatch.setattr("rl_training.tracking.loggers.find_spec", lambda name: True)
    with pytest.warns(UserWarning, match="nothing more goes to wandb: no route to the server") as said:
        result = get_algorithm_spec("ppo").train(tiny("ppo", loggers=["wandb"]))
    assert result.metrics["global_step"] == 128
    assert len([warning for warning in said if "wandb" in str(warning.message)]) == 1


def test_wandb_that_is_not_installed_is_an_error_before_anything_is_made(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_training.tracking.loggers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"loggers: wandb is not installed: pip install 'rl_training\[wandb\]'"):
        get_algorithm_spec("ppo").train(tiny("ppo", loggers=["wandb"], output_dir=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_a_run_resumed_within_a_second_waits_for_a_wandb_folder_of_its_own(tmp_path, monkeypatch):
    from rl_training.tracking import wandb

    (tmp_path / "offline-run-20260101_000000-x").mkdir()
    seconds, waited = iter(["20260101_000000", "20260101_000000", "20260101_000001"]), []
    clock = SimpleNamespace(strftime=lambda form: next(seconds), sleep=waited.append)
    monkeypatch.setattr(wandb, "time", clock)
    wandb.WandB._wait_for_a_folder_of_its_own(tmp_path, "x")
    assert len(waited) == 2
