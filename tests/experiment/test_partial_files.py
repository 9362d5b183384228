"""What a kill leaves of a file that was being written does not stay."""

from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training


def test_files_that_were_being_written_when_a_run_was_killed_go_with_its_next_save(tiny):
    run = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=40)).run_dir
    left = [run / ".metadata.json.77.partial", run / ".metrics.jsonl.77.partial"]
    left.append(run / "checkpoints" / ".step_0000000050.ckpt.77.partial")
    for path in left:
        path.write_text("{")
    resume_training(run, total_timesteps=60)
    assert not [path for path in left if path.exists()]


def test_a_folder_with_the_name_of_a_checkpoint_is_left_alone(tiny):
    run = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=40)).run_dir
    folder = run / "checkpoints" / "step_9999999999.ckpt"
    folder.mkdir()
    assert resume_training(run, total_timesteps=60).metrics["global_step"] == 60
    assert folder.is_dir()
