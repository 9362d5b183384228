"""A file that names code does not run it: modules named by checkpoints and datasets are imported only if trusted."""

from __future__ import annotations

import json
import sys

import pytest

from rl_training import PPO
from rl_training.base import trust
from rl_training.base.trust import UntrustedCode, require_trusted, trust_modules
from rl_training.cli import main
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import config_of, evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.sweeps.plan import Job
from rl_training.sweeps.worker import run_job

STRANGER = """
from pathlib import Path
Path(__file__).with_name("it_ran").touch()
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Stranger-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A module that can be imported and leaves a file when it is; gives whether it has been."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "stranger_module.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setattr(trust, "_allowed", set())
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    yield (modules / "it_ran").exists
    sys.modules.pop("stranger_module", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from toys import tiny_config

    config = tiny_config("ppo", tmp_path_factory.mktemp("trained"), total_timesteps=64)
    return get_algorithm_spec("ppo").train(config)


@pytest.fixture
def run(trained, tmp_path):
    """The run directory of a stranger: its checkpoint names an environment of the stranger's module."""
    return renamed(trained, tmp_path, env_id="stranger_module:Stranger-v0")


def renamed(trained, folder, **config):
    state = load_checkpoint(trained.checkpoint_path)
    state.config |= {**config, "output_dir": str(folder / "where_the_file_says")}
    run = folder / "run"
    path = save_checkpoint(run / "checkpoints" / trained.checkpoint_path.name, state)
    for name in ("config.yaml", "metadata.json", "metrics.jsonl"):
        (run / name).write_text((trained.run_dir / name).read_text())
    assert load_checkpoint(path).config["output_dir"].endswith("where_the_file_says")
    return run


PYTHON = {
    "evaluate_checkpoint": lambda path: evaluate_checkpoint(path, 1),
    "predict_checkpoint": lambda path: predict_checkpoint(path, [0.0] * 4),
    "resume_training": lambda path: resume_training(path, total_timesteps=96),
    "manager": lambda path: DefaultExperimentManager().resume(path, total_timesteps=96).train(),
    "load": PPO.load,
}
COMMANDS = {
    "eval": ["eval", "{path}", "--episodes", "1"],
    "predict": ["predict", "{path}", "--obs", "[0, 0, 0, 0]"],
    "resume": ["resume", "{path}", "--total-timesteps", "96"],
    "video": ["video", "--checkpoint", "{path}", "-o", "{path}/a.gif", "--max-steps", "3"],
    "export": ["export", "--checkpoint", "{path}", "-o", "{path}/policy.pt2"],
    "inspect-model": ["inspect-model", "--checkpoint", "{path}", "--output", "{path}/model.png"],
    "collect": ["collect", "--checkpoint", "{path}", "--output", "{path}/data.npz", "--steps", "5"],
    "collect --random": [
        "collect",
        "--random",
        "--checkpoint",
        "{path}",
        "--output",
        "{path}/data.npz",
        "--steps",
        "5",
    ],
    "collect --from-replay": ["collect", "--from-replay", "--checkpoint", "{path}", "--output", "{path}/data.npz"],
}


def newest(run):
    return next(run.glob("checkpoints/*.ckpt"))


