"""The evidence campaign: a queue of runs that is worked through in order, survives interruptions, and says where it stands."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from interruptions import every_run_stops

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = """
rows:
  - {name: ppo/first, algo: ppo, env_id: CartPole-v1, seeds: [1, 2], hours: 0.1, asked: 400, set: &tiny
      {total_timesteps: 64, eval_episodes: 1, algo_kwargs.num_steps: 32, algo_kwargs.minibatch_size: 32, algo_kwargs.update_epochs: 1}}
  - {name: ppo/second, preset: ppo/cartpole, seeds: [3], hours: 0.2, set: *tiny}
"""


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import campaign
    import learning

    monkeypatch.setattr(learning, "EPISODES", 1)
    (tmp_path / "queue.yaml").write_text(ROWS)
    yield campaign
    for name in ("campaign", "learning"):
        sys.modules.pop(name, None)


def records(folder):
    return {path.stem: json.loads(path.read_text()) for path in (folder / "records").glob("*.json")}


def test_every_run_of_the_queue_ends_in_a_record(campaign, tmp_path):
    campaign.work(tmp_path)
    found = records(tmp_path)
    assert [run["seed"] for run in found["ppo_first"]["runs"]] == [1, 2]
    assert found["ppo_first"]["threshold"] == 400 and found["ppo_second"]["threshold"] is None
    assert found["ppo_second"]["runs"][0]["steps"] == 8 * 32  # the preset has eight environments
    text = (tmp_path / "status.md").read_text()
    assert "| ppo/first | 2/2 |" in text and "| ppo/second | 1/1 |" in text


def test_an_interrupted_campaign_goes_on_where_it_was(campaign, tmp_path):
    with every_run_stops(), pytest.raises(RuntimeError, match="was stopped; the same command goes on with it"):
        campaign.work(tmp_path)
    assert not (tmp_path / "records").exists() and "0/2 (+1 begun)" in campaign.status(tmp_path)
    campaign.work(tmp_path)
    assert len(list((tmp_path / "runs" / "ppo_first" / "1").glob("*/config.yaml"))) == 1  # resumed, not begun anew
    assert [len(record["runs"]) for record in records(tmp_path).values()] in ([2, 1], [1, 2])


def test_collected_records_have_the_summary_of_this_checkout(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "HERE", tmp_path / "benchmarks")
    (tmp_path / "records").mkdir()
    old = {"mean": 2.0, "low": -9.0, "high": 13.0, "runs": [{"return_mean": value} for value in (1.0, 2.0, 3.0)]}
    (tmp_path / "records" / "row.json").write_text(json.dumps(old))
    campaign.collect(tmp_path)
    found = json.loads((tmp_path / "benchmarks" / "results" / "campaign" / "row.json").read_text())
    assert found["iqm"] == 2.0 and 1.0 <= found["low"] < 2.0 < found["high"] <= 3.0 and found["runs"] == old["runs"]


def test_a_row_with_a_typo_is_refused(campaign, tmp_path):
    (tmp_path / "queue.yaml").write_text("rows: [{name: x, algo: ppo, env_id: CartPole-v1, seed: [1], hours: 1}]")
    with pytest.raises(SystemExit, match=r"x: \['seed'\]"):
        campaign.queue(tmp_path / "queue.yaml")


def test_workers_are_started_by_whole_paths_whatever_folder_is_named(campaign, tmp_path, monkeypatch):
    started = []

    class Started:
        pid = 0

        def __init__(self, command, *, cwd, **_):
            started.append((command, cwd))

    monkeypatch.setattr(campaign.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(campaign.subprocess, "Popen", Started)
    monkeypatch.chdir(tmp_path)
    campaign.start(Path("evidence"), workers=1)
    ((command, folder),) = started
    paths = [Path(word) for word in command if "evidence" in word]
    assert len(paths) == 3 and all(path.is_absolute() for path in [*paths, folder])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no autogroups here")
def test_workers_come_after_everything_else_in_their_session_and_beside_others():
    shown = "import campaign, os; campaign.come_last(); print(os.nice(0), open('/proc/self/autogroup').read())"
    done = subprocess.run(
        [sys.executable, "-c", shown], cwd=BENCHMARKS, start_new_session=True, capture_output=True, text=True
    )
    assert done.stdout.split()[0] == "19" and done.stdout.split()[-1] == "19", done.stderr


def test_a_new_folder_takes_over_the_runs_of_collected_records_if_their_options_are_the_same(campaign, tmp_path):
    campaign.work(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "queue.yaml").write_text(ROWS.replace("seeds: [1, 2]", "seeds: [1, 4]").replace("[3]", "[3, 5]"))
    campaign.recall(other, tmp_path / "records")
    done = sorted(str(path.parent.relative_to(other / "runs")) for path in other.rglob("result.json"))
    assert done == ["ppo_first/1", "ppo_second/3"]
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "queue.yaml").write_text(ROWS.replace("num_steps: 32", "num_steps: 64"))
    campaign.recall(changed, tmp_path / "records")
    assert not list(changed.rglob("result.json"))


TOY = """
import os
import time

