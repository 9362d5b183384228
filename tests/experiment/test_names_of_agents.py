"""One way to name a trained agent, everywhere: a run directory, RUN/best, or a checkpoint file."""

from __future__ import annotations

import json
import shutil

import pytest

from rl_training import PPO
from rl_training.cli import main
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import find_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from toys import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose best checkpoint is not its newest."""
    config = tiny_config("ppo", tmp_path_factory.mktemp("run"), total_timesteps=96, eval_interval=32)
    run = get_algorithm_spec("ppo").train(config).run_dir
    best = run / "checkpoints" / "best.ckpt"
    shutil.copyfile(run / "checkpoints" / "step_0000000032.ckpt", best) if best.exists() else None
    return run


def test_a_run_is_its_newest_checkpoint_and_best_is_its_best(run):
    newest, _ = find_checkpoint(run, buffers=False)
    best, state = find_checkpoint(run / "best", buffers=False)
    assert newest.name == "step_0000000096.ckpt" and best == run / "checkpoints" / "best.ckpt"
    assert find_checkpoint(run / "checkpoints" / "best", buffers=False)[0] == best
    assert state.trainer_state["step"] == 32
    assert find_checkpoint(newest, buffers=False)[0] == newest
    assert PPO.load(run / "best").checkpoint_path == best


def test_best_alone_is_that_of_the_run_that_one_stands_in(run, monkeypatch):
    monkeypatch.chdir(run)
    assert find_checkpoint("best", buffers=False)[0].name == "best.ckpt"
    assert evaluate_checkpoint("best", 1)["eval_episodes"] == 1


def test_a_run_that_is_called_best_is_a_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "best")
    assert find_checkpoint(tmp_path / "best", buffers=False)[0].name == "step_0000000096.ckpt"


def test_a_best_that_is_not_there_is_one_clear_line(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "best.ckpt").unlink()
    assert main(["eval", str(tmp_path / "run" / "best")]) == 2
    said = capsys.readouterr().err
    assert "has no best checkpoint: the run was not evaluated yet" in said and said.count("\n") == 1
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        find_checkpoint(tmp_path / "nowhere" / "best", buffers=False)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_an_exported_program_is_refused_wherever_an_agent_is_named(ending, tmp_path, capsys):
    file = tmp_path / f"policy.{ending}"
    file.write_bytes(b"PK")
    start = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "new")]
    for words in (["eval", str(file)], [*start, "--init-from", str(file)], ["resume", str(file)]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "is an exported program, which acts and cannot be loaded or trained further" in said
        assert "agent.save" in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


COMMANDS = {
    "eval": (["--episodes", "1"], "return"),
    "predict": (["--obs", "[0, 0, 0, 0]"], ""),
    "video": (["--max-steps", "2", "-o", "{folder}/a.gif"], "1 episode of CartPole-v1"),
    "collect": (["--steps", "5", "--output", "{folder}/a.npz"], "5 transitions"),
    "export": (["--format", "torch", "-o", "{folder}/policy.pt2"], "acts as the agent does"),
    "resume": (["--total-timesteps", "96"], "step 96"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_name_before_or_after_its_options_or_by_the_older_flag(command, run, tmp_path, capsys):
    words, expected = COMMANDS[command]
    words = [word.format(folder=tmp_path) for word in words]
    orders = [[str(run), *words], [*words, str(run)], ["--checkpoint", str(run), *words]]
    for order in orders[1:] if command == "export" else orders:  # an export takes seconds
        assert main([command, *order]) == 0
        assert expected in "".join(capsys.readouterr())  # an export says it beside the program that it prints


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_a_name_or_with_two_says_so(command, run, tmp_path, capsys):
    words = [word.format(folder=tmp_path) for word in COMMANDS[command][0]]
    assert main([command, *words]) == 2
    said = capsys.readouterr().err
    assert (
        "name a run or a checkpoint" if command == "collect" else "say which agent: a run directory, RUN/best"
    ) in said
    assert main([command, str(run), "--checkpoint", str(run), *words]) == 2
    assert "the agent is named twice" in capsys.readouterr().err
    assert main([command, str(run), "another", *words]) == 2
    assert "unrecognized arguments: another" in capsys.readouterr().err


def test_the_best_can_start_a_new_run(run, tmp_path, capsys):
    words = ["train", "--config", str(run / "config.yaml"), "--output-dir", str(tmp_path), "--init-from", f"{run}/best"]
    assert main([*words, "--total-timesteps", "32", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["run_dir"]
    with open(f"{made}/metadata.json") as file:
        assert json.load(file)["parent"]["step"] == 32
    assert load_checkpoint(f"{made}/checkpoints/step_0000000032.ckpt").config["init_from"] == f"{run}/best"


def test_the_best_cannot_be_resumed_and_the_other_way_is_said(tmp_path):
    run = get_algorithm_spec("ppo").train(tiny_config("ppo", tmp_path, total_timesteps=32)).run_dir
    with pytest.raises(ValueError, match="a new run can start with its networks"):
        resume_training(run / "best")
