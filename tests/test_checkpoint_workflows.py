"""Checkpoints: what they hold, what they refuse, and what can be done with them."""

import json
import os
import pickle

import numpy as np
import pytest
import torch

from rl_training import Callback
from rl_training.experiment.checkpointing import CheckpointError, CheckpointState, load_checkpoint, save_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training

STATE = {
    "w": torch.arange(6.0).reshape(2, 3),
    "n": 3,
    "deep": {"list": [1, None, "x", torch.tensor(True)]},
    "empty": torch.zeros(0),
}


def state(buffers=None) -> CheckpointState:
    return CheckpointState(
        STATE, {"rows": torch.zeros(3)} if buffers is None else buffers, {"step": 1}, {"algo": "ppo"}, {"note": "x"}
    )


def test_plain_data_and_tensors_survive(tmp_path):
    loaded = load_checkpoint(save_checkpoint(tmp_path / "a.ckpt", state()))
    assert torch.equal(loaded.algorithm_state["w"], STATE["w"])
    assert loaded.algorithm_state["n"] == 3 and loaded.algorithm_state["deep"]["list"][:3] == [1, None, "x"]
    assert loaded.algorithm_state["empty"].shape == (0,)
    assert loaded.trainer_state == {"step": 1} and loaded.config == {"algo": "ppo"} and loaded.metadata["note"] == "x"


def test_a_checkpoint_is_a_safetensors_file(tmp_path):
    from safetensors.torch import load_file

    save_checkpoint(tmp_path / "a.ckpt", state())
    assert torch.equal(load_file(tmp_path / "a.ckpt")["algorithm_state.w"], STATE["w"])


@pytest.mark.parametrize("value", [object(), {1: 2}, {"$tensor": "x"}, b"bytes", {1, 2}])
def test_only_tensors_and_plain_values_are_saved(tmp_path, value):
    with pytest.raises(TypeError, match="checkpoint state"):
        save_checkpoint(tmp_path / "a.ckpt", CheckpointState({"x": value}, {}, {}, {}))
    assert not list(tmp_path.iterdir())


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


@pytest.mark.parametrize(
    "write", [lambda p: p.write_bytes(pickle.dumps({"a": Bomb()})), lambda p: torch.save({"a": Bomb()}, p)]
)
def test_pickled_objects_are_refused_and_never_run(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad.ckpt")
    for use in (load_checkpoint, evaluate_checkpoint, resume_training):
        with pytest.raises(CheckpointError, match="pickled objects"):
            use(tmp_path / "bad.ckpt")
    assert not (tmp_path / "exploded").exists()


def test_every_truncation_is_noticed(tmp_path):
    whole = save_checkpoint(tmp_path / "a.ckpt", state()).read_bytes()
    for size in [0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1]:
        (tmp_path / "cut.ckpt").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
            load_checkpoint(tmp_path / "cut.ckpt")


def test_every_flipped_byte_is_noticed(tmp_path):
    whole = save_checkpoint(tmp_path / "a.ckpt", state()).read_bytes()
    rng = np.random.default_rng(0)
    header = int.from_bytes(whole[:8], "little") + 8
    places = [*range(header, len(whole)), *rng.integers(0, header, 60).tolist()]
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "bad.ckpt").write_bytes(broken)
        try:
            loaded = load_checkpoint(tmp_path / "bad.ckpt")
        except CheckpointError:
            continue
        assert loaded.algorithm_state["n"] == 3, "a changed file was read as if it were whole"  # padding at most


@pytest.mark.parametrize("content", [b"hello", b"{}", b"\x00" * 100, json.dumps({"a": 1}).encode()])
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "x.ckpt")


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "nothing.ckpt")
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        resume_training(tmp_path)


def test_large_buffers_go_into_a_file_beside(tmp_path):
    big = {"rows": torch.arange(500_000.0)}
    path = save_checkpoint(tmp_path / "a.ckpt", state(big))
    assert path.stat().st_size < 10_000 and (tmp_path / "a.buffers.ckpt").exists()
    assert torch.equal(load_checkpoint(path).buffer_state["rows"], big["rows"])
    assert load_checkpoint(path, buffers=False).buffer_state is None
    save_checkpoint(tmp_path / "b.ckpt", state({"rows": torch.zeros(500_000)}))
    os.replace(tmp_path / "b.buffers.ckpt", tmp_path / "a.buffers.ckpt")
    with pytest.raises(CheckpointError, match="does not belong"):
        load_checkpoint(path)
    (tmp_path / "a.buffers.ckpt").unlink()
    with pytest.raises(CheckpointError, match="lost its buffers"):
        load_checkpoint(path)


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path / "a.ckpt", state())
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, state({"rows": torch.ones(5)}))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from toys import tiny_config

    return get_algorithm_spec("ppo").train(tiny_config("ppo", tmp_path_factory.mktemp("run"), checkpoint_interval=32))


