"""One run directory, several processes, and what is left when one of them dies while it writes."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from rl_training import Callback
from rl_training.base.files import InUse, lock_folder
from rl_training.cli import main
from rl_training.experiment import checkpointing
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint, save_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.runtime import workflows
from rl_training.runtime.saving import TrainingFailure
from rl_training.runtime.workflows import resume_training
from rl_training.tracking.jsonl import MetricsFile
from toys import StopAt


def train(config, **given):
    return get_algorithm_spec(config.algo).train(config, **given)


@pytest.fixture
def stopped(tiny):
    """A run that was stopped halfway."""
    return train(tiny("dqn", total_timesteps=96, checkpoint_interval=16), callbacks=[StopAt(48)])


@pytest.mark.parametrize("how", ["directory", "checkpoint", "command"])
def test_a_run_is_locked_before_its_checkpoint_is_chosen(stopped, monkeypatch, how):
    """A process that chose first and waited for the lock would delete what the other one had saved meanwhile."""
    find, locked = workflows.find_checkpoint, []

    def looked(path, *, buffers):
        with pytest.raises(InUse), lock_folder(stopped.run_dir):
            pass
        locked.append(path)
        return find(path, buffers=buffers)

    monkeypatch.setattr(workflows, "find_checkpoint", looked)
    if how == "command":
        assert main(["resume", str(stopped.run_dir)]) == 0
    else:
        resume_training(stopped.run_dir if how == "directory" else stopped.checkpoint_path)
    assert len(locked) == 1


def test_a_run_that_another_process_has_is_refused_in_one_line_and_left_alone(stopped, capsys):
    before = sorted(path.name for path in stopped.run_dir.rglob("*"))
    with lock_folder(stopped.run_dir):
        assert main(["resume", str(stopped.run_dir)]) == 1
    assert capsys.readouterr().err == f"rl-training: error: {stopped.run_dir} is in use by another process\n"
    assert sorted(path.name for path in stopped.run_dir.rglob("*")) == before
    assert newest_checkpoint(stopped.run_dir)[0] == stopped.checkpoint_path


def test_a_run_directory_that_disappears_is_an_error(tiny):
    class Remove(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step == 40:
                shutil.rmtree(trainer.run_dir)

    with pytest.raises(TrainingFailure, match=r"the run directory .* is gone: step 48 cannot be saved"):
        train(tiny("dqn", total_timesteps=64, checkpoint_interval=16, eval_interval=0), callbacks=[Remove()])


def test_another_directory_of_the_same_name_is_not_the_run(tiny):
    class Replace(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step == 40:
                trainer.run_dir.rename(trainer.run_dir.with_name("moved"))
                trainer.run_dir.mkdir()

    with pytest.raises(TrainingFailure, match="is gone"):
        train(tiny("dqn", total_timesteps=64, checkpoint_interval=16, eval_interval=0), callbacks=[Replace()])


def test_metrics_are_cut_back_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    text = "".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4'
    path.write_text(text)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            MetricsFile(path, 2)
    assert path.read_text() == text and [child.name for child in tmp_path.iterdir()] == ["metrics.jsonl"]
    MetricsFile(path, 2).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def state_with(weight: float, row: float) -> CheckpointState:
    buffers = {"replay": torch.full((100,), row)}
    return CheckpointState({"weight": torch.tensor([weight])}, buffers, {"step": 5}, {"algo": "ppo"})


def contents(path):
    state = load_checkpoint(path)
    return state.algorithm_state["weight"].item(), state.buffer_state["replay"][0].item()


def test_a_step_that_is_saved_again_never_loses_its_first_checkpoint(tmp_path, monkeypatch):
    """Its replay buffer lies in a file of its own: a crash between the two must leave a pair that belongs together."""
    monkeypatch.setattr(checkpointing, "SIBLING_BYTES", 0)
    path = save_checkpoint(tmp_path / "step_5.ckpt", state_with(1.0, 1.0))

    def crash(*_):
        raise OSError("power")

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "_write", crash)
        with pytest.raises(OSError, match="power"):
            save_checkpoint(path, state_with(2.0, 2.0))
    assert contents(path) == (1.0, 1.0)
    save_checkpoint(path, state_with(2.0, 2.0))
    assert contents(path) == (2.0, 2.0)
    save_checkpoint(path, state_with(3.0, 3.0))
    assert contents(path) == (3.0, 3.0) and len(list(tmp_path.iterdir())) == 2


def test_buffers_that_have_not_changed_are_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "SIBLING_BYTES", 0)
    path = save_checkpoint(tmp_path / "step_5.ckpt", state_with(1.0, 1.0))
    (buffers,) = tmp_path.glob("*.buffers*")
    written = buffers.stat().st_mtime_ns
    save_checkpoint(path, state_with(2.0, 1.0))
    assert contents(path) == (2.0, 1.0) and buffers.stat().st_mtime_ns == written
