"""Where metrics go: tables that later columns and resumed runs do not spoil, Weights & Biases, and loggers of one's own."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from rl_training import PPO, Callback, Logger
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


# ---- MLflow


class Store:
    """MLflow as far as the logger knows it; what it is told stays in ``runs``."""

    def __init__(self, fails=()):
        self.runs, self.fails, self.where = {}, set(fails), None
        self.entities = SimpleNamespace(Metric=lambda name, value, time, step: (name, value, step))

    def is_tracking_uri_set(self):
        return False

    def MlflowClient(self, tracking_uri=None):
        self.where = tracking_uri
        return self

    def get_experiment_by_name(self, name):
        self.may("get_experiment_by_name")
        return SimpleNamespace(experiment_id=f"of {name}")

    def create_run(self, experiment, run_name, tags):
        run = {"experiment": experiment, "tags": tags, "params": {}, "metrics": [], "texts": {}, "status": "RUNNING"}
        self.runs[f"run{len(self.runs)}"] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run{len(self.runs) - 1}"))

    def update_run(self, run, status):
        self.runs[run]["status"] = status

    def log_param(self, run, name, value):
        self.runs[run]["params"][name] = value

    def log_batch(self, run, metrics):
        self.may("log_batch")
        self.runs[run]["metrics"] += metrics

    def log_text(self, run, text, name):
        self.runs[run]["texts"][name] = text

    def set_terminated(self, run, status="FINISHED"):
        self.runs[run]["status"] = status

    def may(self, name):
        if name in self.fails:
            raise ConnectionError("no route to the server")


@pytest.fixture
def mlflow_store(monkeypatch):
    def make(**options):
        store = Store(**options)
        monkeypatch.setitem(sys.modules, "mlflow", store)
        monkeypatch.setitem(sys.modules, "mlflow.entities", store.entities)
        monkeypatch.setattr("rl_training.tracking.loggers.find_spec", lambda name: True)
        return store

    return make


def test_mlflow_gets_options_metrics_and_the_config_and_a_resumed_run_keeps_its_id(tiny, mlflow_store):
    store = mlflow_store()
    config = tiny("ppo", loggers=["mlflow"], mlflow_experiment="toys", tags=["first try"], log_interval=32)
    first = get_algorithm_spec("ppo").train(config, callbacks=[StopAt(64)])
    resume_training(first.run_dir)
    (run,) = store.runs.values()
    assert store.where == (first.run_dir.parent / "mlruns").as_uri()
    assert run["experiment"] == "of toys" and run["status"] == "FINISHED" and run["tags"]["first try"] == "true"
    assert run["params"]["algo"] == "ppo" and run["params"]["algo_kwargs.num_steps"] == "32"
    assert "algo: ppo" in run["texts"]["config.md"]
    lines = [json.loads(line) for line in (first.run_dir / "metrics.jsonl").read_text().splitlines()]
    written = {(line["step"], name) for line in lines for name in line if name not in ("step", "time")}
    assert written <= {(step, name) for name, _, step in run["metrics"]}


@pytest.mark.parametrize("where", ["get_experiment_by_name", "log_batch"])
def test_mlflow_out_of_reach_is_one_warning_and_no_more(tiny, mlflow_store, where):
    mlflow_store(fails=[where])
    with pytest.warns(UserWarning, match="nothing more goes to mlflow: no route to the server") as said:
        result = get_algorithm_spec("ppo").train(tiny("ppo", loggers=["mlflow"]))
    assert result.metrics["global_step"] == 128
    assert len([warning for warning in said if "mlflow" in str(warning.message)]) == 1


def test_mlflow_that_is_not_installed_is_an_error(tiny, monkeypatch):
    monkeypatch.setattr("rl_training.tracking.loggers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"loggers: mlflow is not installed: pip install 'rl_training\[mlflow\]'"):
        get_algorithm_spec("ppo").train(tiny("ppo", loggers=["mlflow"]))


def test_the_real_mlflow_keeps_what_it_is_given(tiny, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = tiny("ppo", env_id="Reaching-v0", loggers=["mlflow"], log_info=["distance"], log_interval=32)
    first = get_algorithm_spec("ppo").train(config, callbacks=[StopAt(64)])
    resume_training(first.run_dir)
    client = mlflow.MlflowClient(tracking_uri=(first.run_dir.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("rl_training")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["env_id"] == "Reaching-v0"
    history = client.get_metric_history(run.info.run_id, "info/distance")
    assert [metric.step for metric in history] == [32, 64, 96, 128] and all(1 <= m.value <= 2 for m in history)
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.md"]


# ---- TensorBoard's histograms and texts


def test_tensorboard_reads_histograms_and_the_config(tiny):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Weights(Callback):
        def on_train_end(self, trainer, result):
            trainer.log_histogram("weights", torch.tensor([[1.0, 2.0], [2.0, float("nan")]]))
            trainer.log_text("note", "**done**")

    result = get_algorithm_spec("ppo").train(tiny("ppo"), callbacks=[Weights()])
    events = accumulator.EventAccumulator(str(result.run_dir / "tensorboard")).Reload()
    (histogram,) = events.Histograms("weights")
    value = histogram.histogram_value
    assert (histogram.step, value.min, value.max, value.num, value.sum, value.sum_squares) == (128, 1, 2, 3, 5, 9)
    assert sum(value.bucket) == 3 and value.bucket[0] == 1 and value.bucket[-1] == 2
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "algo: ppo" in texts["config/text_summary"] and texts["note/text_summary"] == "**done**"
    assert events.SummaryMetadata("config/text_summary").plugin_data.plugin_name == "text"
