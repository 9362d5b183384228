import pytest

from reference_scripts import check_reference_script


@pytest.mark.parametrize("name", ["cartpole_pixels", "atari"])
def test_the_reference_script_trains_and_reports(tmp_path, name):
    # untrained, it need not lose at Breakout, where an episode is five minutes of play; and an evaluation for
    # every second step would take longer than all the others
    changes = {"env_kwargs.max_episode_steps": 100, "checkpoint_interval": 40}
    check_reference_script(f"dreamer_{name}_reference.py", tmp_path, 40, changes, eval_interval=0)
