import subprocess
import sys

from reference_scripts import EXAMPLES, check_reference_script


def test_the_reference_script_trains_and_reports(tmp_path):
    check_reference_script("rlpd_pendulum_reference.py", tmp_path, 40)


def test_the_whole_way_from_an_expert_to_online(tmp_path):
    words = [str(EXAMPLES / "offline_to_online.py"), "--output-dir", str(tmp_path), "--scale", "0"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-3:]
    assert [line.split()[0] for line in said] == ["expert", "offline", "online"]
    assert (tmp_path / "pendulum-replay.npz").exists()
