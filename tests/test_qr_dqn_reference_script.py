from reference_scripts import check_reference_script


def test_the_reference_script_trains_and_reports(tmp_path):
    check_reference_script("qr_dqn_cartpole_reference.py", tmp_path, 200, learning_starts=100)
