"""The evidence campaign: a queue of runs that is worked through in order, survives interruptions, and says where it stands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training import Callback

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


def test_an_interrupted_campaign_goes_on_where_it_was(campaign, tmp_path, monkeypatch):
    from rl_training.runtime import spec

    class StopOnce(Callback):
        def on_update_end(self, trainer, result):
            trainer.request_stop("for a while")

    controls = spec.build_control_callbacks
    monkeypatch.setattr(spec, "build_control_callbacks", lambda config: [*controls(config), StopOnce()])
    with pytest.raises(RuntimeError, match="was stopped; the same command goes on with it"):
        campaign.work(tmp_path)
    assert not (tmp_path / "records").exists() and "0/2 (+1 begun)" in campaign.status(tmp_path)
    monkeypatch.setattr(spec, "build_control_callbacks", controls)
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
