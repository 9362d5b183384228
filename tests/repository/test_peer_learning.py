"""Peers are given our settings on the same file: every option that a peer's unit reads is one that our algorithm has."""

import json
import re
import sys
from pathlib import Path

import pytest

from rl_training.data.dataset_files import read_npz, write_npz
from rl_training.data.recorder import collect_random
from rl_training.envs.factory import EnvFactory

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "benchmarks" / "units"


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """The module, in a folder whose data/ holds a toy under the names of the datasets."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    import datasets
    import peer_learning

    data = collect_random(EnvFactory("Pendulum-v1", {}), 600, seed=0)
    data.meta |= {"random_return": -1200.0, "expert_return": -200.0, "env_id": "Pendulum-v1", "behaviour": {}}
    (tmp_path / "data").mkdir()
    for name in ("hopper-medium-replay", "hopper-demos"):
        write_npz(tmp_path / "data" / f"{name}.npz", data)
        datasets.note(tmp_path / "data", name, read_npz(tmp_path / "data" / f"{name}.npz"))
    yield peer_learning
    for name in ("datasets", "defaults", "learning", "peer_learning"):
        sys.modules.pop(name, None)


def read_by(unit):
    """Names of options and of settings that the unit asks for."""
    text = (UNITS / f"{unit}_learning.py").read_text()
    return set(re.findall(r'options\["(\w+)"\]', text)), set(re.findall(r'settings\["(\w+)"\]', text))


def test_a_peer_of_offline_learning_gets_our_defaults_and_the_same_file(peers):
    options, settings = read_by("d3rlpy")
    held = set()
    for algo in ("td3_bc", "iql", "cql"):
        work = peers.offline(f"{algo}/hopper-medium-replay", updates=123)
        held |= set(work.settings["options"])
        assert settings <= set(json.loads(json.dumps(work.settings))) and work.peer == "d3rlpy"
        assert work.settings["updates"] == 123 and work.settings["data"] == "data/hopper-medium-replay.npz"
        returns = read_npz(Path(work.settings["data"])).finished_returns()
        factor = 1000 / (returns.max() - returns.min()) if algo == "iql" else 1
        assert work.settings["reward_factor"] == pytest.approx(factor)
    assert len(options) > 10 and options <= held


def test_a_peer_of_gail_gets_the_presets_options_and_the_same_demonstrations(peers):
    options, settings = read_by("imitation")
    work = peers.imitated("gail/hopper-demos")
    assert settings <= set(work.settings) and len(options) > 10 and options <= set(work.settings["options"])
    assert work.settings["options"]["learning_rate_schedule"] == "linear" and work.settings["num_envs"] == 8
    assert work.settings["data"] == "data/hopper-demos.npz" and work.settings["total_timesteps"] == 1_000_000


def test_a_peers_runs_are_scored_and_recorded_with_the_data(peers, monkeypatch, tmp_path):
    python = tmp_path / "venvs" / "d3rlpy" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho noise\necho \'{"seed": \'$3\', "return_mean": -700.0, "cpu_seconds": 1.0}\'\n')
    python.chmod(0o755)
    monkeypatch.setattr(peers, "PEERS", tmp_path / "venvs")
    monkeypatch.setattr(peers, "HERE", tmp_path)
    work = peers.offline("cql/hopper-medium-replay", updates=9)
    peers.write("cql/hopper-medium-replay", work, [peers.run(work, 201)])
    record = json.loads((tmp_path / "results" / "peers" / "d3rlpy_cql_hopper-medium-replay.json").read_text())
    assert record["runs"] == [{"seed": 201, "return_mean": -700.0, "cpu_seconds": 1.0, "score": 50.0}]
    assert record["data"]["sha256"] == read_npz(Path("data/hopper-medium-replay.npz")).fingerprint()


def test_a_row_without_its_data_says_which_command_makes_it(peers):
    with pytest.raises(SystemExit, match=r"python benchmarks/datasets.py hopper-medium$"):
        peers.offline("iql/hopper-medium", updates=9)
