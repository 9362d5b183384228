import pytest

from reference_scripts import check_reference_script


@pytest.mark.parametrize("name", ["cartpole_pixels", "atari"])
def test_the_reference_script_trains_and_reports(tmp_path, name):
    # an untrained agent need not lose at Breakout: an episode would be five minutes of play
    check_reference_script(f"dreamer_{name}_reference.py", tmp_path, 40, max_episode_steps=100)
