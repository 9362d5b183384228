"""The command line as a person and a script meet it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.base.options import ConfigError
from rl_training.cli import load_config, main

FAST = [
    "--set",
    "algo_kwargs.num_steps=32",
    "--set",
    "algo_kwargs.minibatch_size=32",
    "--set",
    "algo_kwargs.update_epochs=1",
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    words = [
        "train",
        "--algo",
        "ppo",
        "--env",
        "CartPole-v1",
        "--total-timesteps",
        "128",
        "--output-dir",
        str(folder),
        *FAST,
    ]
    assert main([*words, "--eval-episodes", "1", "--run-suffix", "cli"]) == 0
    return folder / "ppo__CartPole-v1__seed0__cli"


def says(capsys) -> tuple[str, str]:
    out, err = capsys.readouterr()
    return out, err


def test_train_says_where_everything_is(tmp_path, capsys):
    words = [
        "train",
        "--config",
        "configs/ppo/cartpole.yaml",
        "--total-timesteps",
        "1e2",
        "--num-envs",
        "2",
        "--seed",
        "9",
    ]
    assert main([*words, "--output-dir", str(tmp_path), *FAST]) == 0
    out, err = says(capsys)
    assert "trained at step 128" in out and "rl-training eval" in out and "__seed9__" in out
    assert "128/100" in err and "steps/s" in err  # not a terminal: tidy lines


def test_train_as_json(tmp_path, capsys):
    words = [
        "train",
        "--algo",
        "ppo",
        "--env",
        "CartPole-v1",
        "--total-timesteps",
        "64",
        "--output-dir",
        str(tmp_path),
        "--json",
    ]
    assert main([*words, *FAST, "--set", "progress=off"]) == 0
    out, err = says(capsys)
    result = json.loads(out)
    assert Path(result["checkpoint_path"]).exists() and result["metrics"]["global_step"] == 64 and err == ""


def test_eval_resume_predict(run_dir, capsys):
    assert main(["eval", str(run_dir), "--episodes", "2", "--json"]) == 0
    assert json.loads(says(capsys)[0])["eval_episodes"] == 2
    assert main(["eval", str(run_dir), "--episodes", "2"]) == 0
    assert re.match(r"return [\d.]+ ± [\d.]+ over 2 episodes", says(capsys)[0])
    assert main(["predict", str(run_dir), "--obs", "[0, 0, 0, 0]"]) == 0
    assert says(capsys)[0].strip() in ("0", "1")
    assert main(["predict", str(run_dir), "--obs", "[[0,0,0,0],[1,1,1,1]]", "--stochastic"]) == 0
    assert len(json.loads(says(capsys)[0])) == 2
    assert main(["resume", str(run_dir), "--total-timesteps", "192", "--json"]) == 0
    assert json.loads(says(capsys)[0])["metrics"]["global_step"] == 192


def test_predict_reads_standard_input(run_dir):
    words = [sys.executable, "-m", "rl_training", "predict", str(run_dir), "--obs", "-"]
    done = subprocess.run(words, input="[0,0,0,0]", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() in ("0", "1")


def test_list_show_schema_config(capsys):
    assert main(["list"]) == 0
    listing = says(capsys)[0]
    assert all(name in listing for name in ("ppo", "dqn", "sac"))
    assert main(["list", "--json"]) == 0
    assert {row["name"] for row in json.loads(says(capsys)[0])} >= {"ppo", "dqn", "sac"}
    assert main(["show", "sac"]) == 0
    out = says(capsys)[0]
    assert "tau" in out and "0.005" in out and "how far target critics move" in out
    assert main(["show", "sac", "--json"]) == 0
    assert json.loads(says(capsys)[0])["tau"]["default"] == "0.005"
    assert main(["schema", "ppo"]) == 0
    schema = json.loads(says(capsys)[0])
    assert schema["properties"]["algo_kwargs"]["properties"]["clip_coef"]["exclusiveMinimum"] == 0
    assert schema["additionalProperties"] is False
    assert main(["config", "--config", "configs/sac/pendulum.yaml", "--set", "algo_kwargs.tau=0.01", "--json"]) == 0
    whole = json.loads(says(capsys)[0])
    assert whole["algo_kwargs"]["tau"] == 0.01 and whole["algo_kwargs"]["gamma"] == 0.99 and whole["num_envs"] == 1


def test_the_printed_config_is_a_config(tmp_path, capsys):
    assert main(["config", "--config", "configs/dqn/cartpole.yaml"]) == 0
    (tmp_path / "again.yaml").write_text(says(capsys)[0])
    config = load_config(tmp_path / "again.yaml")
    assert config.algo_kwargs["epsilon_schedule"] == {"type": "linear", "start": 1.0, "end": 0.04}


def test_doctor_finds_a_healthy_machine(capsys):
    assert main(["doctor"]) == 0
    assert "a short run trained, saved and resumed" in says(capsys)[0]


def test_doctor_says_what_to_install_for_what_is_missing(monkeypatch):
    from rl_training.commands import doctor

    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = doctor._tool("tuning", "optuna", "tune")
    assert found.optional and not found.ok and found.detail == "not installed: pip install 'rl_training[tune]'"


def test_every_flag_has_help():
    import argparse

    from rl_training.cli import _parser

    parsers = next(a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert set(parsers) >= {"train", "eval", "resume", "predict", "list", "show", "config", "schema", "doctor"}
    for name, parser in parsers.items():
        assert all(action.help for action in parser._actions), name
        assert {
            "--config",
            "--algo",
            "--env",
            "--seed",
            "--device",
            "--total-timesteps",
            "--output-dir",
            "--num-envs",
            "--set",
        } <= {option for action in parser._actions for option in action.option_strings} or name not in (
            "train",
            "config",
        )


MISTAKES = [
    ([], "required"),
    (["fly"], "invalid choice: 'fly'"),
    (["train"], "give --config FILE, or --algo and --env"),
    (["train", "--algo", "pp0", "--env", "CartPole-v1"], "unknown algorithm 'pp0'; did you mean 'ppo'?"),
    (["train", "--algo", "ppo", "--env", "CartPol-v1"], "cannot make the environment 'CartPol-v1'"),
    (
        ["train", "--algo", "sac", "--env", "CartPole-v1"],
        "sac needs vector observations and Box actions; CartPole-v1 has vector (4,) and Discrete(2)",
    ),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "many"], "invalid number value: 'many'"),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "0"],
        "total_timesteps: should be greater than or equal to 1",
    ),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--device", "gpu"], "device: must be auto, cpu"),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--device", "cuda"], "torch sees no GPU"),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--set", "algo_kwargs.clip=1"],
        "algo_kwargs.clip: unknown option of ppo",
    ),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--set", "nonsense"], "--set takes name=value"),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--set", "lr=1"],
        "lr: unknown option; did you mean 'algo_kwargs.learning_rate'?",
    ),
    (
        ["train", "--config", "configs/ppo/cartpole.yaml", "--set", "clip=1"],
        "--set clip: unknown option; did you mean 'algo_kwargs.clip_coef'?",
    ),
    (
        ["train", "--config", "configs/ppo/cartpole.yaml", "--set", "gamma=1", "--set", "algo_kwargs.gamma=0.9"],
        "--set gamma and --set algo_kwargs.gamma are the same option: give one of them",
    ),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--lr", "1"],
        "unrecognized arguments: --lr 1; did you mean --set learning_rate=...? (see",
    ),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--learning-rate=1"],
        "unrecognized arguments: --learning-rate=1; did you mean --set learning_rate=...? (see",
    ),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--timesteps", "5"], "; did you mean --total-timesteps? (see"),
    (["train", "--algo", "ppo", "--env", "CartPole-v1", "--n-envs", "5"], "; did you mean --num-envs? (see"),
    (
        ["train", "--algo", "a2c", "--env", "CartPole-v1"],
        "unknown algorithm 'a2c': not in this package; closest: ppo",
    ),
    (["train", "--config", "no/such.yaml"], "no config at no/such.yaml; packaged presets: configs/bc/"),
    (
        ["train", "--config", "configs/ppo/cartpol.yaml"],
        "no config at configs/ppo/cartpol.yaml; did you mean configs/ppo/cartpole.yaml?\n",
    ),
    (["train", "--config", "."], ". is a folder; a config is a YAML file"),
    (
        ["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timestep", "5"],
        "unrecognized arguments: --total-timestep 5; did you mean --total-timesteps? (see rl-training train --help)",
    ),
    (["eval", "x", "--nothing-like-it"], "unrecognized arguments: --nothing-like-it (see rl-training eval --help)"),
    (["eval", "no/such/run"], "no checkpoint at no/such/run"),
    (["resume", "no/such/run"], "no checkpoint at no/such/run"),
    (["show", "ppoo"], "unknown algorithm 'ppoo'; did you mean 'ppo'?"),
    (["schema", "x"], "unknown algorithm 'x'; known: bc, dqn, gail"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_two(words, message, capsys, tmp_path, monkeypatch):
    import torch

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = says(capsys)
    assert message in err and err.count("\n") == 1 and "Traceback" not in err
    assert out == "" and not list(tmp_path.rglob("*"))  # nothing was started


@pytest.mark.parametrize(("text", "kind"), [("", "an empty file"), ("- a\n", "a list"), ("ppo\n", "'ppo'")])
def test_a_file_that_is_no_mapping_is_named_for_what_it_is(text, kind, tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "x.yaml")]) == 2
    assert f"a config is a mapping of names to values, got {kind}\n" in says(capsys)[1]


def test_a_file_that_cannot_be_made_is_named_first(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "file" / "runs")]
    assert main(words) == 2
    assert f"error: {tmp_path}/file/runs" in says(capsys)[1]


def test_an_error_without_text_is_named_by_its_type(capsys):
    from rl_training.cli import _complain

    assert _complain(RuntimeError(), 1) == 1
    assert says(capsys)[1] == "rl-training: error: RuntimeError\n"


def test_a_wrong_observation_is_named(run_dir, capsys):
    assert main(["predict", str(run_dir), "--obs", "[1, 2]"]) == 2
    assert "observations have shape (4,)" in says(capsys)[1]
    for text in ("not json", '["a"]', "[[1, 2], [3]]"):
        assert main(["predict", str(run_dir), "--obs", text]) == 2
        assert "--obs must be a JSON array" in says(capsys)[1]
    assert main(["predict", str(run_dir), "--obs", '{"a": 1}']) == 2
    assert "observations have shape (4,)" in says(capsys)[1]


def test_predict_takes_an_observation_of_several_parts_as_an_object(tmp_path, capsys):
    import gymnasium as gym

    from toys import DictCounter

    gym.register("DictCounter-v0", entry_point=DictCounter)
    try:
        words = [
            "train",
            "--algo",
            "ppo",
            "--env",
            "DictCounter-v0",
            "--total-timesteps",
            "32",
            "--output-dir",
            str(tmp_path),
        ]
        assert main([*words, *FAST, "--eval-episodes", "1", "--run-suffix", "parts"]) == 0
        run, part = str(tmp_path / "ppo__DictCounter-v0__seed0__parts"), '{"t": [1.0], "phase": 1}'
        says(capsys)
        given = (part, f"[{part}, {part}]", "[0, 1, 0, 1.0]", "[[0, 1, 0, 1.0]]")
        assert [main(["predict", run, "--obs", text]) for text in given] == [0] * 4
        one, two, flat, batch = map(json.loads, says(capsys)[0].splitlines())
        assert one in (0, 1) and two == [one, one] and flat == one and batch == [one]
        for text in ('{"t": [1.0]}', '{"t": [NaN], "phase": 1}', '[{"t": "a", "phase": 1}]'):
            assert main(["predict", run, "--obs", text]) == 2
            assert says(capsys)[1].startswith("rl-training: error: ")
    finally:
        gym.registry.pop("DictCounter-v0")


YAML = """\
algo: ppo
env_id: CartPole-v1
seed: 1

