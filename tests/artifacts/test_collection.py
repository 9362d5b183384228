"""Datasets from agents: what collect records, what a replay buffer exports, what dataset info says."""

import json

import numpy as np
import pytest

from rl_training.artifacts.collection import export_replay
from rl_training.cli import main
from rl_training.data.dataset_files import read_npz
from rl_training.data.errors import DatasetError
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.experience import collect_from_checkpoint
from rl_training.runtime.workflows import predict_checkpoint


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory):
    from toys import tiny_config

    return get_algorithm_spec("sac").train(tiny_config("sac", tmp_path_factory.mktemp("sac"), total_timesteps=450))


@pytest.fixture(scope="module")
def dqn_run(tmp_path_factory):
    from toys import tiny_config

    config = tiny_config("dqn", tmp_path_factory.mktemp("dqn"), total_timesteps=333, num_envs=3, buffer_capacity=250)
    return get_algorithm_spec("dqn").train(config)


def test_the_same_seed_collects_the_same(sac_run):
    data = [collect_from_checkpoint(sac_run.run_dir, steps=250, seed=s).fingerprint() for s in (1, 1, 2)]
    assert data[0] == data[1] != data[2]


def test_whole_episodes_and_their_returns(sac_run):
    data = collect_from_checkpoint(sac_run.checkpoint_path, episodes=2, deterministic=True)
    assert len(data) == 400 and data.truncations.sum() == 2 and data.dones.sum() == 0 and data.concerns() == []
    assert np.allclose(data.returns(), [data.rewards[:200].double().sum(), data.rewards[200:].double().sum()])
    in_its_units = predict_checkpoint(sac_run.checkpoint_path, data.obs.numpy())
    assert np.allclose(data.actions.numpy(), in_its_units, atol=1e-5)
    assert data.meta["behaviour"] == {"algo": "sac", "deterministic": True, "step": 450}


def test_a_replay_buffer_is_exported_in_order(sac_run):
    data = export_replay(sac_run.run_dir)
    assert len(data) == 450 and data.concerns() == []
    assert [rows.stop for rows in data.episodes()] == [200, 400, 450]


def test_of_several_environments_each_one_is_a_stream_of_its_own(dqn_run):
    data = export_replay(dqn_run.run_dir)
    assert len(data) == 250 and data.concerns() == ["every reward is 1"]  # no row is followed by a stranger
    assert data.actions.dtype.is_floating_point is False and set(data.actions.tolist()) == {0, 1}


def test_a_replay_that_holds_no_single_transitions_is_refused(tiny):
    run = get_algorithm_spec("dqn").train(tiny("dqn", n_step=3, total_timesteps=60))
    with pytest.raises(ValueError, match="holds returns over 3 steps, not single transitions"):
        export_replay(run.run_dir)
    run = get_algorithm_spec("ppo").train(tiny("ppo", total_timesteps=64))
    with pytest.raises(ValueError, match="holds no replay buffer: ppo keeps none"):
        export_replay(run.run_dir)
    run = get_algorithm_spec("sac").train(
        tiny("sac", total_timesteps=40, env_kwargs={"wrappers": {"reward": {"scale": 0.1}}})
    )
    with pytest.raises(ValueError, match="rewards that were scaled or clipped"):
        export_replay(run.run_dir)


def test_images_are_exported_too(tiny):
    env_kwargs = {"wrappers": {"atari": {"noop_max": 2, "screen_size": 36, "frame_stack": 2}}, "max_episode_steps": 30}
    config = tiny("dqn", env_id="ALE/Breakout-v5", env_kwargs=env_kwargs, hidden_sizes=[16], total_timesteps=70)
    data = export_replay(get_algorithm_spec("dqn").train(config).run_dir)
    assert data.obs.shape == (70, 2, 36, 36) and str(data.obs.dtype) == "torch.uint8"
    assert not [text for text in data.concerns() if "successor" in text]


def test_the_command_records_and_describes(sac_run, tmp_path, capsys):
    file = str(tmp_path / "deep" / "data.npz")
    words = ["collect", "--checkpoint", str(sac_run.run_dir), "--steps", "300", "--output", file, "--expert", "-150"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "300 transitions in 2 episodes of Pendulum-v1" in printed and "expert_return -150.0" in printed
    data = read_npz(tmp_path / "deep" / "data.npz")
    assert data.meta["env_id"] == "Pendulum-v1" and data.meta["seed"] == 0 and len(data.meta["returns"]) == 2
    assert data.meta["versions"]["gymnasium"] and data.meta["random_return"] < -500
    assert main(["dataset", "info", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transitions"] == 300


def test_the_command_exports_a_replay_and_collects_at_random(sac_run, tmp_path, capsys):
    assert (
        main(["collect", "--checkpoint", str(sac_run.run_dir), "--from-replay", "--output", str(tmp_path / "a.npz")])
        == 0
    )
    assert (
        main(["collect", "--random", "--env", "CartPole-v1", "--episodes", "3", "--output", str(tmp_path / "b.npz")])
        == 0
    )
    assert "3 episodes of CartPole-v1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--random", "--output", "a.npz"], "name a run or a checkpoint, or give --random and --env"),
        (["--random", "--env", "CartPole-v1", "--output", "a.npz"], "say how many steps or how many episodes"),
        (["--random", "--env", "CartPole-v1", "--output", "a.txt", "--steps", "3"], "say what it is with --format"),
        (["--checkpoint", "nowhere", "--output", "a.npz", "--steps", "3"], "no checkpoint at nowhere"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["collect", *words]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_the_whole_way_from_a_file(sac_run, tmp_path, tiny):
    from rl_training.data.dataset_files import write_npz

    write_npz(tmp_path / "a.npz", export_replay(sac_run.run_dir))
    for algo in ("bc", "td3_bc", "iql", "cql", "rlpd"):
        changes = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "a.npz"), "total_timesteps": 40}
        result = get_algorithm_spec(algo).train(tiny(algo, **changes))
        assert result.metrics["dataset_size" if algo != "rlpd" else "offline_dataset_size"] == 450


def test_a_replay_of_sequences_is_not_exported(tiny):
    run = get_algorithm_spec("dreamer").train(tiny("dreamer"))
    with pytest.raises(DatasetError, match="holds sequences of observations, not single transitions"):
        export_replay(run.run_dir)
