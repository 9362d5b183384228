"""Rows of the campaign that learn from data: their datasets are made once, resumed, waited for, and described in the records."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interruptions import every_run_stops
from rl_training.data.dataset_files import read_npz

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {"hidden_sizes": [16, 16], "learning_starts": 40, "batch_size": 32}
ROWS = """
rows:
  - {name: bc/toy, algo: bc, env_id: Pendulum-v1, data: toy-replay, seeds: [1, 2], hours: 0.1, figure: score, set: &tiny
      {total_timesteps: 20, eval_episodes: 1, algo_kwargs.dataset_kind: npz, algo_kwargs.dataset_path: data/toy-replay.npz}}
"""
DEMONSTRATED = """
rows:
  - {name: bc/shown, algo: bc, env_id: Pendulum-v1, data: toy-demos, seeds: [1], hours: 0.1, figure: score, set:
      {total_timesteps: 20, eval_episodes: 1, algo_kwargs.dataset_kind: npz, algo_kwargs.dataset_path: data/toy-demos.npz}}
  - {name: sac/agents, algo: sac, env_id: Pendulum-v1, seeds: [1, 2], hours: 0.1, set:
      {total_timesteps: 60, eval_episodes: 1, algo_kwargs.hidden_sizes: [16, 16], algo_kwargs.batch_size: 32}}
"""


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    """The module, in a folder's checkout, with a dataset of two agents that Pendulum's first evaluation stops."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    import campaign
    import datasets
    import learning

    monkeypatch.setattr(learning, "EPISODES", 1)
    monkeypatch.setattr(datasets, "DEMONSTRATIONS", 1)
    monkeypatch.setitem(datasets.DEMOS, "toy-demos", "sac/agents")
    level = datasets.Level(
        "Pendulum-v1", -1e6, (1, 2), None, -1200.0, -200.0, "a toy's", most_steps=400, eval_interval=60, episodes=1,
        options=SMALL,
    )  # fmt: skip
    monkeypatch.setitem(datasets.LEVELS, "toy-replay", level)
    (tmp_path / "queue.yaml").write_text(ROWS)
    yield campaign
    for name in ("campaign", "datasets", "learning"):
        sys.modules.pop(name, None)


def records(folder):
    return {path.stem: json.loads(path.read_text()) for path in (folder / "records").glob("*.json")}


@pytest.fixture
def counted(campaign, monkeypatch):
    """The names of the datasets whose making began, in order."""
    import datasets

    begun, make = [], datasets.make
    monkeypatch.setattr(datasets, "make", lambda name, *rest: begun.append(name) or make(name, *rest))
    return begun


def test_a_rows_data_is_made_once_and_its_record_says_what_it_is(campaign, counted, tmp_path):
    assert "| toy-replay | not yet |" in campaign.status(tmp_path)
    campaign.work(tmp_path)
    assert counted == ["toy-replay"]
    record, data = records(tmp_path)["bc_toy"], read_npz(Path("data/toy-replay.npz"))
    assert record["data"]["sha256"] == data.fingerprint() and record["data"]["transitions"] == len(data) == 120
    assert record["data"]["return_mean"] == pytest.approx(data.finished_returns().mean())
    assert record["data"]["score_mean"] == pytest.approx((record["data"]["return_mean"] + 1200) / 10)
    assert record["updates"] == 20 and record["figure"] == "score"
    for run in record["runs"]:
        assert run["score"] == pytest.approx((run["return_mean"] + 1200) / 10)
        assert run["data"] == data.fingerprint()
    assert record["mean"] == pytest.approx(sum(run["score"] for run in record["runs"]) / 2)
    text = (tmp_path / "status.md").read_text()
    assert "| bc/toy | 2/2 |" in text and f"| toy-replay | 120 | 2 | {record['data']['return_mean']:.1f} |" in text


def test_data_of_a_level_is_the_same_for_the_same_seeds_and_names_its_agents(campaign, tmp_path):
    import datasets

    first = datasets.make_dataset("toy-replay", tmp_path / "first", keep=tmp_path / "runs")
    again = datasets.make_dataset("toy-replay", tmp_path / "again")
    assert first["sha256"] == again["sha256"]
    data = read_npz(tmp_path / "first" / "toy-replay.npz")
    assert data.meta["random_return"] == -1200 and data.meta["expert_return"] == -200
    assert [(agent["seed"], agent["step"]) for agent in first["behaviour"]["agents"]] == [(1, 60), (2, 60)]
    assert data.truncations[59] == data.truncations[119] == 1 and data.concerns() == []
    drawn = datasets.LEVELS["toy-replay"]._replace(seeds=(1,), drawn_steps=30)
    assert len(datasets.of_level(drawn, tmp_path / "runs")) == 30  # of the agent that was kept


