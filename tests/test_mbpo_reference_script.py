from reference_scripts import check_reference_script


def test_the_reference_script_trains_and_reports(tmp_path):
    check_reference_script("mbpo_pendulum_reference.py", tmp_path, 202, learning_starts=200, model_updates=50)
