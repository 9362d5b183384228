from reference_scripts import check_reference_script


def test_the_reference_script_trains_and_reports(tmp_path):
    check_reference_script("mopo_pendulum_reference.py", tmp_path, 10, dataset_size=1_000, model_updates=50)