import gymnasium as gym
import numpy as np


class Toy(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        while self.t == 6 and not os.path.exists(os.environ["GO"]):
            open(os.environ["GO"] + ".awaited", "w").close()
            time.sleep(0.01)
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 8, False, {"is_success": action == 1}


gym.register("Toy-v0", Toy)
"""
GROUPED = """
rows:
  - {name: toys/ppo, algo: ppo, env_id: "toy_world:Toy-v0", seeds: [1], hours: 1, asked: 0.5, figure: success_rate, group: toys, set: &tiny
      {total_timesteps: 96, eval_episodes: 1, compile: false, algo_kwargs.num_steps: 32, algo_kwargs.minibatch_size: 32}}
  - {name: ppo/own, algo: ppo, env_id: CartPole-v1, seeds: [1], hours: 1, set: *tiny}
"""


@pytest.fixture
def grouped(tmp_path):
    """A campaign's folder whose queue has a row of a group, ``toys``, which is one package: what is needed to start a worker."""
    benchmarks, requirements = (
        tmp_path / "checkout" / name for name in ("benchmarks", "tests/third_party/requirements")
    )
    for folder in (benchmarks, requirements, tmp_path / "venv" / "bin"):
        folder.mkdir(parents=True)
    for name in ("campaign", "learning", "third_party"):
        text = (BENCHMARKS / f"{name}.py").read_text()
        (benchmarks / f"{name}.py").write_text(text.replace("        come_last()\n", ""))  # these have somebody waiting
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with zipfile.ZipFile(tmp_path / "toy_world-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_world.py", TOY)
        wheel.writestr("toy_world-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy_world\nVersion: 1.5\n")
        wheel.writestr(
            "toy_world-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("toy_world-1.5.dist-info/RECORD", "")
    (requirements / "toys.txt").write_text(f"# Nobody's.\n--no-index\n--find-links {tmp_path}\ntoy_world==1.5\n")
    (tmp_path / "queue.yaml").write_text(GROUPED)
    return tmp_path


def test_a_row_of_a_group_is_made_in_its_environment_by_the_same_process_and_survives_a_signal(grouped):
    command = [
        grouped / "venv" / "bin" / "python",
        grouped / "checkout" / "benchmarks" / "campaign.py",
        "work",
        grouped,
    ]
    env = {**os.environ, "GO": str(grouped / "go"), "OMP_NUM_THREADS": "1"}
    started = {
        "env": env,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "start_new_session": True,
    }
    worker = subprocess.Popen(command, **started)
    while worker.poll() is None and not (grouped / "go.awaited").exists():
        time.sleep(0.05)
    assert b"campaign.py" in Path(f"/proc/{worker.pid}/cmdline").read_bytes()  # as ``alive`` asks
    worker.send_signal(signal.SIGTERM)
    (grouped / "go").touch()
    said, _ = worker.communicate()
    assert "was stopped; the same command goes on with it" in said
    own = grouped / "runs" / "toys_ppo" / "1"
    assert not (own / "result.json").exists()

    done = subprocess.run(command, **started)
    assert done.returncode == 0, done.stdout
    assert (
        len(list(own.glob("*/config.yaml"))) == 1
    )  # resumed, in a group's environment whose module nobody else trusts
    found = records(grouped)
    assert found["toys_ppo"]["group"] == "toys" and found["toys_ppo"]["versions"]["toy_world"] == "1.5"
    (run,) = found["toys_ppo"]["runs"]
    assert found["toys_ppo"]["mean"] == run["success_rate"] and found["toys_ppo"]["passed"] == (
        run["success_rate"] >= 0.5
    )
    assert (
        "group" not in found["ppo_own"] and "toy_world" not in found["ppo_own"]["versions"]
    )  # back in the campaign's own
    assert f"| toys/ppo | 1/1 | {run['success_rate']:.4g} |" in (grouped / "status.md").read_text()