def test_data_whose_making_was_stopped_goes_on_where_it_was(campaign, tmp_path):
    with every_run_stops(), pytest.raises(RuntimeError, match="was stopped; the same command goes on with it"):
        campaign.work(tmp_path)
    assert not Path("data/toy-replay.npz").exists() and "| toy-replay | begun |" in campaign.status(tmp_path)
    campaign.work(tmp_path)
    assert len(list((tmp_path / "runs" / "data_toy-replay" / "1").glob("*/config.yaml"))) == 1  # resumed
    import datasets

    whole = datasets.make_dataset("toy-replay", tmp_path / "whole")
    assert records(tmp_path)["bc_toy"]["data"]["sha256"] == whole["sha256"]


def test_rows_wait_for_the_agents_that_demonstrate_and_the_best_one_does(campaign, tmp_path):
    (tmp_path / "queue.yaml").write_text(DEMONSTRATED)
    assert "| bc/shown | 0/1 (toy-demos needs the agents of sac/agents) |" in campaign.status(tmp_path)
    campaign.work(tmp_path)  # the agents' row stands below the one that needs it
    found = records(tmp_path)
    best = max(found["sac_agents"]["runs"], key=lambda run: run["return_mean"])
    behaviour = json.loads(Path("data/toy-demos.json").read_text())["behaviour"]
    assert behaviour["seed"] == best["seed"] and behaviour["deterministic"] is True
    assert found["bc_shown"]["data"]["score_mean"] == pytest.approx(100)  # the expert of the file is the one who shows
    assert found["bc_shown"]["data"]["transitions"] == 200


def test_a_row_whose_agents_are_not_in_the_queue_is_passed_over(campaign, counted, tmp_path):
    both = DEMONSTRATED[: DEMONSTRATED.index("  - {name: sac/agents")] + ROWS.replace("rows:\n", "").lstrip("\n")
    (tmp_path / "queue.yaml").write_text(both)
    campaign.work(tmp_path)
    assert list(records(tmp_path)) == ["bc_toy"] and counted == ["toy-replay"]


def test_data_that_another_worker_makes_is_not_waited_for_while_there_is_other_work(campaign, tmp_path, monkeypatch):
    from filelock import FileLock

    other = "  - {name: ppo/own, algo: ppo, env_id: CartPole-v1, seeds: [1], hours: 0.1, set: {total_timesteps: 64, \
eval_episodes: 1, algo_kwargs.num_steps: 32, algo_kwargs.minibatch_size: 32, algo_kwargs.update_epochs: 1}}\n"
    (tmp_path / "queue.yaml").write_text(ROWS + other)
    first = tmp_path / "runs" / "bc_toy" / "1"
    first.mkdir(parents=True)
    theirs = [FileLock(first / ".worker"), FileLock(tmp_path / ".data_toy-replay")]
    for lock in theirs:
        lock.acquire()
    looks = []

    def sleep(seconds):  # called when nothing else is left to do; then the other worker ends
        looks.append(list(records(tmp_path)))
        for lock in theirs:
            lock.release()

    monkeypatch.setattr(campaign.time, "sleep", sleep)
    campaign.work(tmp_path)
    assert looks == [["ppo_own"]] and set(records(tmp_path)) == {"ppo_own", "bc_toy"}


def test_data_that_cannot_be_made_stops_nobody_and_is_tried_again_by_the_next_start(campaign, counted, tmp_path):
    import datasets

    datasets.LEVELS["toy-replay"] = datasets.LEVELS["toy-replay"]._replace(target=0.0, most_steps=60)
    campaign.work(tmp_path)
    campaign.work(tmp_path)
    said = "toy-replay cannot be made: seed 1 did not reach 0 within 60 steps"
    assert counted == ["toy-replay"] and said in campaign.status(tmp_path) and not records(tmp_path)
    assert (tmp_path / "data_toy-replay.failed").exists()


def test_a_new_folder_takes_over_runs_of_the_same_data_alone(campaign, counted, tmp_path):
    campaign.work(tmp_path)
    collected = tmp_path / "results" / "campaign"
    collected.parent.mkdir()
    (tmp_path / "records").rename(collected)
    newest = tmp_path / "results" / "datasets" / "toy-replay.json"
    newest.parent.mkdir()
    newest.write_text(Path("data/toy-replay.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "queue.yaml").write_text(ROWS)
    campaign.recall(other, collected)
    campaign.work(other)  # nothing is left to make, the data neither
    assert "| bc/toy | 2/2 |" in campaign.status(other) and counted == ["toy-replay"]

    newest.write_text(json.dumps({**json.loads(newest.read_text()), "sha256": "another"}))
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "queue.yaml").write_text(ROWS)
    campaign.recall(changed, collected)
    assert not list(changed.rglob("result.json"))


def test_a_result_from_another_file_does_not_count(campaign, tmp_path):
    campaign.work(tmp_path)
    place = tmp_path / "runs" / "bc_toy" / "1" / "result.json"
    result = json.loads(place.read_text())
    place.write_text(json.dumps({**result, "data": {**result["data"], "sha256": "another"}}))
    (job, *_) = campaign.queue(tmp_path / "queue.yaml")
    assert campaign.finished(tmp_path, job) is None and "| bc/toy | 1/2" in campaign.status(tmp_path)


def test_agents_that_demonstrate_are_trained_again_where_only_their_records_are(campaign, tmp_path):
    (tmp_path / "queue.yaml").write_text(DEMONSTRATED)
    campaign.work(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "queue.yaml").write_text(DEMONSTRATED.replace("seeds: [1], hours", "seeds: [1, 3], hours"))
    campaign.recall(other, tmp_path / "records")
    done = sorted(str(path.parent.relative_to(other / "runs")) for path in other.rglob("result.json"))
    assert done == ["bc_shown/1"]  # seed 3 of it needs the demonstrations, and those the agents


def test_a_file_of_an_earlier_way_of_making_it_is_refused(campaign, tmp_path):
    import datasets

    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "toy-replay.npz").write_bytes(b"")
    with pytest.raises(SystemExit, match="an earlier command made it, in another way; move it away"):
        datasets.make_dataset("toy-replay", folder)