algo_kwargs:
  num_steps: 64
  learning_rate: 3e-4
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("seed: 1", "sed: 1", 3, "sed: unknown option; did you mean 'seed'?"),
        ("seed: 1", "seed: one", 3, "seed: should be a valid integer, got 'one'"),
        ("num_steps: 64", "num_step: 64", 6, "algo_kwargs.num_step: unknown option of ppo; did you mean 'num_steps'?"),
        ("num_steps: 64", "num_steps: -4", 6, "algo_kwargs.num_steps: should be greater than or equal to 1, got -4"),
        ("3e-4", "fast", 7, "algo_kwargs.learning_rate: should be a valid number, got 'fast'"),
        ("num_steps: 64", "num_steps: 64\n  num_steps: 65", 7, "duplicate key"),
        ("seed: 1", "seed: [1", 5, "not valid YAML"),
    ],
)
def test_a_mistake_in_a_file_names_its_line(tmp_path, old, new, line, message):
    path = tmp_path / "my.yaml"
    path.write_text(YAML.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(f"my.yaml:{line}: ")) as error:
        load_config(path)
    assert message in str(error.value)


def test_scientific_notation_is_a_number(tmp_path):
    (tmp_path / "my.yaml").write_text(YAML + "total_timesteps: 1e5\n")
    config = load_config(tmp_path / "my.yaml")
    assert config.total_timesteps == 100_000 and config.algo_kwargs["learning_rate"] == 3e-4


def test_a_missing_name_is_required(tmp_path):
    (tmp_path / "my.yaml").write_text("algo: ppo\n")
    with pytest.raises(ConfigError, match="env_id: is required"):
        load_config(tmp_path / "my.yaml")
