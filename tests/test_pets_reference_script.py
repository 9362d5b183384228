from reference_scripts import check_reference_script


def test_the_reference_script_trains_and_reports(tmp_path):
    check_reference_script("pets_pendulum_reference.py", tmp_path, 3, planning_candidates=20, planning_horizon=5)
