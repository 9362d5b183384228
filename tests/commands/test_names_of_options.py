"""What options are called: by themselves with --set, and for people who know them from other libraries."""

from __future__ import annotations

import json
import re

import pytest

from rl_training import DQN, PPO, SAC, TrainConfig
from rl_training.base.aliases import ABSENT, ALGORITHM_ALIASES, TARGETS, known_as
from rl_training.base.options import ConfigError
from rl_training.cli import load_config, main
from rl_training.experiment.config import TrainConfig as Config
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec, get_entry
from rl_training.experiment.yaml_config import _full_name, full_names


def test_an_option_is_set_by_its_own_name(capsys):
    words = ["config", "--algo", "ppo", "--env", "CartPole-v1", "--json"]
    assert main([*words, "--set", "learning_rate=0.25", "--set", "early_stopping.patience=3", "--set", "seed=7"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["algo_kwargs"]["learning_rate"] == 0.25 and whole["seed"] == 7
    assert whole["algo_kwargs"]["early_stopping"]["patience"] == 3


def test_with_a_file_the_algorithm_is_the_files_unless_it_is_set(tmp_path):
    from rl_training.experiment.yaml_config import read_config

    path = tmp_path / "a.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\nalgo_kwargs:\n  learning_rate: 0.5\n")
    config = read_config(path, {"learning_rate": 0.25, "max_episode_steps": 9, "wrappers.frame_stack": 2})
    assert config.algo_kwargs == {"learning_rate": 0.25}
    assert config.env_kwargs == {"max_episode_steps": 9, "wrappers": {"frame_stack": 2}}
    assert read_config(path, {"algo": "dqn", "n_step": 3}).algo_kwargs == {"learning_rate": 0.5, "n_step": 3}
    with pytest.raises(ConfigError, match=r"--set n_step: unknown option; did you mean 'algo_kwargs.num_steps'\?"):
        read_config(path, {"n_step": 3})


def test_fields_of_the_config_come_first_and_full_names_stay():
    given = {"seed": 1, "env_kwargs.x": 2, "algo_kwargs.gamma": 0.5, "nonsense": 3}
    assert full_names({"algo": "ppo"}, given) == given


def test_a_name_that_could_mean_two_options_is_refused_with_both():
    groups = {"algo_kwargs": ("scale",), "env_kwargs": ("scale",)}
    with pytest.raises(ConfigError, match=r"--set scale.x is ambiguous: say algo_kwargs.scale.x or env_kwargs.scale.x"):
        _full_name("scale.x", groups)


def test_an_option_that_is_set_by_two_names_is_refused():
    with pytest.raises(ConfigError, match=r"--set gamma and --set algo_kwargs\.gamma are the same option"):
        full_names({"algo": "ppo"}, {"gamma": 0.9, "algo_kwargs.gamma": 0.8})


def test_a_sweep_takes_short_names_too(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("rl_training.sweeps.sweep.run_jobs", lambda jobs, backend: made.extend(jobs) or {})
    words = ["sweep", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path)]
    assert main([*words, "--set", "num_steps=32", "--set", "learning_rate=1e-3,1e-4"]) == 0
    assert [job.config["algo_kwargs"] for job in made] == [
        {"num_steps": 32, "learning_rate": rate} for rate in (1e-3, 1e-4)
    ]
    assert "learning_rate=0.0001" in made[1].name


def test_a_search_leaves_out_what_is_set_by_its_short_name(tmp_path, monkeypatch):
    class Opened(Exception):
        pass

    def look(folder, base, space, **options):
        raise Opened(base.algo_kwargs, sorted(space))

    pytest.importorskip("optuna")
    monkeypatch.setattr("rl_training.sweeps.tune.open_study", look)
    (tmp_path / "space.yaml").write_text("gamma: [0.9, 0.99]\nalgo_kwargs.learning_rate: {low: 1e-4, high: 1e-3}\n")
    words = ["tune", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path)]
    with pytest.raises(Opened) as opened:
        main([*words, "--space", str(tmp_path / "space.yaml"), "--set", "learning_rate=0.5"])
    assert opened.value.args == ({"learning_rate": 0.5}, ["algo_kwargs.gamma"])


# ---- names from elsewhere