def test_rows_name_data_that_is_known_and_that_they_read(campaign, monkeypatch):
    import datasets

    monkeypatch.chdir(BENCHMARKS.parent)
    jobs = campaign.queue(BENCHMARKS / "campaign.yaml")
    rows = {job.row["name"]: job.row for job in jobs}
    read = 0
    for job in jobs:
        options = campaign.config_of(job).algo_kwargs
        path = options.get("dataset_path") or options.get("expert_dataset_path")
        if path or "data" in job.row:
            assert path == f"data/{job.row['data']}.npz" and job.row["data"] in datasets.names(), job.row["name"]
            assert datasets.DEMOS.get(job.row["data"]) in (None, *rows) and job.row["figure"] == "score"
            read += 1
    assert read > 50


def test_the_making_of_data_ends_within_seconds_of_a_signal_and_goes_on(campaign, tmp_path):
    """A process of its own is told to stop in the middle of training, as a worker is."""
    program = f"""
import sys, os, signal
sys.path.insert(0, {str(BENCHMARKS)!r})
import datasets
from pathlib import Path
from rl_training import Callback
from rl_training.runtime import spec
class Stop(Callback):
    def on_update_end(self, trainer, result):
        os.kill(os.getpid(), signal.SIGTERM)
controls = spec.build_control_callbacks
if sys.argv[1] == "stop":
    spec.build_control_callbacks = lambda config: [*controls(config), Stop()]
datasets.LEVELS["toy"] = datasets.Level("Pendulum-v1", -1e6, (1,), None, -1200.0, -200.0, "a toy's", most_steps=400,
    eval_interval=60, episodes=1, options={SMALL!r})
print(datasets.make_dataset("toy", Path({str(tmp_path)!r}), keep=Path({str(tmp_path / "kept")!r}))["transitions"])
"""
    stopped = subprocess.run([sys.executable, "-c", program, "stop"], capture_output=True, text=True)
    assert "was stopped; the same command goes on with it" in stopped.stderr and stopped.returncode != -signal.SIGKILL
    assert len(list((tmp_path / "kept").rglob("config.yaml"))) == 1 and not (tmp_path / "toy.npz").exists()
    gone_on = subprocess.run([sys.executable, "-c", program, "go"], capture_output=True, text=True)
    assert gone_on.stdout.split()[-1] == "60", gone_on.stderr


def test_an_older_checkout_is_not_given_rows_whose_fields_it_does_not_know(campaign, tmp_path):
    program = tmp_path / "checkout" / "benchmarks" / "campaign.py"
    program.parent.mkdir()
    program.write_text((BENCHMARKS / "campaign.py").read_text())
    campaign.refuse_unknown_fields(tmp_path / "checkout", BENCHMARKS / "campaign.yaml")
    program.write_text(program.read_text().replace('"data"', '"other"'))
    with pytest.raises(SystemExit, match=r"does not know the fields data of campaign\.yaml: stop the workers"):
        campaign.refuse_unknown_fields(tmp_path / "checkout", BENCHMARKS / "campaign.yaml")


def test_a_row_with_data_and_a_group_is_refused(campaign, tmp_path):
    (tmp_path / "queue.yaml").write_text(ROWS.replace("data: toy-replay", "data: toy-replay, group: grids"))
    with pytest.raises(SystemExit, match="bc/toy: datasets are made in the campaign's own environment"):
        campaign.queue(tmp_path / "queue.yaml")


def test_datasets_are_collected_beside_the_records(campaign, tmp_path, monkeypatch):
    campaign.work(tmp_path)
    monkeypatch.setattr(campaign, "HERE", tmp_path / "benchmarks")
    campaign.collect(tmp_path)
    results = tmp_path / "benchmarks" / "results"
    noted = json.loads((results / "datasets" / "toy-replay.json").read_text())
    record = json.loads((results / "campaign" / "bc_toy.json").read_text())
    assert noted["sha256"] == record["data"]["sha256"] and noted["behaviour"]["algo"] == "sac"
    assert record["mean"] == pytest.approx(sum(run["score"] for run in record["runs"]) / 2)