def test_evaluate_by_file_and_by_run_directory(run):
    metrics = evaluate_checkpoint(run.checkpoint_path, num_episodes=2)
    assert {"eval_return_mean", "eval_return_std", "eval_episodes"} <= set(metrics) and metrics["eval_episodes"] == 2
    assert evaluate_checkpoint(run.run_dir, num_episodes=2) == metrics
    assert evaluate_checkpoint(run.run_dir / "checkpoints" / "best.ckpt", num_episodes=1)["eval_episodes"] == 1


def test_evaluation_repeats_itself_with_drawn_actions_too(run):
    assert evaluate_checkpoint(run.checkpoint_path, 3) == evaluate_checkpoint(run.checkpoint_path, 3)
    drawn = evaluate_checkpoint(run.checkpoint_path, 3, deterministic=False)
    assert drawn == evaluate_checkpoint(run.checkpoint_path, 3, deterministic=False)
    assert drawn != evaluate_checkpoint(run.checkpoint_path, 3)


def test_predict(run):
    assert predict_checkpoint(run.checkpoint_path, [0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_the_four_functions_of_a_spec(run):
    spec = get_algorithm_spec("ppo")
    saved = load_checkpoint(run.checkpoint_path)
    from rl_training.runtime.workflows import config_of

    config = config_of(saved)
    assert spec.name == "ppo" and type(spec.load_fn(config, saved, "cpu")).__name__ == "PPO"
    assert spec.evaluate_fn(config, saved, "cpu", 1)["eval_episodes"] == 1
    assert spec.predict_fn(config, saved, "cpu", [0.0] * 4, True) in (0, 1)


def test_a_torn_newest_checkpoint_gives_way_to_the_one_before(tiny):
    class Stop(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 96:
                trainer.request_stop("test")

    spec = get_algorithm_spec("ppo")
    whole = spec.train(tiny("ppo", total_timesteps=160, checkpoint_interval=32), run_suffix="whole")
    stopped = spec.train(
        tiny("ppo", total_timesteps=160, checkpoint_interval=32), run_suffix="torn", callbacks=[Stop()]
    )
    data = stopped.checkpoint_path.read_bytes()
    stopped.checkpoint_path.write_bytes(data[: len(data) // 2])
    with pytest.warns(UserWarning, match="going back to step_0000000064.ckpt"):
        result = resume_training(stopped.run_dir)
    a, b = load_checkpoint(whole.checkpoint_path), load_checkpoint(result.checkpoint_path)
    assert all(torch.equal(x, b.algorithm_state["model"][k]) for k, x in a.algorithm_state["model"].items())


def test_a_checkpoint_of_another_shape_is_named(run, tiny):
    saved = load_checkpoint(run.checkpoint_path)
    saved.config["algo_kwargs"]["hidden_sizes"] = [24]
    from rl_training.runtime.workflows import config_of

    with pytest.raises(CheckpointError, match="does not fit"):
        get_algorithm_spec("ppo").load_fn(config_of(saved), saved, "cpu")


def test_resume_from_inside_the_checkpoints_folder(tiny, monkeypatch):
    result = get_algorithm_spec("ppo").train(tiny("ppo"))
    monkeypatch.chdir(result.run_dir / "checkpoints")
    again = resume_training(result.checkpoint_path.name, total_timesteps=256)
    assert again.run_dir.resolve() == result.run_dir.resolve()


def test_a_run_without_its_buffers_can_still_be_evaluated(tiny, monkeypatch):
    monkeypatch.setattr("rl_training.experiment.checkpointing.SIBLING_BYTES", 100)
    result = get_algorithm_spec("dqn").train(tiny("dqn"))
    for path in result.run_dir.glob("checkpoints/*.buffers.ckpt"):
        path.unlink()
    assert evaluate_checkpoint(result.run_dir, 1)["eval_episodes"] == 1