KEYWORDS = [
    (PPO, "lr", "learning_rate"), (PPO, "n_envs", "num_envs"), (PPO, "batch", "minibatch_size"), (PPO, "batch_size", "minibatch_size"),
    (PPO, "n_steps", "num_steps"), (PPO, "ent_coeff", "ent_coef"), (PPO, "timesteps", "total_timesteps"), (PPO, "n_epochs", "update_epochs"),
    (PPO, "clip_range", "clip_coef"), (PPO, "net_arch", "hidden_sizes"), (DQN, "batch", "batch_size"), (DQN, "buffer_size", "buffer_capacity"),
    (DQN, "n_steps", "n_step"), (DQN, "train_freq", "train_frequency"), (SAC, "ent_coef", "alpha"), (SAC, "polyak", "tau"),
    (SAC, "discount", "gamma"), (SAC, "total_steps", "total_timesteps"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "here"), KEYWORDS)
def test_keywords_of_other_libraries_are_answered_with_the_ones_here(kind, name, here):
    with pytest.raises(ConfigError, match=rf"^{name}: unknown option of {kind.algo_name}; did you mean '{here}'\?$"):
        kind("CartPole-v1", **{name: 1})


@pytest.mark.parametrize(("kind", "name", "here"), KEYWORDS)
def test_the_same_in_a_file_and_with_set(kind, name, here, tmp_path, capsys):
    own = here in Config.model_fields
    path = tmp_path / "a.yaml"
    path.write_text(f"algo: {kind.algo_name}\nenv_id: CartPole-v1\n{name}: 1\n")
    said = here if own else f"algo_kwargs.{here}"
    with pytest.raises(ConfigError, match=rf"a.yaml:3: {name}: unknown option; did you mean '{said}'\?$"):
        load_config(path)
    words = ["train", "--algo", kind.algo_name, "--env", "CartPole-v1", "--set", f"{name}=1"]
    assert main(words) == 2
    assert f"{name}: unknown option; did you mean '{said}'?" in capsys.readouterr().err
    path.write_text(f"algo: {kind.algo_name}\nenv_id: CartPole-v1\nalgo_kwargs:\n  {name}: 1\n")
    said = f"'{here}' of the config itself, outside of algo_kwargs" if own else f"'{here}'"
    message = f"algo_kwargs.{name}: unknown option of {kind.algo_name}; did you mean {said}?"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path)


def test_an_option_in_the_wrong_place_is_told_its_right_one():
    with pytest.raises(ConfigError, match=r"learning_rate: unknown option; did you mean 'algo_kwargs.learning_rate'\?"):
        TrainConfig(algo="ppo", env_id="CartPole-v1", learning_rate=1)
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", algo_kwargs={"num_envs": 2})
    with pytest.raises(ConfigError, match="did you mean 'num_envs' of the config itself, outside of algo_kwargs"):
        PPO(config)


def test_suggestions_name_options_that_exist():
    known = set(Config.model_fields).union(*(get_algorithm_spec(name).config.model_fields for name in ALGORITHMS))
    assert known >= TARGETS
    assert known_as("lr", ["gamma"]) is None and known_as("LR", ["learning_rate"]) == "learning_rate"


ALGOS = [
    ("qrdqn", "did you mean 'qr_dqn'"), ("QR-DQN", "did you mean 'qr_dqn'"), ("td3bc", "did you mean 'td3_bc'"),
    ("PPO", "did you mean 'ppo'"), ("DreamerV3", "did you mean 'dreamer'"), ("ppoo", "did you mean 'ppo'"),
    ("a2c", "not in this package; closest: ppo"), ("TD3", "not in this package; closest: sac, td3_bc"),
    ("ddpg", "not in this package; closest: sac"), ("rainbow", "not in this package; closest: dqn"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), ALGOS)
def test_algorithms_by_other_names_and_those_that_are_not_here(name, message, tmp_path, capsys):
    with pytest.raises(ValueError, match=re.escape(f"unknown algorithm {name!r}") + ".*" + re.escape(message)):
        get_entry(name)
    with pytest.raises(ConfigError, match=re.escape(message)):
        TrainConfig(algo=name, env_id="CartPole-v1")
    (tmp_path / "a.yaml").write_text(f"algo: {name}\nenv_id: CartPole-v1\n")
    for words in (["--config", str(tmp_path / "a.yaml")], ["--algo", name, "--env", "CartPole-v1"]):
        assert main(["train", *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "--config", "configs/ppo/cartpole.yaml", "--set", f"algo={name}"]) == 2
    assert message in capsys.readouterr().err


def test_no_algorithm_is_said_to_be_absent_that_is_here_and_the_nearest_are():
    plain = {name.replace("_", "") for name in ALGORITHMS}
    assert not plain & set(ABSENT) and not plain & set(ALGORITHM_ALIASES)
    assert {near for nearest in ABSENT.values() for near in nearest} | set(ALGORITHM_ALIASES.values()) <= set(
        ALGORITHMS
    )