@pytest.mark.parametrize("use", PYTHON)
def test_a_checkpoint_cannot_have_a_module_imported(run, stranger, use):
    with pytest.raises(UntrustedCode, match="module 'stranger_module'; if you trust that, say --trust stranger_module"):
        PYTHON[use](newest(run))
    assert not stranger() and "stranger_module" not in sys.modules


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_strangers_module_in_one_line(run, stranger, command, capsys):
    assert main([word.format(path=run) for word in COMMANDS[command]]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not stranger()


def test_functions_that_take_config_and_state_do_not_import_it_either(run, stranger):
    state = load_checkpoint(newest(run))
    config, spec = TrainConfig(**state.config), get_algorithm_spec("ppo")
    for use in (
        lambda: spec.load_fn(config, state, "cpu"),
        lambda: spec.evaluate_fn(config, state, "cpu", 1),
        lambda: spec.train_fn(config.replace(record_video=1), checkpoint_state=state),
        lambda: config_of(state),
    ):
        with pytest.raises(UntrustedCode):
            use()
    assert not stranger()


def test_a_flag_allows_it(run, stranger, capsys):
    assert main(["eval", str(run), "--episodes", "1", "--trust", "stranger_module"]) == 0
    assert "return" in capsys.readouterr().out and stranger()


def test_an_environment_variable_allows_it_with_all_modules_of_a_package(run, stranger, monkeypatch):
    monkeypatch.setenv(trust.VARIABLE, "another, stranger_module")
    require_trusted("a file", "stranger_module.envs:X-v0")
    assert evaluate_checkpoint(run, 1)["eval_episodes"] == 1


def test_trust_in_python_allows_it(run, stranger):
    assert PPO.load(newest(run), trust="stranger_module").predict([0.0] * 4) in (0, 1)


def test_what_is_imported_already_needs_no_permission(run, stranger):
    import stranger_module  # noqa: F401

    assert resume_training(run, total_timesteps=96).metrics["global_step"] == 96


def test_an_environment_of_ones_own_takes_the_place_of_the_files(run, stranger):
    from gymnasium.envs.classic_control import CartPoleEnv

    assert PPO.load(newest(run), env=CartPoleEnv).predict([0.0] * 4) in (0, 1)
    assert not stranger()


def test_ones_own_config_and_env_need_no_permission(stranger, tmp_path, capsys):
    words = ["--algo", "ppo", "--env", "stranger_module:Stranger-v0", "--total-timesteps", "64"]
    words += ["--set", "algo_kwargs.num_steps=32", "--set", "algo_kwargs.minibatch_size=32", "--eval-episodes", "1"]
    assert main(["train", *words, "--output-dir", str(tmp_path), "--set", "progress=off"]) == 0
    assert "--trust stranger_module" in capsys.readouterr().out  # in the command that goes on with the run
    assert stranger()


def test_a_sweeps_worker_resumes_the_environment_of_its_own_config_alone(run, stranger):
    state = load_checkpoint(newest(run))
    ours = Job("run", {**state.config, "env_id": "CartPole-v1"}, run.parent, "")
    assert "--trust stranger_module" in run_job(ours) and not stranger()
    theirs = Job("run", {**state.config, "total_timesteps": 64}, run.parent, "")
    assert run_job(theirs) == "" and stranger()


def test_arguments_of_an_environment_that_name_a_module_are_refused_too(trained, stranger, tmp_path):
    kwargs = {"deep": [{"env_id": "stranger_module:Stranger-v0"}]}
    run = renamed(trained, tmp_path, env_id="GymV26Environment-v0", env_kwargs=kwargs)
    with pytest.raises(UntrustedCode, match="names 'stranger_module:Stranger-v0'"):
        evaluate_checkpoint(run, 1)
    assert not stranger()


@pytest.mark.parametrize("text", ["mode:fast", "https://example.org/a", "C:/maps/one", "12:30", "plain"])
def test_arguments_that_only_look_like_a_module_pass(text):
    require_trusted("a file", "CartPole-v1", {"option": text})


def test_trusting_one_module_trusts_no_other(stranger):
    trust_modules(["stranger_module"])
    for other in ("stranger_module2:X-v0", "another.stranger_module:X-v0", ".stranger_module:X-v0", ":X-v0"):
        with pytest.raises(UntrustedCode):
            require_trusted("a file", other)
    require_trusted("a file", "stranger_module.below:X-v0")
    require_trusted("a file", "rl_training.envs.catch:Catch-v0")


def test_a_minari_dataset_without_spaces_does_not_make_its_environment(stranger, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    from rl_training.data.dataset_files import load_transition_dataset

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = tmp_path / "minari" / "theirs-v0" / "data"
    data.mkdir(parents=True)
    spec = {"id": "X-v0", "entry_point": "stranger_module:X", "additional_wrappers": [], "kwargs": {}}
    facts = {"dataset_id": "theirs-v0", "env_spec": json.dumps(spec), "data_format": "hdf5", "total_episodes": 1}
    (data / "metadata.json").write_text(json.dumps({**facts, "total_steps": 1, "minari_version": "0.5.3"}))
    with pytest.raises(UntrustedCode, match="--trust stranger_module"):
        load_transition_dataset("minari", dataset_id="theirs-v0")
    assert not stranger()
