"""Run directories, their contents and the manager object."""

import json

import pytest

from rl_training import load_config
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.runs import create_run_context, list_checkpoints, open_run_context
from rl_training.runtime.trainer import TrainResult


def test_setup_trains_and_resume_goes_on(tiny):
    manager = DefaultExperimentManager()
    result = manager.setup(tiny("ppo", total_timesteps=64)).train()
    assert isinstance(result, TrainResult) and result.checkpoint_path.exists()
    longer = manager.resume(result.checkpoint_path, total_timesteps=128, eval_episodes=2).train()
    assert longer.metrics["global_step"] == 128 and longer.metrics["eval_episodes"] == 2
    assert longer.run_dir == result.run_dir


def test_resume_into_another_directory(tiny, tmp_path):
    result = DefaultExperimentManager().setup(tiny("ppo", total_timesteps=64)).train()
    other = (
        DefaultExperimentManager()
        .resume(result.checkpoint_path, total_timesteps=96, output_dir=tmp_path / "other")
        .train()
    )
    assert other.run_dir.parent == tmp_path / "other"


def test_training_before_setup_is_an_error():
    with pytest.raises(ValueError, match="nothing to train yet"):
        DefaultExperimentManager().train()


def test_run_ids(tiny):
    config = tiny("ppo", seed=7)
    context = create_run_context(config, "manual")
    assert context.run_id == "ppo__CartPole-v1__seed7__manual"
    assert context.run_dir == config.output_dir / context.run_id
    assert len({create_run_context(config).run_id for _ in range(5)}) == 5
    assert "/" not in create_run_context(config.replace(env_id="ALE/Pong-v5"), "x").run_id
    with pytest.raises(ValueError, match="already holds a run"):
        create_run_context(config, "manual")


def test_a_run_directory_explains_itself(tiny):
    result = DefaultExperimentManager().setup(tiny("sac", total_timesteps=100, tags=["first"])).train()
    run = result.run_dir
    assert load_config(run / "config.yaml").tags == ("first",)
    facts = json.loads((run / "metadata.json").read_text())
    assert facts["status"] == "finished" and facts["step"] == 100
    assert {"command", "git", "versions", "hardware", "started", "engine"} <= set(facts)
    assert {"python", "torch", "numpy", "gymnasium"} <= set(facts["versions"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("critic_loss" in line for line in lines) and any("eval_return_mean" in line for line in lines)
    assert (run / "checkpoints" / "best.ckpt").exists()
    assert list((run / "tensorboard").iterdir())


def test_episode_returns_and_lengths_are_logged(tiny):
    result = DefaultExperimentManager().setup(tiny("ppo", total_timesteps=256)).train()
    assert {"episode_return", "episode_length", "episodes"} <= set(result.metrics)
    assert result.metrics["episode_return"] == result.metrics["episode_length"]  # CartPole pays 1 a step


def test_tensorboard_can_read_the_events(tiny):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = DefaultExperimentManager().setup(tiny("ppo", total_timesteps=128, log_interval=32)).train()
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    assert {"loss", "episode_return", "eval_return_mean"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [32, 64, 96, 128]
    assert events.Scalars("eval_return_mean")[-1].value == pytest.approx(result.metrics["eval_return_mean"])


def test_the_newest_checkpoints_are_kept_and_buffers_of_two(tiny):
    config = tiny(
        "sac", total_timesteps=400, checkpoint_interval=40, eval_interval=0, keep_checkpoints=4, buffer_capacity=400
    )
    import rl_training.experiment.checkpointing as checkpointing

    apart, checkpointing.SIBLING_BYTES = (
        checkpointing.SIBLING_BYTES,
        100,
    )  # so that this small buffer gets a file of its own
    try:
        result = DefaultExperimentManager().setup(config).train()
    finally:
        checkpointing.SIBLING_BYTES = apart
    context = open_run_context(result.run_dir)
    assert [path.name for path in list_checkpoints(context)] == [
        f"step_{step:010d}.ckpt" for step in (280, 320, 360, 400)
    ]
    buffers = sorted(path.name for path in context.checkpoints_dir.glob("*.buffers.ckpt"))
    assert buffers == ["step_0000000360.buffers.ckpt", "step_0000000400.buffers.ckpt"]


def test_defaults_log_about_a_hundred_lines_and_save_about_twenty_times(tiny):
    result = DefaultExperimentManager().setup(tiny("dqn", total_timesteps=2000, keep_checkpoints=100)).train()
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "loss" in line]) in range(95, 102)
    assert len([line for line in lines if "eval_return_mean" in line]) == 20
    assert len(list_checkpoints(open_run_context(result.run_dir))) == 20
