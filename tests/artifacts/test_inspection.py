"""Plots of a model's predictions, and the numbers behind them."""

import numpy as np
import pytest

from rl_training.artifacts.inspection import load_agent, predict_episode, reconstruct_episode
from rl_training.cli import main
from rl_training.experiment.registry import get_algorithm_spec


@pytest.mark.parametrize("algo", ["pets", "mbpo", "mopo"])
def test_every_model_can_be_drawn(tiny, tmp_path, capsys, algo):
    pytest.importorskip("matplotlib")
    result = get_algorithm_spec(algo).train(tiny(algo, total_timesteps=60))
    output = tmp_path / "plots" / "model.png"
    assert main(["inspect-model", "--checkpoint", str(result.run_dir), "--output", str(output), "--steps", "15"]) == 0
    assert output.read_bytes()[:4] == b"\x89PNG" and "after one step" in capsys.readouterr().out


def test_predictions_start_where_the_episode_does(tiny):
    result = get_algorithm_spec("mopo").train(tiny("mopo", total_timesteps=20))
    seen = predict_episode(*load_agent(result.run_dir), steps=10)
    assert seen.real.shape == (11, 3) and seen.predicted.shape == (3, 11, 3) and seen.predicted_rewards.shape == (3, 10)
    assert np.array_equal(seen.predicted[:, 0], np.repeat(seen.real[:1], 3, 0))


@pytest.mark.parametrize("images", [False, True])
def test_reconstructions_and_imagination_of_a_dreamer_can_be_drawn(tiny, tmp_path, capsys, images):
    pytest.importorskip("matplotlib")
    wrappers = {"wrappers": {"pixels": {"resize_shape": [32, 32]}}} if images else {}
    result = get_algorithm_spec("dreamer").train(tiny("dreamer", total_timesteps=40, env_kwargs=wrappers))
    output = tmp_path / "episode.png"
    assert main(["inspect-model", "--checkpoint", str(result.run_dir), "--output", str(output), "--steps", "12"]) == 0
    assert output.read_bytes()[:4] == b"\x89PNG" and "imagining" in capsys.readouterr().out
    assert output.with_suffix(".gif").exists() is images
    episode = reconstruct_episode(*load_agent(result.run_dir), steps=12)
    assert np.array_equal(episode.reconstructed[:5], episode.imagined[:5])
    assert not np.array_equal(episode.reconstructed[6], episode.imagined[6])


def test_the_real_episode_is_shown_as_it_was(tiny):
    config = tiny("dreamer", env_id="rl_training.envs.catch:Catch-v0", total_timesteps=40)
    episode = reconstruct_episode(*load_agent(get_algorithm_spec("dreamer").train(config).run_dir), steps=3)
    assert set(np.unique(episode.real)) == {0.0, np.float32(128 / 255), 1.0}
    assert episode.real.shape == episode.reconstructed.shape == episode.imagined.shape


def test_an_agent_without_a_model_says_so(tiny, capsys):
    result = get_algorithm_spec("sac").train(tiny("sac", total_timesteps=30))
    assert main(["inspect-model", "--checkpoint", str(result.run_dir), "--output", "x.png"]) == 2
    assert "SAC has no model of its environment: only pets, mbpo, mopo and dreamer have" in capsys.readouterr().err
